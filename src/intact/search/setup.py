"""Prepares a search: the choices, the observed float model, the cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.choice import choose
from intact.calibrate.outputs import FloatRuns
from intact.calibrate.statistics import Statistics
from intact.calibrate.unlike import broken_ties, fully_untied
from intact.data.batching import Batch
from intact.data.detections import metric_of
from intact.data.metric import DETECTIONS, MetricFunction
from intact.data.preprocess import Preprocess
from intact.data.stream import Samples
from intact.engines.latency import latencies
from intact.engines.session import FloatModel
from intact.errors import UsageError, nearest
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.onnx_qdq.write import write_qdq
from intact.formats.registry import expressible
from intact.graph import Graph
from intact.graph.passes.expand import expand as expand_operators
from intact.improve.passes import rewrite
from intact.limits import TIMED_AT_ONCE
from intact.plan import Note, Overrides, QuantizedGraph, TensorEnd, build_plan
from intact.plan.preparation import graphs_for
from intact.recipe.options import SearchOptions
from intact.results.folder import check_output
from intact.results.job import Deployment
from intact.results.result import Result
from intact.results.sources import original_of
from intact.results.values import Values, refuse_nothing_to_do
from intact.search.cost import COSTS, CostModel, make_cost, prune
from intact.search.logs.log import Log
from intact.search.measuring.objective import Objective
from intact.search.plans import Planner, required
from intact.search.samplers import SAMPLERS
from intact.search.space import Candidate, Space, deployable
from intact.search.weight_rounding import Rounding, is_rounded, rounding_of
from intact.targets import Target


def latency_of(planner: Planner, samples: Samples, *, threads: int) -> Callable[[Candidate], float]:
    """Return what measures the milliseconds of a candidate in ONNX Runtime, for 32 samples.

    Each is timed in turn with the float model and its share of that is taken, so that a machine
    that grows slower or faster meanwhile favours none.
    """
    # One batch for all: candidates differ in their kernels, not in what they are fed.
    feeds = next(iter(samples.batches(samples.batch_size(TIMED_AT_ONCE))))[0]
    float_model = FloatModel(planner.space.plan.graph, threads=threads)

    # A target that saturates pairs of products is deployed without the option of exact sums, and
    # that option costs time.
    exact = not planner.space.plan.target.saturates_pairs

    def plain() -> object:
        return float_model.run(feeds)

    # The scale from ratios to milliseconds is taken once: it must not move between candidates.
    unit = latencies(plain, plain).milliseconds[0]

    def measure(candidate: Candidate) -> float:
        model = write_qdq(planner.plan(candidate)).model
        runtime = QdqRuntime(model, threads=threads, exact=exact)
        speedup = latencies(plain, lambda: runtime.run(feeds)).ratio
        return unit / speedup

    return measure


LOG_SUFFIX = ".search.jsonl"


@dataclass(frozen=True)
class Setup:
    """A search that is ready to begin.

    Attributes:
        space: What may be chosen: only what is legal, can be written, and changes the cost.
        cost: What is minimized, of that space.
        statistics: What was observed of the float model.
        method: How scales are found.
        planner: Makes plans of candidates.
        samples: What the float model was observed on, and trials are run on.
        deployment: What is written of the best.
        preprocess: Kept in the result.
        shapes: The shapes of most samples, where the model leaves them open.
        threads: Number of threads in all; 0 takes all cores.
        first: The inputs of one sample.
        notes: What the comparison of the graph with the given model found.
        rounding: How weights of few bits are rounded.
    """

    space: Space
    cost: CostModel
    statistics: Statistics
    method: Method
    planner: Planner
    samples: Samples
    deployment: Deployment
    preprocess: Preprocess
    shapes: Mapping[str, tuple[int, ...]]
    threads: int
    first: Batch
    notes: tuple[Note, ...] = ()
    rounding: Rounding = field(default_factory=Rounding)

    @staticmethod
    def of(
        spaced: SpaceMaker,
        method: Method,
        options: SearchOptions,
        deployment: Deployment,
        preprocess: Preprocess,
        observe: Callable[[Graph, Sequence[str]], Observation],
    ) -> Setup:
        """Observe the float model, and price the choices.

        Args:
            spaced: Gives the choices.
            method: How scales are found.
            options: The options of the call.
            deployment: What is written.
            preprocess: What is done to the samples.
            observe: Runs a graph over the samples, and counts what tensors of these names are.

        Raises:
            UsageError: No choice changes the cost.
            IntactError: The samples do not fit, or what is asked for cannot be written.
        """
        space = spaced(())
        ties = _Ties.of(space, deployment)
        seen = observe(space.plan.graph, (*required(space), *ties.needs))
        samples, statistics = seen.samples, seen.statistics
        minimize, threads = options.minimize, options.threads
        # Decided before the search, and for all candidates alike: a tie that depended on the widths
        # would make groups depend on each other.
        broken = ties.broken(statistics, method, seen.runs)
        space = spaced(broken) if broken else space
        compared = original_of(options.model, threads=threads).compare(space.plan.graph, seen.first)
        planner = Planner(space, statistics, method)
        # What cannot be written shall be said before hours are spent on it.
        deployment.result(planner.plan(space.default), statistics, preprocess)
        cost = _cost(minimize, planner, samples, deployment, threads)
        # Choices that save nothing can only lose, and each would cost a sampler trials.
        fewer = prune(space, cost)
        if not fewer.open:
            raise UsageError(
                f"no choice changes the {minimize} of {', '.join(deployment.formats)}",
                remedy="minimize another cost, or write another --format",
            )
        return Setup(
            fewer,
            cost.on(fewer),
            statistics,
            method,
            planner,
            samples,
            deployment,
            preprocess,
            seen.shapes,
            threads,
            seen.first,
            compared.notes,
        )

    def round_weights(self, options: SearchOptions, log: Path | None) -> Setup:
        """Round weights of few bits, if the preset says so.

        Args:
            options: The options of the call.
            log: Where trials are written.
        """
        if not is_rounded(self.space.plan.target, options.preset):
            return self
        found = rounding_of(
            self.planner,
            self.space,
            self.samples,
            log=log if options.resume else None,
            threads=self.threads,
            progress=options.progress,
        )
        known = found.roundings
        planner = Planner(self.planner.space, self.statistics, self.method, known)
        return replace(self, planner=planner, rounding=found)

    def result(self, candidate: Candidate, found_by: str, mask: str | None) -> Result:
        """Realize a candidate: as `intact.quantize` would have, given its widths.

        Args:
            candidate: The widths.
            found_by: What the plan says of the search.
            mask: The array that is 0 where a sequence is padded.
        """
        plan = self.space.plan
        # By the walk of `quantize` and not by the planner's shortcuts, so that the result does not
        # depend on there having been a search.
        structure = build_plan(plan.graph, plan.target, self.space.requests(candidate))
        needed = dict.fromkeys((*self.samples.specs, *required_tensors(structure)))
        # The statistics hold what any candidate may need; the result's are those that `quantize`
        # would have kept.
        known = self.statistics.only(needed)
        found = self.rounding.roundings.apply(assign(structure, known, self.method))
        fed = self.samples.feeding
        found.provenance = (
            found.provenance.searched(found_by)
            .observed(mask)
            .fed(fed.no_batch, fed.states, self.shapes)
        )
        return self.deployment.result(found, known, self.preprocess, self.notes)


class Observation(Protocol):
    """The result of a pass of the float model over the samples."""

    @property
    def samples(self) -> Samples:
        """The samples, for further passes."""

    @property
    def statistics(self) -> Statistics:
        """The statistics of the tensors that were asked for, and of the inputs."""

    @property
    def first(self) -> Batch:
        """The inputs of one sample."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The input shapes of most samples, where the model leaves them open."""

    @property
    def runs(self) -> FloatRuns:
        """Some samples, to try plans on."""


