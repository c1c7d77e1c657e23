"""Whether a result is slower than the float model: told at the end of every quantization."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from intact.data.batching import Batch
from intact.flow.latency import timed_blocks
from intact.formats.registry import ONNX_QDQ

if TYPE_CHECKING:
    from intact.analyze.diagnose.findings import Finding
    from intact.flow.result import Result

_SECONDS = 1.0
"""For each of the two models that are timed, in all."""
_ROUNDS = 3
"""How many times a model must be slower, at least; where there is time for five, each of them."""
_SLOWER = 1.15
"""Times as long as the float model takes, from which on it is no chance."""
_LEAST_SECONDS = 2e-4
"""Models that take less are not timed: the call takes as long as the kernels."""
_LITTLE = 0.025
"""Part of the time of a quantization that the sign of slowness may take for each model."""
SPEED = 0.5
"""Severity of what costs nothing but time: what makes outputs wrong comes first."""
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
    if next(iter(result.exports)) != ONNX_QDQ:
        return []
    from intact.formats.onnx_qdq.run import QdqRuntime

    start = time.perf_counter()
    in_float(feeds)
    if time.perf_counter() - start > _LITTLE * seconds / _ROUNDS:
        return []  # the blocks would take longer
    written = result.exported
    runtime = QdqRuntime(written.model, threads=1, exact=False, message=written.message)
    left = 2 * _LITTLE * seconds - (time.perf_counter() - start)
    if left <= 0:
        return []
    runtime.run(feeds)
    slower = always_slower(
        timed_blocks(
            lambda: in_float(feeds),
            lambda: runtime.run(feeds),
            seconds=min(left / 2, _SECONDS),
            clock=time.thread_time,
        )
    )
    if slower is None:
        return []
    evidence = (
        f"a batch of {len(next(iter(feeds.values())))} takes {1e3 * slower.quantized:.3g} ms "
        f"quantized and {1e3 * slower.in_float:.3g} ms in float on one thread"
    )
    from intact.analyze.diagnose.findings import Finding, Remedy  # with much else

    severity = SPEED * (1 - slower.in_float / slower.quantized)
    remedies = (Remedy(options=FASTEST),)
    return [Finding("slower_than_float", evidence, severity, remedies=remedies, unit="times")]


def always_slower(blocks: Iterable[tuple[list[float], list[float]]]) -> Slower | None:
    """Return the times if the second is slower in each block."""
    times: list[tuple[float, float]] = []
    for one, other in blocks:
        pair = min(one), min(other)
        if min(pair) < _LEAST_SECONDS or pair[1] < _SLOWER * pair[0]:
            return None
        times.append(pair)
    if len(times) < _ROUNDS:
        return None
    fastest = [min(column) for column in zip(*times, strict=True)]
    return Slower(fastest[0], fastest[1], len(times))
