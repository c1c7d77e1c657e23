"""Finds what a runtime makes of a model: layers in float, saturating sums, slow int8."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from intact.analyze.diagnose.findings import Finding, Remedy
from intact.data.batching import Batch, real_samples, sample_count
from intact.engines.cpu import on_this_processor
from intact.engines.exact_sums import saturates_pairs
from intact.engines.latency import blocks_in_turn
from intact.errors import ExportError, IntactError
from intact.graph import OPS, Graph, OpKind, data_slots, weight_slot
from intact.limits import (
    HALF_DB,
    HELD_AT_ONCE,
    LONG_RUNS_SECONDS,
    LONG_RUNS_SHARE,
    SLOWER,
    SLOWNESS_SECONDS,
    SLOWNESS_SHARE,
    WORTH_OF_TIME,
)
from intact.ops.operators import QUANTIZERS
from intact.plan import QuantizedGraph
from intact.plan.overflows import sums_wrapped_in_floats
from intact.plan.stored_weights import is_cached, is_in_blocks

if TYPE_CHECKING:
    from intact.analyze.diagnose.evidence import Evidence
    from intact.calibrate.outputs import Errors, FloatRuns
    from intact.engines.executor import Run

_USUAL_BITS = 8
_ROUNDS = min(SLOWER)
"""How many times a model must be slower, at least; where there is time for five, each of them."""
SHORTEST_SECONDS = 2e-5
"""Models that take less are not timed: the call takes as long as the kernels, some 5e-6."""
SPEED = 0.5
"""Severity of what costs nothing but time: what makes outputs wrong comes first."""
_FEW = 8
"""Samples that show what saturating sums cost."""
_MOST_BYTES = 1 << 28
"""Largest file that is loaded again only to see whether sums saturate."""
_PROFILED = 5
"""Runs whose kernels are timed."""
FASTEST = {"fastest": True}
"""The options that mend slowness."""


class KernelTime(NamedTuple):
    """The time of one kernel in seconds, with the operator that the runtime made."""

    op_type: str
    seconds: float


class Runtime(msgspec.Struct, frozen=True):
    """What checks need to know of a deployed model and its runtime.

    Attributes:
        nbytes: Counts the bytes that are deployed.
        is_onnxruntime: Whether ONNX Runtime runs it.
        run: Runs it as applications do, on one thread; None where nothing here does.
        load: Loads it as applications do, to be timed; None where no runtime here runs both models.
        load_float: Loads a float model in the same runtime, likewise; None where `load` is.
        profile: Times its kernels in some runs of a batch; None where the runtime does not tell.
        in_float: Layers that were planned for integers and are computed in float, with operators.
    """

    nbytes: Callable[[], int]
    is_onnxruntime: bool
    run: Run | None = None
    load: Callable[[], Callable[[Batch], Any]] | None = None
    load_float: Callable[[Graph], Callable[[Batch], Any]] | None = None
    profile: Callable[[Batch, int], Sequence[KernelTime]] | None = None
    in_float: Mapping[str, str] = {}

    @property
    def clock(self) -> Callable[[], float]:
        """What tells the processor time of runs: others than ONNX Runtime use threads of theirs."""
        return time.thread_time if self.is_onnxruntime else time.process_time

    def held_in_floats(self, plan: QuantizedGraph) -> tuple[str, ...]:
        """Return the layers whose sums no code wraps: floats hold them whatever their size."""
        return tuple(self.in_float.keys() - sums_wrapped_in_floats(plan))


def check_layers_in_float(evidence: Evidence) -> list[Finding]:
    """Look for layers that the runtime computes in float."""
    runtime = evidence.runtime
    return [] if runtime is None else float_findings(evidence.plan, runtime.in_float)


def check_saturation(evidence: Evidence) -> list[Finding]:
    """Look for sums that this processor saturates."""
    runtime = evidence.runtime
    if runtime is None:
        return []
    return saturation_findings(evidence.plan, runtime, evidence.runs, evidence.errors)


def check_slowness(evidence: Evidence) -> list[Finding]:
    """Time the result beside the float model."""
    runtime, samples = evidence.runtime, evidence.samples
    if runtime is None or samples is None or runtime.load is None:
        return []
    feeds, _ = next(iter(samples.batches(samples.batch_size(HELD_AT_ONCE))))
    with contextlib.suppress(IntactError):  # a model that the runtime refuses: `verify` says it
        return slowness_findings(evidence.plan, runtime, feeds)
    return []


def check_little_slowness(evidence: Evidence) -> list[Finding]:
    """Time the result beside the float model for a small part of what making it took."""
    runtime, runs = evidence.runtime, evidence.runs
    if runtime is None or runtime.load_float is None or evidence.spent is None:
        return []
    # A rewrite's graph takes and gives what the given one does.
    if _ports(evidence.plan.graph) != _ports(runs.graph):
        return []
    (feeds, _), remedy = runs.batches[0], faster(evidence.plan)
    if runtime.is_onnxruntime:  # the float model is loaded already
        return slow_sign(runtime, feeds, lambda: runs.run, evidence.spent, remedy)
    load, graph = partial(runtime.load_float, runs.graph), runs.graph
    with contextlib.suppress(IntactError):  # a float model that the runtime refuses
        return slow_sign(runtime, _one_of(graph, feeds), load, evidence.spent, remedy)
    return []


def _ports(graph: Graph) -> list[str]:
    return [str(value.name) for value in (*graph.inputs, *graph.outputs)]


def _one_of(graph: Graph, feeds: Batch) -> Batch:
    """Return the first sample of a batch, which devices run alone; all where the batch is fixed."""
    shapes = [value.shape for value in graph.inputs]
    if any(not shape or isinstance(shape[0], int) for shape in shapes):
        return feeds
    return real_samples(feeds, sample_count(feeds), 1)


# ---- computed in float ------------------------------------------------------------------------


def multiplies(op_type: str) -> bool:
    """Tell whether an operator sums products."""
    spec = OPS.get(op_type)
    return spec is not None and spec.kind is OpKind.COMPUTE


def float_findings(plan: QuantizedGraph, in_float: Mapping[str, str]) -> list[Finding]:
    """Find layers that the runtime computes in float although they are planned for integers.

    Args:
        plan: The plan.
        in_float: Those layers, with their operators.
    """
    if not in_float:
        return []
    total = len(_products(plan))
    first, op_type = next(iter(in_float.items()))
    activations, weights = _widest(plan, in_float)
    wide = [
        f"{bits} bits in {what}"
        for what, bits in (("activations", activations), ("weights", weights))
        if bits > _USUAL_BITS
    ]
    evidence = (
        f"the runtime computes {len(in_float)} of {total} layers in float that the plan has in "
        f"integers, the first is {first!r} ({op_type}){'; it has ' if wide else ''}"
        f"{' and '.join(wide)}"
    )
    # A runtime may name layers that were split, and so more than were planned.
    part = len(in_float) / max(total, len(in_float), 1)
    remedies = tuple(_for_fallback(plan, in_float))
    return [
        Finding(
            "float_fallback", evidence, SPEED * part, node=first, remedies=remedies, unit="times"
        )
    ]


def _products(plan: QuantizedGraph) -> list[str]:
    """Name the layers that are planned for integers."""
    return [
        str(node.name)
        for node in plan.graph.nodes
        if plan.is_quantized(node) and multiplies(node.op_type)
    ]


def _for_fallback(plan: QuantizedGraph, in_float: Mapping[str, str]) -> Iterator[Remedy]:
    """Yield bits that the runtime has kernels for; or float without quantizers around it."""
    activations, weights = _widest(plan, in_float)
    widths = {"activation_bits": activations, "weight_bits": weights}
    options = {name: _USUAL_BITS for name, bits in widths.items() if bits > _USUAL_BITS}
    if options:
        yield Remedy(options={**options, "bits": None})
    if len(in_float) < len(_products(plan)):
        yield Remedy(options={"keep_float": list(in_float)})
    yield Remedy(
        text="deploy the float model: this runtime has no integer kernels for these layers"
    )


def _widest(plan: QuantizedGraph, nodes: Mapping[str, str]) -> tuple[int, int]:
    """Return the most bits of the activations and of the weights of nodes."""
    activations = weights = 0
    for node in plan.graph.nodes:
        if str(node.name) not in nodes:
            continue
        own = weight_slot(node)
        for slot in data_slots(node):
            if slot != own:
                activations = max(activations, plan.input_config(node, slot).bits)
        if own is not None:
            weights = max(weights, plan.input_config(node, own).bits)
    return activations, weights


# ---- sums that saturate on this processor -----------------------------------------------------


def _saturates_here(plan: QuantizedGraph, runtime: Runtime) -> bool:
    """Tell whether the kernels of this processor saturate sums that the target has exact."""
    target = plan.target
    if target.saturates_pairs:
        return False
    in_onnxruntime = runtime.is_onnxruntime and saturates_pairs()
    return in_onnxruntime or on_this_processor(target).saturates_pairs


def saturation_findings(
    plan: QuantizedGraph, runtime: Runtime, runs: FloatRuns, simulated: Errors
) -> list[Finding]:
    """Find that this processor saturates sums that the target has exact.

    Args:
        plan: The plan that was written.
        runtime: What was written; more than 256 MiB are not run.
        runs: Samples; the first few are run.
        simulated: Errors of the outputs with exact sums.
    """
    # Runs of another graph have other inputs or outputs.
    if plan.graph is not runs.graph or not _saturates_here(plan, runtime):
        return []
    if runtime.run is None or runtime.nbytes() > _MOST_BYTES:
        return []
    try:
        (here,) = runs.first(_FEW).errors(runtime.run)
    except IntactError:  # `verify` says it
        return []
    exact = simulated.decibels
    if all(db > exact.get(name, db) - HALF_DB for name, db in here.decibels.items()):
        return []
    from intact.analyze.diagnose.arithmetic import processor_finding  # with much else

    found = processor_finding(plan, here, simulated)
    return [] if found is None else [found]


# ---- slower than float ------------------------------------------------------------------------


class SlowerTimes(msgspec.Struct, frozen=True):
    """Times of one run, in seconds.

    Attributes:
        in_float: Time of the float model.
        quantized: Time of the quantized model.
        rounds: Number of rounds, in all of which it was slower.
    """

    in_float: float
    quantized: float
    rounds: int

    def in_words(self, feeds: Batch) -> str:
        """Say what a batch takes."""
        return (
            f"a batch of {len(next(iter(feeds.values())))} takes {1e3 * self.quantized:.3g} ms "
            f"quantized and {1e3 * self.in_float:.3g} ms in float on one thread"
        )

    @property
    def lost(self) -> float:
        """The part of the time that float would save."""
        return 1 - self.in_float / self.quantized


def slowness_findings(plan: QuantizedGraph, runtime: Runtime, feeds: Batch) -> list[Finding]:
    """Find that a result is slower than the float model, and why.

    Args:
        plan: The plan.
        runtime: What was written.
        feeds: The inputs of a batch.
    """
    if runtime.load is None:
        return []
    slower = time_if_slower(plan.graph, runtime, feeds)
    if slower is None:
        return []
    kernels = [] if runtime.profile is None else runtime.profile(feeds, _PROFILED)
    total = sum(each.seconds for each in kernels)
    moved = sum(each.seconds for each in kernels if each.op_type in QUANTIZERS)
    moved = moved / total if total else 0.0
    evidence = (
        f"{slower.in_words(feeds)}, slower in each of {slower.rounds} rounds; {100 * moved:.0f} % "
        "of it are quantizers"
    )
    # Without its words: here something has to be faster.
    narrower = _for_fallback(plan, runtime.in_float) if runtime.in_float else ()
    remedies = (*(each for each in narrower if each.options), faster(plan))
    # Where a layer runs in float, that is why.
    lost = min(slower.lost, WORTH_OF_TIME) if runtime.in_float else slower.lost
    severity = SPEED * lost
    return [Finding("slower_than_float", evidence, severity, remedies=remedies, unit="times")]


def slow_sign(
    runtime: Runtime,
    feeds: Batch,
    load_float: Callable[[], Callable[[Batch], object]],
    seconds: float,
    remedy: Remedy = Remedy(options=FASTEST),  # noqa: B008  (frozen)
) -> list[Finding]:
    """Find that a result is slower than float, in a small part of the time that making it took.

    Args:
        runtime: What was written.
        feeds: The inputs of a batch.
        load_float: Loads the float model, to be run on one thread.
        seconds: What making the result took.
        remedy: What is faster.
    """
    if runtime.load is None:
        return []
    most, start = LONG_RUNS_SHARE * seconds, time.perf_counter()
    in_float = load_float()
    loaded = time.perf_counter()
    in_float(feeds)
    spent = time.perf_counter() - loaded
    if 2 * (loaded - start) > most or 2 * _ROUNDS * spent > most:
        return []  # loading the other one too, or the blocks, would take longer
    run = runtime.load()
    loaded = time.perf_counter()
    run(feeds)
    spent += time.perf_counter() - loaded
    little, most = (part * seconds - spent for part in (2 * SLOWNESS_SHARE, LONG_RUNS_SHARE))
    if most <= 0:
        return []
    blocks = _blocks_of_both(
        lambda: in_float(feeds),
        lambda: run(feeds),
        runtime.clock,
        min(max(little, 0.0) / 2, SLOWNESS_SECONDS),
        most,
    )
    slower = _always_slower(blocks)
    if slower is None:
        return []
    evidence, severity = slower.in_words(feeds), SPEED * slower.lost
    return [Finding("slower_than_float", evidence, severity, remedies=(remedy,), unit="times")]


def faster(plan: QuantizedGraph) -> Remedy:
    """Return what is faster: nodes of integers in float, or what is no node of integers."""
    if any(each.quantized for each in plan.decisions.values()):
        return Remedy(options=FASTEST)
    configs = plan.configs.values()
    if any(is_in_blocks(config) for config in configs):
        what = "weights in blocks are less to read, not less to compute"
        return Remedy(text=f"{what}: --activations dynamic computes with integers")
    if any(is_cached(config) for config in configs):
        what = "caches of codes take less memory, not less time"
        return Remedy(text=f"{what}: without --cache-bits they are floats")
    return Remedy(options=FASTEST)


def time_if_slower(graph: Graph, runtime: Runtime, feeds: Batch) -> SlowerTimes | None:
    """Time both models in turn until the quantized one is not slower once.

    It runs as applications run it by default, but with one thread.

    Returns:
        None where it is not slower in each round, or where the models are too small to be timed.
    """
    return _always_slower(_time_both(graph, runtime, feeds, LONG_RUNS_SECONDS))


def speedup(graph: Graph, runtime: Runtime, feeds: Batch) -> float:
    """Return how many times as fast as the float model the quantized one is, on one thread.

    Raises:
        ExportError: No runtime here runs both.
    """
    blocks = list(_time_both(graph, runtime, feeds))
    first, second = (min(min(each[at]) for each in blocks) for at in (0, 1))
    return first / second


def _time_both(
    graph: Graph, runtime: Runtime, feeds: Batch, longest: float = 0.0
) -> Iterator[tuple[list[float], ...]]:
    """Yield blocks of times of both models, in float first; the first run of each is not timed."""
    if runtime.load is None or runtime.load_float is None:
        raise ExportError("no runtime here runs both models", remedy="measure on the hardware")
    in_float, run = runtime.load_float(graph), runtime.load()
    in_float(feeds), run(feeds)
    yield from _blocks_of_both(
        lambda: in_float(feeds), lambda: run(feeds), runtime.clock, longest=longest
    )


def _blocks_of_both(
    in_float: Callable[[], object],
    quantized: Callable[[], object],
    clock: Callable[[], float],
    seconds: float = SLOWNESS_SECONDS,
    longest: float = 0.0,
) -> Iterator[tuple[list[float], ...]]:
    """Time both models in turn, each on one thread.

    Args:
        in_float: Runs the float model once.
        quantized: Runs the quantized one.
        clock: Counts the time of that thread: whatever else the machine does is no alarm.
        seconds: Time for each of them, in all.
        longest: Time for both, where runs are long.
    """
    return blocks_in_turn((in_float, quantized), seconds=2 * seconds, clock=clock, longest=longest)


def _always_slower(blocks: Iterable[tuple[list[float], ...]]) -> SlowerTimes | None:
    """Return the times if the second is slower in each block."""
    times: list[tuple[float, float]] = []
    least = min(SLOWER.values())
    for at, (one, other) in enumerate(blocks):
        # The fastest run of a block is least disturbed by others.
        pair = min(one), min(other)
        # Ends with the first block that is not slower: most results need one.
        if min(pair) >= SHORTEST_SECONDS and pair[1] >= least * pair[0]:
            times.append(pair)
        elif at or min(pair) < SHORTEST_SECONDS or least * pair[1] < pair[0]:
            return None
        # else both may still have been warming up: it is not counted
    wanted = min((each for rounds, each in SLOWER.items() if rounds <= len(times)), default=None)
    if wanted is None or any(quantized < wanted * in_float for in_float, quantized in times):
        return None
    fastest = [min(column) for column in zip(*times, strict=True)]
    return SlowerTimes(fastest[0], fastest[1], len(times))
