"""How long two models take beside each other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

_BLOCKS, _WARM_UP, _TIMED = 5, 2, 5


def latencies(
    first: Callable[[], object], second: Callable[[], object]
) -> tuple[tuple[float, float], float]:
    """Return the median milliseconds of both and the median ratio of blocks run in turn.

    Blocks, because the threads of the session that ran last keep spinning for a while: run by
    run, each would be timed while the other's threads hold the cores.
    """
    blocks = [(_block(first), _block(second)) for _ in range(_BLOCKS)]
    medians = [1e3 * statistics.median(column) for column in zip(*blocks, strict=True)]
    return (medians[0], medians[1]), statistics.median(a / b for a, b in blocks)


def _block(function: Callable[[], object]) -> float:
    """Return the median seconds of a few runs, the first ones left out."""
    times = [_seconds(function) for _ in range(_WARM_UP + _TIMED)]
    return statistics.median(times[_WARM_UP:])


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