SpaceMaker: TypeAlias = Callable[[Collection[TensorEnd]], Space]
"""Lists the choices, given the inputs of joins that are requantized."""


class _Ties(NamedTuple):
    """The ties of a space that may be broken.

    Attributes:
        space: The space.
        untied: The widest plan with all of them broken; None where there are none.
    """

    space: Space
    untied: QuantizedGraph | None

    @staticmethod
    def of(space: Space, deployment: Deployment) -> _Ties:
        """Find the ties of a space, where the formats can hold broken ones."""
        if not expressible(deployment.formats).several_scales:
            return _Ties(space, None)
        return _Ties(space, fully_untied(space.plan, _Ties(space, None).apart))

    def apart(self, ends: Collection[TensorEnd]) -> QuantizedGraph:
        """Make the widest plan with some of the ties broken."""
        plan, overrides = self.space.plan, self.space.overrides
        more = msgspec.structs.replace(overrides, apart=overrides.apart | frozenset(ends))
        return build_plan(plan.graph, plan.target, more)

    @property
    def needs(self) -> tuple[str, ...]:
        """The tensors that must be observed to decide."""
        return () if self.untied is None else required_tensors(self.untied)

    def broken(
        self, statistics: Statistics, method: Method, runs: FloatRuns
    ) -> frozenset[TensorEnd]:
        """Decide, as `quantize` does, which ties to break for the sake of the outputs."""
        if self.untied is None:
            return frozenset()
        choice = choose(self.apart(()), statistics, [method], runs)
        return broken_ties(self.untied, statistics, choice, self.apart)


def float_graph(
    graph: Graph, target: Target, expand: Sequence[str], improve: Sequence[str]
) -> Graph:
    """Return the graph that is searched: what `quantize` would plan on.

    Args:
        graph: Normalized.
        target: Whose operators it is written in.
        expand: Operator types to expand.
        improve: Passes over the weights.

    Raises:
        UsageError: An improvement follows after the scales.
    """
    changed = rewrite(expand_operators(graph, expand), improve)
    return graphs_for(changed, [target], expand)[0]


