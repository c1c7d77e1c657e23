"""The one pass over the samples: stream, observe, count."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from intact.calibrate.observer import Observer
from intact.calibrate.samples import Batch, Samples
from intact.calibrate.statistics import Statistics, TensorStatistics
from intact.graph import Graph
from intact.numerics.histogram import BINS, Accumulator, SampleStatistics

_COUNTS_BYTES = 1 << 30
"""Memory for the counts of all threads; beyond it fewer threads are used."""
_BYTES_A_BIN = 16
"""int64 counts and the part of the scratch tables that is in use."""
_GATHERED = 64
"""Batches gathered by a thread before they are folded in."""

Progress = Callable[[int, int | None], None]
"""Called with the samples done and, where known, the samples in all."""


def collect(
    graph: Graph,
    samples: Samples,
    tensors: Sequence[str],
    *,
    threads: int = 0,
    progress: Progress | None = None,
) -> Statistics:
    """Observe tensors of the float model over all samples, once.

    Memory does not grow with the number of samples: each thread has one batch of activations in
    flight and 512 KiB of counts a tensor.

    Args:
        graph: The float model.
        samples: What to run it on.
        tensors: Names of the values to observe; a plan's ``required_tensors``.
        threads: Batches that run side by side; 0 takes all cores. The floats are the same for
            any number.
        progress: Told after every batch.

    Returns:
        The same statistics whatever the order and the batching of the samples.

    Raises:
        DataError: A sample does not fit the model.
        CalibrationError: A tensor does not exist.
    """
    observer = Observer(graph, tensors)
    workers = _worker_count(threads, len(tensors))
    local = threading.local()
    counters: list[_Counter] = []

    def count_batch(batch: Batch, count: int) -> int:
        if not hasattr(local, "counter"):
            local.counter = _Counter(observer)
            counters.append(local.counter)
        local.counter.add(batch, count)
        return count

    done = 0
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[int]] = deque()
        try:
            for batch, count in samples.batches(observer.batch_size):
                waiting.append(pool.submit(count_batch, batch, count))
                if len(waiting) > workers:  # bounded: samples are read no faster than they are run
                    done += waiting.popleft().result()
                    if progress is not None:
                        progress(done, samples.count)
            for future in waiting:
                done += future.result()
        finally:
            pool.shutdown(cancel_futures=True)
    if progress is not None:
        progress(done, samples.count)
    statistics = counters[0].statistics(graph.hash)
    for counter in counters[1:]:
        statistics.merge(counter.statistics(graph.hash))
    return statistics


def _worker_count(threads: int, tensors: int) -> int:
    """Return how many batches run side by side, within the memory for their counts."""
    wanted = threads or os.cpu_count() or 1
    return max(1, min(wanted, _COUNTS_BYTES // (tensors * BINS * _BYTES_A_BIN + 1)))


class _Counter:
    """What one thread has counted: merged exactly with the others at the end."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._accumulator = Accumulator(len(observer.tensors))
        self._gathered: list[SampleStatistics] = []
        counts = self._accumulator.counts()
        self._tensors = [TensorStatistics(counts=row) for row in counts]

    def add(self, batch: Batch, count: int) -> None:
        """Run and count one batch."""
        seen = self._observer.run(batch, count)
        rows = self._accumulator.add(seen.values, seen.starts, seen.elements, count)
        self._gathered.append(rows)
        if len(self._gathered) >= _GATHERED:
            self._settle()

    def statistics(self, model_hash: str) -> Statistics:
        """Return what was counted."""
        self._settle()
        self._accumulator.counts()  # moves what the scratch tables hold into the tensors' rows
        return Statistics(model_hash, dict(zip(self._observer.tensors, self._tensors, strict=True)))

    def _settle(self) -> None:
        """Fold the gathered samples in, many at a time, since each fold costs some array calls."""
        if not self._gathered:
            return
        joined = SampleStatistics(
            *(np.concatenate(parts, axis=1) for parts in zip(*self._gathered, strict=True))
        )
        self._gathered.clear()
        for position, tensor in enumerate(self._tensors):
            tensor.add(SampleStatistics(*(part[position] for part in joined)))
