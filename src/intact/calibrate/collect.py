"""The one pass over the samples: stream, observe, count."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from intact.calibrate.observer import Observer
from intact.calibrate.statistics import Statistics, TensorStatistics
from intact.graph import Graph
from intact.numerics.histogram import BINS, Accumulator, SampleStatistics
from intact.samples.stream import Batch, Samples

_COUNTS_BYTES = 1 << 30
"""Memory for the counts of all threads; beyond it fewer threads are used."""
_BYTES_A_BIN = 16
"""int64 counts and the part of the scratch tables that is in use."""
_GATHERED = 64
"""Batches gathered by a thread before they are folded in."""
_NO_COUNTS = np.zeros(0, np.int64)
"""Stands in for a tensor's counts while they are in the accumulator."""

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
    feed = _Feed(samples, observer.batch_size, progress)
    workers = _worker_count(threads, len(tensors))
    with ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(_count_all, observer, feed) for _ in range(workers)]
        try:
            counters = [future.result() for future in waiting]
        finally:
            feed.stop()  # an error or Ctrl-C: the others end with the batch they have
    first, *others = counters
    for counter in others:
        first.absorb(counter)
    return first.statistics(graph.hash)


def _count_all(observer: Observer, feed: _Feed) -> _Counter:
    """Count batches until there are none left; one thread's work."""
    counter = _Counter(observer)
    try:
        for batch, count in feed:
            counter.add(batch, count)
    except BaseException:
        feed.stop()
        raise
    return counter


class _Feed:
    """Batches that several threads take in turn, each when it has room for one.

    Samples are read no faster than they are run, and no thread waits for another's hand-over.
    """

    def __init__(self, samples: Samples, size: int, progress: Progress | None) -> None:
        self._batches = samples.batches(size)
        self._lock = threading.Lock()
        self._stopped = False
        self._progress = progress
        self._all = samples.count
        self._given = 0

    def __iter__(self) -> Iterator[tuple[Batch, int]]:
        return self

    def __next__(self) -> tuple[Batch, int]:
        """Return the next batch and its number of real samples."""
        with self._lock:
            if self._progress is not None and self._given:
                self._progress(self._given, self._all)
            if self._stopped:
                raise StopIteration
            batch, count = next(self._batches)
            self._given += count
            return batch, count

    def stop(self) -> None:
        """Give out no more."""
        self._stopped = True


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
        self._tensors = [TensorStatistics(counts=_NO_COUNTS) for _ in observer.tensors]

    def add(self, batch: Batch, count: int) -> None:
        """Run and count one batch."""
        seen = self._observer.run(batch, count)
        rows = self._accumulator.add(seen.values, seen.starts, seen.elements, count)
        self._gathered.append(rows)
        if len(self._gathered) >= _GATHERED:
            self._settle()

    def absorb(self, other: _Counter) -> None:
        """Take over what another thread has counted, exactly."""
        self._settle()
        other._settle()
        for mine, theirs in zip(self._tensors, other._tensors, strict=True):
            mine.merge(theirs)
        self._accumulator.absorb(other._accumulator)

    def statistics(self, model_hash: str) -> Statistics:
        """Return what was counted."""
        self._settle()
        for tensor, row in zip(self._tensors, self._accumulator.counts(), strict=True):
            tensor.counts = row
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
