"""What the runtime makes of a result on this processor: told at the end of every quantization.

Sums that saturate, and whether it is slower than the float model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import msgspec

from intact.data.batching import Batch
from intact.engines.cpu import on_this_processor
from intact.engines.exact_sums import HEARD_DB, saturates_pairs
from intact.engines.latency import blocks_in_turn
from intact.errors import IntactError
from intact.formats.base.format import Deployed
from intact.formats.registry import FORMATS, ONNX_QDQ

if TYPE_CHECKING:
    from intact.analyze.diagnose.findings import Finding
    from intact.calibrate.choice import Errors, FloatRuns, Run
    from intact.results.result import Result

_SECONDS = 1.0
"""For each of the two models that are timed, in all."""
_SLOWER = {3: 1.15, 5: 1.05}
"""Times as long as the float model takes, in each of so many rounds, from which on it is no chance:
a little in three rounds may be."""
_ROUNDS = min(_SLOWER)
"""How many times a model must be slower, at least; where there is time for five, each of them."""
_LEAST_SECONDS = 2e-4
"""Models that take less are not timed: the call takes as long as the kernels."""
_LITTLE = 0.025
"""Part of the time of a quantization that the sign of slowness may take for each model."""
SPEED = 0.5
"""Severity of what costs nothing but time: what makes outputs wrong comes first."""
_FEW = 8
"""Samples that show what saturating sums cost."""
_MOST_BYTES = 1 << 28
"""Of what was written: larger files are not loaded again only to see whether sums saturate."""
FASTEST = {"fastest": True}
"""The options that mend it."""


class Slower(msgspec.Struct, frozen=True):
    """Times of one run, in seconds.

    Attributes:
        in_float: Of the float model.
        quantized: Of the quantized model.
        rounds: In how many rounds it was slower: in all of them.
    """

    in_float: float
    quantized: float
    rounds: int

    def told(self, feeds: Batch) -> str:
        """Say what a batch takes."""
        return (
            f"a batch of {len(next(iter(feeds.values())))} takes {1e3 * self.quantized:.3g} ms "
            f"quantized and {1e3 * self.in_float:.3g} ms in float on one thread"
        )

    @property
    def lost(self) -> float:
        """The part of the time that float would save."""
        return 1 - self.in_float / self.quantized


def deployed_alone(result: Result) -> Deployed | None:
    """Return what is deployed, on one thread; None where no runtime runs it and float models."""
    name, exported = next(iter(result.exports.items()))
    runtime = FORMATS[name].runtime
    if runtime is None or not runtime.runs_float:
        return None
    return Deployed(result.plan, exported, None, 1)


def runner_of(result: Result) -> Callable[[Batch], Any] | None:
    """Load what is deployed as applications do, on one thread; None as of `deployed_alone`."""
    deployed, runtime = deployed_alone(result), FORMATS[next(iter(result.exports))].runtime
    if deployed is None or runtime is None or not runtime.is_timed:
        return None
    return runtime.runner(deployed)


def blocks_of_both(
    in_float: Callable[[], object], quantized: Callable[[], object], seconds: float = _SECONDS
) -> Iterator[tuple[list[float], ...]]:
    """Time both models in turn, each on one thread, whose own time is counted.

    So whatever else the machine does is no alarm.

    Args:
        in_float: Runs the float model once.
        quantized: Runs the quantized one.
        seconds: For each of them, in all.
    """
    return blocks_in_turn((in_float, quantized), seconds=2 * seconds, clock=time.thread_time)


def deployed_run(result: Result) -> Run | None:
    """Return what runs the deployed model as applications do, on one thread; None if nothing does.

    The model is loaded when it is first run.
    """
    name, exported = next(iter(result.exports.items()))
    runtime = FORMATS[name].runtime
    if runtime is None or not runtime.can_run(exported):
        return None
    deployed = Deployed(result.plan, exported, None, 1)
    if not runtime.runs_numbers:
        return partial(runtime.run, deployed)
    loaded, turn = cache(partial(runtime.runner, deployed)), Lock()

    def as_loaded(feeds: Batch) -> Batch:
        with turn:  # OpenVINO runs one batch at a time
            outputs: Batch = loaded()(feeds)
        return outputs

    return as_loaded


def _saturates_here(result: Result) -> bool:
    """Tell whether the kernels of this processor saturate sums that the target has exact."""
    target = result.plan.target
    if target.saturates_pairs:
        return False
    in_onnxruntime = next(iter(result.exports)) == ONNX_QDQ and saturates_pairs()
    return in_onnxruntime or on_this_processor(target).saturates_pairs


def saturation_sign(result: Result, runs: FloatRuns, simulated: Errors) -> list[Finding]:
    """Find that this processor saturates sums that the target has exact.

    Args:
        result: As written; one of more than 256 MiB is not run.
        runs: Samples; the first few are run.
        simulated: Errors of the outputs with exact sums.
    """
    plan, exported = result.plan, next(iter(result.exports.values()))
    if plan.graph is not runs.graph or not _saturates_here(result):
        return []
    run = deployed_run(result) if exported.nbytes() <= _MOST_BYTES else None
    if run is None:
        return []
    try:
        (here,) = runs.first(_FEW).errors(run)
    except IntactError:  # `verify` says it
        return []
    exact = simulated.decibels
    if all(db > exact.get(name, db) - HEARD_DB for name, db in here.decibels.items()):
        return []
    from intact.analyze.diagnose.arithmetic import processor_finding  # with much else

    found = processor_finding(plan, here, simulated)
    return [] if found is None else [found]


def slow_sign(
    result: Result, feeds: Batch, in_float: Callable[[Batch], object], seconds: float
) -> list[Finding]:
    """Find that a result is slower than float, in a small part of the time that making it took.

    Args:
        result: As written.
        feeds: The inputs of a batch.
        in_float: Runs the float model on one thread.
        seconds: What making the result took.
    """
    if deployed_alone(result) is None:
        return []
    start = time.perf_counter()
    in_float(feeds)
    if time.perf_counter() - start > _LITTLE * seconds / _ROUNDS:
        return []  # the blocks would take longer
    run = runner_of(result)
    left = 2 * _LITTLE * seconds - (time.perf_counter() - start)
    if run is None or left <= 0:
        return []
    run(feeds)
    blocks = blocks_of_both(lambda: in_float(feeds), lambda: run(feeds), min(left / 2, _SECONDS))
    slower = always_slower(blocks)
    if slower is None:
        return []
    from intact.analyze.diagnose.findings import Finding, Remedy  # with much else

    evidence, severity = slower.told(feeds), SPEED * slower.lost
    remedies = (Remedy(options=FASTEST),)
    return [Finding("slower_than_float", evidence, severity, remedies=remedies, unit="times")]


def always_slower(blocks: Iterable[tuple[list[float], ...]]) -> Slower | None:
    """Return the times if the second is slower in each block."""
    times: list[tuple[float, float]] = []
    for one, other in blocks:
        pair = min(one), min(other)
        if min(pair) < _LEAST_SECONDS or pair[1] < min(_SLOWER.values()) * pair[0]:
            return None
        times.append(pair)
    wanted = min((each for rounds, each in _SLOWER.items() if rounds <= len(times)), default=None)
    if wanted is None or any(quantized < wanted * in_float for in_float, quantized in times):
        return None
    fastest = [min(column) for column in zip(*times, strict=True)]
    return Slower(fastest[0], fastest[1], len(times))
