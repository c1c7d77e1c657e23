"""The functions that search for the best strategy, and realise one that a log tells of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from intact.api.measuring import latency_of
from intact.api.sources import (
    ModelSource,
    QuantizedSource,
    default_target,
    deployment_of,
    open_source,
    target_of,
)
from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.collect import Progress, collect
from intact.errors import SearchError, UsageError
from intact.exporting import expressible
from intact.graph import Graph, normalize
from intact.graph.expand import expand as expand_operators
from intact.graph.join_gelu import join_gelu
from intact.improving import Improvements
from intact.pipeline import DataSource, Deployment, refuse_nothing_to_do
from intact.plan import Overrides, build_plan
from intact.result import Result, check_output
from intact.samples.metric import Metric, MetricFunction
from intact.samples.opening import open_samples
from intact.samples.preprocess import Preprocess
from intact.samples.stream import Samples
from intact.search.bench import Bench
from intact.search.budget import Budget
from intact.search.cost import COSTS, CostModel, make_cost, pruned
from intact.search.deployable import deployable
from intact.search.goals import goal_of
from intact.search.log import Log, LogSettings, choose, read_log
from intact.search.loop import Report, Search, Standing
from intact.search.objective import Objective
from intact.search.plans import Planner, required
from intact.search.recording import Recorded
from intact.search.samplers import make_sampler
from intact.search.space import Space
from intact.search.strategy import Strategy
from intact.search.trial import Trial
from intact.search.workers import make_pool
from intact.targets import Target

DEFAULT_SAMPLES = 512
DEFAULT_BUDGET = "200trials"
LOG_SUFFIX = ".search.jsonl"

_CACHE_BYTES = 1 << 30
"""Of activations that all workers together keep, to go on from where candidates begin to differ."""
_SESSION_BYTES = 1 << 29
"""Of weights in all compiled pieces."""


@dataclass(frozen=True)
class FoundStrategy:
    """What a search found.

    Attributes:
        result: The best strategy, realised and written: as `intact.quantize` returns it.
        strategy: The same as the document has it: topology, bits, thresholds.
        best: Its trial; the score is that of the hardware's integers on all samples.
        float_score: Of the float model.
        standing: All trials, the Pareto front, the time taken.
        space: What candidates mean.
        objective: What the score is.
        cost: What the cost is.
        log: Where every trial was written down.
        was_stopped: Ctrl-C ended the search before its time.
    """

    result: Result
    strategy: Strategy
    best: Trial
    float_score: float
    standing: Standing
    space: Space
    objective: Objective
    cost: CostModel
    log: Path | None
    was_stopped: bool = False

    @property
    def base(self) -> Trial | None:
        """The trial of the widest integers everywhere; None if there was none."""
        return next((t for t in self.standing.trials if t.candidate == self.space.default), None)

    @property
    def score(self) -> float:
        """The score of the best strategy."""
        return self.best.score


def search_strategy(
    model: ModelSource,
    data: DataSource,
    *,
    target: str | Path | Target | None = None,
    output: str | Path | None = None,
    max_drop: float | None = None,
    min_score: float | None = None,
    max_cost: float | str | None = None,
    minimize: str = "bits",
    objective: str | MetricFunction | None = None,
    budget: str | Budget = DEFAULT_BUDGET,
    sampler: str = "sensitivity",
    seed: int = 0,
    widths: Sequence[int] | None = None,
    allow_float: bool = True,
    log: str | Path | None = None,
    resume: bool = False,
    workers: int = 1,
    cluster: str | None = None,
    labels: str | Path | None = None,
    formats: Sequence[str] | None = None,
    io: str = "int8",
    method: str | None = None,
    weight_method: str | None = None,
    method_options: Mapping[str, float] | None = None,
    overrides: Overrides | None = None,
    expand: Sequence[str] = (),
    improve: Sequence[str] = (),
    preprocess: Preprocess | None = None,
    samples: int | None = DEFAULT_SAMPLES,
    skip_bad: bool = False,
    mask: str | None = None,
    max_memory: int | None = None,
    threads: int = 0,
    progress: Progress | None = None,
    report: Report | None = None,
) -> FoundStrategy:
    """Find the best strategy: which tensors are quantised, with how many bits.

    With ``max_drop`` or ``min_score`` that is the cheapest strategy that keeps the score, with
    ``max_cost`` the one of the highest score that is not dearer, with neither the one of the
    highest score. The float model is observed once; a trial then costs a run of what differs.

    Args:
        model: A path or a loaded float model; never changed.
        data: Samples, with ``labels`` where accuracy is the objective. They are kept in memory.
        target: A shipped target's name, a TOML file or a ``Target``; None takes ``onnxruntime``.
        output: Folder for the result; the log lies beside it. None keeps the result in memory.
        max_drop: How much the score may fall below the float model's, in its own unit (points of
            accuracy or agreement).
        min_score: The lowest score accepted.
        max_cost: The highest cost accepted: a number, or ``"60%"`` of what the widest integers
            cost.
        minimize: The cost, by a name of ``intact.search.cost.COSTS``: bits, bytes, bitops, target,
            latency.
        objective: What is scored, by a name of ``intact.search.objective.OBJECTIVES``, a function
            or its ``module:function``; None takes accuracy where there are labels, else agreement
            with the float model, else the SQNR.
        budget: Trials or time: ``"200trials"``, ``"10min"``, ``"500,1h"``.
        sampler: Who chooses, by a name of ``intact.search.samplers.SAMPLERS``.
        seed: For samplers that draw.
        widths: The widths that may be chosen; None allows 4 bits up to what the target declares.
        allow_float: Whether parts of the model may stay float.
        log: Where trials are written; None lies beside ``output``, or nowhere without one.
        resume: Go on with a log that is there.
        workers: Processes that try side by side.
        cluster: Address of a Ray cluster, or ``"local"``; needs the extra ``distributed``.
        labels: A CSV file of labels, for a folder of images.
        formats: What is written; None takes the target's.
        io: As for `quantize`.
        method: As for `quantize`.
        weight_method: As for `quantize`.
        method_options: As for `quantize`.
        overrides: As for `quantize`; what they settle is no choice.
        expand: As for `quantize`.
        improve: ``equalize`` as for `quantize`; nothing that runs after the scales are chosen.
        preprocess: As for `quantize`.
        samples: Use at most so many samples; None uses all.
        skip_bad: As for `quantize`.
        mask: As for `quantize`.
        max_memory: As for `quantize`.
        threads: Threads in all; 0 takes all cores.
        progress: Told the samples done while the float model is observed.
        report: Told after every trial.

    Raises:
        SearchError: Nothing holds the limits (it says how near the nearest came), or the log is
            not one of this search.
        IntactError: Another of its children, naming what is wrong and how to mend it.
    """
    spending = budget if isinstance(budget, Budget) else Budget.parse(budget)
    described = target_of(default_target(model) if target is None else target)
    deployment = deployment_of(described, formats, io)
    chosen = Method.of(described, method, weight_method, method_options)
    scored = _objective(objective)
    path = _log_path(output, log, resume=resume)
    if isinstance(data, Iterator):
        raise UsageError(
            "samples are read twice", remedy="give arrays, a file, or a function that begins anew"
        )
    graph = _float_graph(model, described, expand, improve)
    space = _choices(graph, described, overrides, deployment, widths, allow_float=allow_float)
    prepared = preprocess or Preprocess()
    opened = open_samples(
        data, graph, preprocess=prepared, limit=samples, labels=labels, skip_bad=skip_bad, mask=mask
    )
    observed = tuple(dict.fromkeys((*opened.specs, *required(space))))
    statistics = collect(
        graph, opened, observed, threads=threads, progress=progress, max_memory=max_memory
    )
    planner = Planner(space, statistics, chosen)
    # What cannot be written shall be said before hours are spent on it.
    deployment.result(planner.plan(space.default), statistics, prepared)
    cost = _cost(minimize, planner, opened, deployment, threads)
    space = pruned(space, cost)
    if not space.open:
        raise UsageError(
            f"no choice changes the {minimize} of {', '.join(deployment.formats)}",
            remedy="minimise another cost, or write another --format",
        )
    cost = cost.on(space)
    bench = Bench.of(
        space,
        statistics,
        chosen,
        opened,
        scored,
        threads=threads,
        cache_bytes=_CACHE_BYTES // workers,
        session_bytes=_SESSION_BYTES // workers,
    )
    address = None if cluster == "local" else cluster
    with make_pool(
        bench, workers, distributed=cluster is not None, address=address, threads=threads
    ) as pool:
        widest = cost.of(space.default)
        goal = goal_of(
            pool.float_score, widest, max_drop=max_drop, min_score=min_score, max_cost=max_cost
        )
        settings = LogSettings.of(
            space,
            sampler=sampler,
            seed=seed,
            objective=bench.objective.name,
            minimize=minimize,
            goal=goal,
            samples=bench.samples,
            samples_hash=bench.samples_hash,
            method=repr(chosen),
        )
        with _opened(path, settings, resume=resume) as written:
            if written is not None:  # what was timed then holds: the search shall go on as it began
                cost.known.update({each.candidate: each.cost for each in written.trials})
            search = Search(
                make_sampler(sampler, space, goal, cost, seed),
                pool,
                cost,
                Recorded(written, planner),
                Standing(goal, bench.samples, spending),
                report,
            )
            was_stopped = _run(search)
            best = search.confirmed()
        float_score = pool.float_score
    structure = build_plan(graph, described, space.requests(best.candidate))
    needed = dict.fromkeys((*opened.specs, *required_tensors(structure)))
    known = statistics.only(needed)
    plan = assign(structure, known, chosen)
    plan.provenance["search"] = (
        f"{sampler}, seed {seed}: {bench.objective.name} {best.score!r}, {minimize} {best.cost!r}"
    )
    if mask is not None:
        plan.provenance["mask"] = mask
    result = deployment.result(plan, known, prepared)
    if output is not None:
        result.save(output)
    return FoundStrategy(
        result,
        Strategy.of(plan),
        best,
        float_score,
        search.standing,
        space,
        bench.objective,
        cost,
        path,
        was_stopped,
    )


def replay_strategy(
    model: ModelSource,
    log: str | Path,
    *,
    trial: str | int = "best",
    target: str | Path | Target | None = None,
    output: str | Path | None = None,
    formats: Sequence[str] | None = None,
    io: str = "int8",
    expand: Sequence[str] = (),
    improve: Sequence[str] = (),
    preprocess: Preprocess | None = None,
) -> Result:
    """Realise a strategy that a search wrote down; no data is needed.

    Args:
        model: The float model that was searched.
        log: What `search_strategy` wrote.
        trial: Its number, or ``"best"``.
        target: As it was in the search; None takes the shipped one of the log's name.
        output: Folder for the result; None keeps it in memory.
        formats: What is written; None takes the target's.
        io: As for `quantize`.
        expand: As it was in the search.
        improve: As it was in the search.
        preprocess: As it was in the search; the result keeps it, for `evaluate`.

    Raises:
        SearchError: The log is of another model or target.
        IntactError: The log is damaged, or has no such trial.
    """
    if output is not None:
        check_output(Path(output))
    entry = choose(read_log(log), trial)
    described = target_of(entry.settings.target if target is None else target)
    deployment = deployment_of(described, formats, io)
    graph = _float_graph(model, described, expand, improve)
    entry.settings.refuse_other(graph, described, str(log))
    if entry.strategy is None:
        raise SearchError(f"{log}: trial {trial} has no strategy", remedy="choose another trial")
    plan = entry.strategy.plan(graph, described)
    plan.provenance["search"] = f"trial {entry.search.trial} of {Path(log).name}"
    result = deployment.result(plan, None, preprocess or Preprocess())
    if output is not None:
        result.save(output)
    return result


def _float_graph(
    model: ModelSource, target: Target, expand: Sequence[str], improve: Sequence[str]
) -> Graph:
    """Return the graph that is searched: what `quantize` would plan on."""
    improvements = Improvements.of(improve)
    if improvements.refinements:
        raise UsageError(
            f"--improve {improvements.refinements[0]} follows after the scales",
            remedy="leave it out of the search",
        )
    source = open_source(model)
    if isinstance(source, QuantizedSource):
        raise UsageError("the model is quantised already", remedy="search on the float model")
    graph = improvements.rewrite(expand_operators(normalize(source.model), expand))
    return join_gelu(graph) if target.describes("Gelu") else graph


def _choices(
    graph: Graph,
    target: Target,
    overrides: Overrides | None,
    deployment: Deployment,
    widths: Sequence[int] | None,
    *,
    allow_float: bool,
) -> Space:
    """Return the choices that target, user and formats leave.

    Raises:
        UsageError: There are none.
    """
    space = Space.of(graph, target, overrides, widths=widths, allow_float=allow_float)
    refuse_nothing_to_do(space.plan)
    able = expressible(deployment.formats)
    space = deployable(
        space,
        weight_bits=able.weight_bits,
        activation_bits=able.activation_bits,
        floats=able.floats,
    )
    if not space.open:
        raise UsageError(
            f"target {target.name} and format {', '.join(deployment.formats)} leave no choice",
            remedy="choose another --format, other --widths, or `intact quantize`",
        )
    return space


def _objective(objective: str | MetricFunction | None) -> Objective | None:
    """Return what is scored: a kind, or a function; None leaves it to the data."""
    if objective is None:
        return None
    if isinstance(objective, str) and ":" not in objective:
        return Objective.of(objective)
    return Objective.of("metric", Metric.of(objective))


def _cost(
    minimize: str, planner: Planner, samples: Samples, deployment: Deployment, threads: int
) -> CostModel:
    """Return what is minimised; shapes and times are those of the first samples."""
    feeds = next(iter(samples.batches(samples.batch_size(1))))[0]
    is_measured = minimize in COSTS and COSTS[minimize].is_measured
    measure = latency_of(planner, samples, threads=threads) if is_measured else None
    packs = expressible(deployment.formats).packs
    return make_cost(minimize, planner.space, feeds, measure, packs=packs)


def _log_path(output: str | Path | None, log: str | Path | None, *, resume: bool) -> Path | None:
    """Return where trials are written, and refuse at once what would fail at the end."""
    if output is not None:
        check_output(Path(output))
    if log is not None:
        return Path(log)
    if output is not None:
        folder = Path(output)
        return folder.with_name(folder.name + LOG_SUFFIX)
    if resume:
        raise UsageError("there is no log to resume", remedy="name it with --log, or give --output")
    return None


def _opened(
    path: Path | None, settings: LogSettings, *, resume: bool
) -> AbstractContextManager[Log | None]:
    if path is None:
        return nullcontext()
    return Log.resume(path, settings) if resume else Log.create(path, settings)


def _run(search: Search) -> bool:
    """Search until the end, or until Ctrl-C; return whether that was it."""
    try:
        search.run()
    except KeyboardInterrupt:
        if search.standing.best is None:
            raise
        return True
    return False
