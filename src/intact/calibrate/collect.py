"""The one pass over the samples: stream, observe, count."""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from intact.calibrate.observer import Observer
from intact.calibrate.samples import Batch, Samples
from intact.calibrate.statistics import Statistics, TensorStatistics
from intact.graph import Graph
from intact.numerics.histogram import accumulate, new_workspace

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

    Memory does not grow with the number of samples: one batch of activations a thread is in
    flight, and each tensor keeps 512 KiB of counts.

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
    statistics = Statistics(graph.hash, {name: TensorStatistics() for name in tensors})
    workers = threads or os.cpu_count() or 1
    count_batch = _Counter(observer, statistics, workers)
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
    return statistics


class _Counter:
    """Runs batches and counts them, from several threads at once.

    Tensors are locked one by one; each thread starts with another tensor, so that they seldom
    meet. The order in which batches are added leaves no trace.
    """

    def __init__(self, observer: Observer, statistics: Statistics, workers: int) -> None:
        self._observer = observer
        self._statistics = statistics
        self._locks = {name: threading.Lock() for name in statistics.tensors}
        self._stride = max(1, len(self._locks) // workers)
        self._local = threading.local()
        self._started = itertools.count()

    def __call__(self, batch: Batch, count: int) -> int:
        """Count one batch and return its number of samples."""
        local = self._local
        if not hasattr(local, "workspace"):
            local.workspace, local.start = new_workspace(), next(self._started) * self._stride
        rows = self._observer.run(batch, count)
        names = list(rows)
        first = local.start % max(1, len(names))
        for name in names[first:] + names[:first]:
            tensor = self._statistics.tensors[name]
            with self._locks[name]:
                tensor.add(accumulate(rows[name], tensor.counts, local.workspace))
        return count