def choices(
    graph: Graph,
    target: Target,
    overrides: Overrides | None,
    deployment: Deployment,
    widths: Sequence[int] | None,
    apart: Collection[TensorEnd],
    *,
    allow_float: bool,
    in_integers: bool = False,
    look: Callable[[tuple[str, ...]], Values] | None = None,
) -> Space:
    """Return the choices that target, user and formats leave.

    Args:
        graph: The graph.
        target: The hardware.
        overrides: What is settled.
        deployment: The formats.
        widths: Those to choose from; None for all.
        apart: Inputs of joins that are requantized.
        allow_float: Whether parts may stay float.
        in_integers: Leave out widths that the runtime would compute in float.
        look: What the constants of the graph are, for the error where nothing can be quantized.

    Raises:
        UsageError: There are none.
    """
    if apart:
        overrides = msgspec.structs.replace(overrides or Overrides(), apart=frozenset(apart))
    space = Space.of(graph, target, overrides, widths=widths, allow_float=allow_float)
    # Before the formats are asked: "no layer can be quantized" is the better message where both
    # hold.
    refuse_nothing_to_do(space.plan, look)
    able = expressible(deployment.formats)
    # All widths that a space may have; see `Space.of`.
    computed = able.integer_bits if in_integers else frozenset(range(2, 17))
    space = deployable(
        space,
        weight_bits=able.weight_bits & computed,
        activation_bits=able.activation_bits & computed,
        floats=able.floats,
        mixes=able.mixes,
    )
    if not space.open:
        raise UsageError(
            f"target {target.name} and format {', '.join(deployment.formats)} leave no choice",
            remedy="choose another --format, other --widths, or `intact quantize`",
        )
    return space


def objective_of(
    objective: str | MetricFunction | None,
    *,
    figure: str = "",
    lower_is_better: bool = False,
    outputs: Sequence[str | None] = (),
) -> Objective | None:
    """Return what is scored: a kind, or a function; None leaves it to the data.

    Args:
        objective: Its name, or the function.
        figure: Which figure of a function that gives several.
        lower_is_better: Whether it counts mistakes.
        outputs: Names of a detector's outputs: boxes, scores, classes.

    Raises:
        UsageError: There is no such objective, or only metrics have figures and may count mistakes.
        DataError: There is no such function.
    """
    if objective is None:
        if figure or lower_is_better:
            raise UsageError(
                "--figure and --lower-is-better are of a metric of yours",
                remedy="name it with --objective MODULE:FUNCTION",
            )
        return None
    is_kind = isinstance(objective, str) and ":" not in objective and objective != DETECTIONS
    return Objective.of(
        str(objective) if is_kind else "metric",
        None if is_kind else metric_of(objective, outputs),
        figure=figure,
        lower_is_better=lower_is_better,
    )


def refuse_unknown(sampler: str, minimize: str) -> None:
    """Refuse names that the tables lack, before any work is done.

    Raises:
        UsageError: There is no such sampler or cost.
    """
    if sampler not in SAMPLERS:
        raise UsageError(f"no sampler {sampler!r}", remedy=nearest(sampler, SAMPLERS))
    if minimize not in COSTS:
        raise UsageError(f"no cost {minimize!r}", remedy=nearest(minimize, COSTS))


def objective_options(objective: Objective) -> dict[str, str]:
    """Return what else must be the same for a search to be continued."""
    options = {}
    if objective.metric is not None and objective.figure:
        options["metric"] = objective.metric.name
    if objective.lower_is_better:
        options["lower_is_better"] = "yes"
    return options


def log_path(output: str | Path | None, log: str | Path | None, *, resume: bool) -> Path | None:
    """Return where trials are written, and refuse at once what would fail at the end.

    Raises:
        OutputError: The output cannot be written, or the log would lie in it.
        UsageError: There is a log already, or none to resume.
    """
    if output is not None:
        check_output(Path(output))
    # All of this is checked before the model is read: a search may take hours.
    path = _path_of_log(output, log)
    if path is None:
        if resume:
            raise UsageError(
                "there is no log to resume", remedy="name it with --log, or give --output"
            )
        return None
    # Resolved, because `..` and links may lead into the folder.
    if output is not None and path.resolve().is_relative_to(Path(output).resolve()):
        raise UsageError(
            f"the log {path} lies in the result's folder, which is replaced as a whole",
            remedy="put it beside the folder",
        )
    Log.refuse_early(path, resume=resume)
    return path


def _path_of_log(output: str | Path | None, log: str | Path | None) -> Path | None:
    if log is not None:
        return Path(log)
    if output is None:
        return None
    folder = Path(output)
    if folder.name in ("", ".."):  # ".", say
        folder = folder.resolve()
    return folder.with_name(folder.name + LOG_SUFFIX)


def _cost(
    minimize: str, planner: Planner, samples: Samples, deployment: Deployment, threads: int
) -> CostModel:
    """Return what is minimized; shapes and times are those of the first samples."""
    feeds = next(iter(samples.batches(samples.batch_size(1))))[0]
    is_measured = COSTS[minimize].is_measured
    measure = latency_of(planner, samples, threads=threads) if is_measured else None
    packs = expressible(deployment.formats).packs
    return make_cost(minimize, planner.space, feeds, measure, packs=packs)
