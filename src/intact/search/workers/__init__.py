"""Pools that measure candidates: in this process, in processes beside it, or on a Ray cluster."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from intact.errors import UsageError
from intact.search.workers.pool import InlinePool, Measurer, Pool, WorkerPool
from intact.search.workers.processes import ProcessLauncher
from intact.search.workers.ray_ import RayLauncher

if TYPE_CHECKING:
    from intact.search.measuring.trial_data import TrialData

MOST_WORKERS = 1024

__all__ = ["MOST_WORKERS", "Pool", "cores", "make_pool"]


def make_pool(
    trial_data: TrialData,
    workers: int = 1,
    *,
    threads: int = 0,
    distributed: bool = False,
    address: str | None = None,
) -> Pool:
    """Make a pool; nothing is started before it is used.

    Args:
        trial_data: What workers load.
        workers: Number of candidates measured in parallel.
        threads: Threads of this machine, divided among the workers; 0 uses all cores. On a cluster
            its own processors are divided.
        distributed: Use Ray: the cluster at ``address``, in the variable ``RAY_ADDRESS``, or that
            the program is already connected to; otherwise a new one on this machine.
        address: Address of a Ray cluster; implies ``distributed``.

    Raises:
        UsageError: The number of workers is out of range.
        MissingExtraError: Ray is required and not installed.
    """
    if not 1 <= workers <= MOST_WORKERS:
        raise UsageError(f"{workers} workers", remedy=f"give 1 to {MOST_WORKERS}")
    if workers == 1 and not distributed and address is None:
        return InlinePool(lambda: _evaluator(trial_data, threads))
    from intact.search.measuring.trial_data_file import SavedTrialData

    job = SavedTrialData(trial_data)
    if distributed or address is not None:
        return WorkerPool(RayLauncher(job, workers, address), workers)
    return WorkerPool(ProcessLauncher(job, max(1, (threads or cores()) // workers)), workers)


def cores() -> int:
    """Count the processors available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _evaluator(trial_data: TrialData, threads: int) -> Measurer:
    from intact.search.measuring.evaluator import Evaluator

    return Evaluator(trial_data, threads=threads)
