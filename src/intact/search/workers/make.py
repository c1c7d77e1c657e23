"""Which pool a search runs in."""

from __future__ import annotations

import os

from intact.errors import UsageError
from intact.search.workers.crew import Crew
from intact.search.workers.pool import Inline, Measurer, Pool
from intact.search.workers.processes import ProcessSite, Savable
from intact.search.workers.ray_ import RaySite

MOST_WORKERS = 1024


def make_pool(
    bench: Savable,
    workers: int = 1,
    *,
    threads: int = 0,
    distributed: bool = False,
    address: str | None = None,
) -> Pool:
    """Make a pool; nothing is started before it is used.

    Args:
        bench: What is measured with.
        workers: Candidates measured at a time.
        threads: Of a machine, shared out to the workers; 0 takes all cores. A cluster shares out
            what it has.
        distributed: Use Ray: the cluster at ``address``, that of the variable ``RAY_ADDRESS``, the
            one that the program is connected to already, or else one of this machine only.
        address: Of a Ray cluster; asks for ``distributed``.

    Raises:
        UsageError: The number of workers is out of range.
        MissingExtraError: Ray is wanted and not installed.
    """
    if not 1 <= workers <= MOST_WORKERS:
        raise UsageError(f"{workers} workers", remedy=f"give 1 to {MOST_WORKERS}")
    if distributed or address is not None:
        return Crew(RaySite(bench, workers, address), workers)
    if workers == 1:
        return Inline(lambda: _evaluator(bench, threads))
    return Crew(ProcessSite(bench, max(1, (threads or cores()) // workers)), workers)


def cores() -> int:
    """Count the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _evaluator(bench: Savable, threads: int) -> Measurer:
    from intact.search.measuring.evaluator import Bench, Evaluator

    if not isinstance(bench, Bench):
        raise TypeError(f"{type(bench).__name__} is no bench")
    return Evaluator(bench, threads=threads)
