"""Times models against each other on a machine that also does other things, in bounded time.

Models are run in turn, in blocks of a few runs each, and compared round by round: whatever slows
the machine down then slows both. `latencies` compares two models by medians, as reports show them.
`in_turn` and `lower_quartiles` rank several, which a placement chooses from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from intact.limits import LATENCY_SECONDS

_BLOCKS, _WARM_UP, _TIMED = 5, 2, 5
_ROUNDS = 16


class Latency(NamedTuple):
    """Times of two models, run in turn.

    Attributes:
        milliseconds: Medians of both, over blocks of the medians in each.
        ratio: The median over blocks of the first one's time over the second's.
        runs: How many runs of each were timed.
    """

    milliseconds: tuple[float, float]
    ratio: float
    runs: tuple[int, int]


def latencies(
    first: Callable[[], object], second: Callable[[], object], *, seconds: float = LATENCY_SECONDS
) -> Latency:
    """Time blocks of runs in turn, as many as there is time for.

    Blocks, because the threads of the session that ran last keep spinning for a while: run by
    run, each would be timed while the other's threads hold the cores.

    Args:
        first: Runs a model once; it has run before, or its first runs count where they are long.
        second: Runs the other.
        seconds: For each of them.
    """
    blocks = list(blocks_in_turn((first, second), seconds=2 * seconds))
    pairs = np.array([(np.median(one), np.median(other)) for one, other in blocks])
    one, other = (1e3 * np.median(pairs, axis=0)).tolist()
    counts = (sum(len(a) for a, _ in blocks), sum(len(b) for _, b in blocks))
    return Latency((one, other), float(np.median(pairs[:, 0] / pairs[:, 1])), counts)


def blocks_in_turn(
    runs: Sequence[Callable[[], object]],
    *,
    seconds: float,
    rounds: int = _BLOCKS,
    clock: Callable[[], float] | None = None,
    longest: float = 0.0,
) -> Iterator[tuple[list[float], ...]]:
    """Yield rounds of blocks of runs, one block of each model, in seconds a run.

    Args:
        runs: Each runs a model once, as for `latencies`.
        seconds: For all, in all; one round is timed however long it takes.
        rounds: At most, as there is time for.
        clock: Tells the seconds of the runs; None for wall time. ``seconds`` is wall time in any
            case.
        longest: Seconds in all, instead of ``seconds`` where that is less, for runs so long that
            each block is a single one.
    """
    clock = time.perf_counter if clock is None else clock
    share = seconds / rounds / max(len(runs), 1)
    start = last = time.perf_counter()
    for _ in range(rounds):
        yield tuple(_block(run, share, clock) for run in runs)
        now = time.perf_counter()
        # The next round would take as long as this one.
        if now - start + (now - last) > max(seconds, longest):
            return
        last = now


def _block(
    function: Callable[[], object], seconds: float, clock: Callable[[], float]
) -> list[float]:
    """Return the seconds of a few runs, the first ones left out where there is time for others."""
    times: list[float] = []
    # At least one run however long it takes; the first ones warm caches and clock up the processor.
    while not times or (len(times) < _WARM_UP + _TIMED and sum(times) < seconds):
        start = clock()
        function()
        times.append(clock() - start)
    return times[_WARM_UP:] or times[-1:]


def in_turn(
    runs: Sequence[Callable[[], object]], *, seconds: float, rounds: int = _ROUNDS
) -> list[tuple[float, ...]]:
    """Time several models in rounds, a block of runs of each in every round.

    Args:
        runs: Each runs a model once.
        seconds: For all, in all; one round is timed however long it takes.
        rounds: At most.

    Returns:
        For each round the seconds of the fastest run of each: what else a machine does only adds.
    """
    blocks = blocks_in_turn(runs, seconds=seconds, rounds=rounds)
    return [tuple(map(min, each)) for each in blocks]


def lower_quartiles(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Return what each model takes: the lower quartile over rounds.

    Whatever else the machine does makes rounds longer, often most of them; a clock that jumps
    makes one of them nonsense, shorter or longer.
    """
    return [sorted(column)[len(column) // 4] for column in zip(*rounds, strict=True)]
