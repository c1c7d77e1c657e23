"""The functions that search for the best strategy, and realize one that a log tells of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from intact.calibrate.assign import Method
from intact.calibrate.collect import Progress
from intact.data.metric import MetricFunction
from intact.data.preprocess import Preprocess
from intact.data.sources import open_samples
from intact.errors import SearchError, UsageError
from intact.flow.calibration import DataSource
from intact.flow.result import Result, check_output
from intact.flow.search_setup import (
    Setup,
    choices,
    float_graph,
    log_path,
    objective_of,
    options_of,
    refuse_unknown,
)
from intact.flow.sources import ModelSource, default_target, deployment_of, target_of
from intact.plan import Overrides
from intact.search.cost import CostModel
from intact.search.goals import Budget, goal_of
from intact.search.logs.log import Log, LogSettings, TrialRecorder, choose, read_log
from intact.search.loop import Report, Search, SearchProgress, warning_lines
from intact.search.measuring.objective import Objective
from intact.search.measuring.trial_data import TrialData
from intact.search.samplers import make_sampler
from intact.search.space import Candidate, Space
from intact.search.strategy import Strategy
from intact.search.trial import Goal, Trial
from intact.search.workers import make_pool
from intact.targets import Target

DEFAULT_SAMPLES = 512
DEFAULT_BUDGET = "200trials"

_CACHE_BYTES = 1 << 30
"""Of activations that all workers together keep, to go on from where candidates begin to differ."""
_SESSION_BYTES = 1 << 29
"""Of weights in all compiled pieces."""


@dataclass(frozen=True)
class FoundStrategy:
    """What a search found.

    Attributes:
        result: The best strategy, realized and written: as `intact.quantize` returns it.
        strategy: The same as the document has it: topology, bits, thresholds.
        best: Its trial; the score is that of the hardware's integers on all samples. In trials
            higher is better: what counts mistakes is turned around.
        float_score: Of the float model, as the objective has it.
        standing: All trials, the Pareto front, the time taken.
        space: What candidates mean.
        objective: What the score is.
        cost: What the cost is.
        log: Where every trial was written down.
        was_stopped: Ctrl-C ended the search before its time.
        remarks: What may surprise, one line each.
    """

    result: Result
    strategy: Strategy
    best: Trial
    float_score: float
    standing: SearchProgress
    space: Space
    objective: Objective
    cost: CostModel
    log: Path | None
    was_stopped: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def base(self) -> Trial | None:
        """The trial of the widest integers everywhere; None if there was none."""
        return _trial_of(self.standing, self.space.default)

    @property
    def score(self) -> float:
        """The score of the best strategy, as the objective has it."""
        return self.objective.shown(self.best.score)


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
    figure: str = "",
    lower_is_better: bool = False,
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
    """Find the best strategy: which tensors are quantized, with how many bits.

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
        figure: Which one of the figures by name that a function gives; empty takes the first.
        lower_is_better: The function counts mistakes: ``max_drop`` is how much more there may be,
            ``min_score`` the most.
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
    scored = objective_of(objective, figure=figure, lower_is_better=lower_is_better)
    refuse_unknown(sampler, minimize)
    goal_of(0.0, 1.0, max_drop=max_drop, min_score=min_score, max_cost=max_cost)
    path = log_path(output, log, resume=resume)
    if isinstance(data, Iterator):
        raise UsageError(
            "samples are read twice", remedy="give arrays, a file, or a function that begins anew"
        )
    graph = float_graph(model, described, expand, improve)
    space = choices(graph, described, overrides, deployment, widths, allow_float=allow_float)
    prepared = preprocess or Preprocess()
    setup = Setup.of(
        space,
        chosen,
        open_samples(
            data,
            graph,
            preprocess=prepared,
            limit=samples,
            labels=labels,
            skip_bad=skip_bad,
            mask=mask,
        ),
        deployment,
        minimize=minimize,
        preprocess=prepared,
        threads=threads,
        progress=progress,
        max_memory=max_memory,
    )
    course = _Course(
        sampler, seed, minimize, spending, max_drop, min_score, max_cost, path, resume, report
    )
    found = course.run(setup, scored, workers, cluster)
    told = {"search": course.told(found)}
    if mask is not None:
        told["mask"] = mask
    result = setup.result(found.best.candidate, told)
    if output is not None:
        result.save(output)
    strategy = Strategy.of(result.plan)
    return FoundStrategy(
        result,
        strategy,
        found.best,
        found.objective.shown(found.float_score),
        found.progress,
        setup.space,
        found.objective,
        setup.cost,
        path,
        found.was_stopped,
        tuple(course.remarks(found, setup.space)),
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
    """Realize a strategy that a search wrote down; no data is needed.

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
    graph = float_graph(model, described, expand, improve)
    entry.settings.refuse_other(graph, described, str(log))
    if entry.strategy is None:
        raise SearchError(f"{log}: trial {trial} has no strategy", remedy="choose another trial")
    plan = entry.strategy.plan(graph, described)
    plan.provenance["search"] = f"trial {entry.search.trial} of {Path(log).name}"
    result = deployment.result(plan, None, preprocess or Preprocess())
    if output is not None:
        result.save(output)
    return result


@dataclass(frozen=True)
class _Found:
    """What a course ended with; scores are those of trials: higher is better."""

    best: Trial
    float_score: float
    progress: SearchProgress
    objective: Objective
    was_stopped: bool


@dataclass(frozen=True)
class _Course:
    """How a search is to go; the attributes are `search_strategy`'s arguments."""

    sampler: str
    seed: int
    minimize: str
    budget: Budget
    max_drop: float | None
    min_score: float | None
    max_cost: float | str | None
    path: Path | None
    resume: bool
    report: Report | None

    def run(
        self, setup: Setup, scored: Objective | None, workers: int, cluster: str | None
    ) -> _Found:
        """Search, and confirm the best."""
        space, cost = setup.space, setup.cost
        trial_data = TrialData.of(
            space,
            setup.statistics,
            setup.method,
            setup.samples,
            scored,
            threads=setup.threads,
            cache_bytes=_CACHE_BYTES // workers,
            session_bytes=_SESSION_BYTES // workers,
        )
        pool = make_pool(
            trial_data,
            workers,
            distributed=cluster is not None,
            address=None if cluster == "local" else cluster,
            threads=setup.threads,
        )
        with pool:
            goal = self._goal(trial_data.objective, pool.float_score, setup)
            settings = self._settings(trial_data, goal)
            with _written(self.path, settings, resume=self.resume) as log:
                if log is not None:  # what was timed then holds: the search goes on as it began
                    cost.known.update({each.candidate: each.cost for each in log.trials})
                search = Search(
                    make_sampler(self.sampler, space, goal, cost, self.seed),
                    pool,
                    cost,
                    TrialRecorder(log, setup.planner),
                    SearchProgress(
                        goal, trial_data.samples, self.budget, shown=trial_data.objective.shown
                    ),
                    self.report,
                )
                best, was_stopped = _outcome(search, self.path)
            return _Found(
                best, pool.float_score, search.progress, trial_data.objective, was_stopped
            )

    def remarks(self, found: _Found, space: Space) -> Iterator[str]:
        """Yield what may surprise."""
        base = _trial_of(found.progress, space.default)
        return warning_lines(found.progress, found.best, base, found.objective.kind, self.max_drop)

    def told(self, found: _Found) -> str:
        """Return what the plan says of where it comes from."""
        score = found.objective.shown(found.best.score)
        return (
            f"{self.sampler}, seed {self.seed}, trial {found.best.number}: "
            f"{found.objective.name} {score!r}, {self.minimize} {found.best.cost!r}"
        )

    def _goal(self, objective: Objective, float_score: float, setup: Setup) -> Goal:
        cost = setup.cost
        least = None if self.min_score is None else objective.shown(self.min_score)
        return goal_of(
            float_score,
            cost.of(setup.space.default),
            max_drop=self.max_drop,
            min_score=least,
            max_cost=self.max_cost,
            least_cost=0.0 if cost.measure is not None else cost.lowest(),
            highest_score=math.inf if objective.row.rows is None else objective.row.highest,
        )

    def _settings(self, trial_data: TrialData, goal: Goal) -> LogSettings:
        return LogSettings.of(
            trial_data.space,
            sampler=self.sampler,
            seed=self.seed,
            objective=trial_data.objective.name,
            minimize=self.minimize,
            goal=goal,
            samples=trial_data.samples,
            samples_hash=trial_data.samples_hash,
            method=repr(trial_data.method),
            options=options_of(trial_data.objective),
        )


def _trial_of(progress: SearchProgress, candidate: Candidate) -> Trial | None:
    """Return the whole trial of a candidate; None if there was none."""
    whole = (trial for trial in progress.trials if trial.counts(progress.samples))
    return next((trial for trial in whole if trial.candidate == candidate), None)


@contextmanager
def _written(path: Path | None, settings: LogSettings, *, resume: bool) -> Iterator[Log | None]:
    if path is None:
        yield None
        return
    with Log.resume(path, settings) if resume else Log.create(path, settings) as log:
        yield log


def _outcome(search: Search, path: Path | None) -> tuple[Trial, bool]:
    """Search until the end, or until Ctrl-C; return the best, and whether that ended it.

    Raises:
        KeyboardInterrupt: It came before anything was found, or again before that was confirmed;
            what it says is where the trials are.
    """
    was_stopped = False
    try:
        try:
            search.run()
        except KeyboardInterrupt:
            if search.progress.best is None:
                raise
            was_stopped = True
        return search.confirmed(), was_stopped
    except KeyboardInterrupt as interrupt:
        trials = len(search.progress.trials)
        if path is None or not trials:
            raise
        raise KeyboardInterrupt(
            f"stopped before a strategy was found; {trials} trial(s) are in {path}: --resume goes "
            "on with them"
        ) from interrupt
