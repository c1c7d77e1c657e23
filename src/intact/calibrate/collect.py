"""The one pass over the samples: stream, observe, count."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from intact.calibrate.observer import Observer
from intact.calibrate.samples import Samples
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

    Memory does not grow with the number of samples: one batch of activations is in flight, and
    each tensor keeps 512 KiB of counts.

    Args:
        graph: The float model.
        samples: What to run it on.
        tensors: Names of the values to observe; a plan's ``required_tensors``.
        threads: Threads of the runtime and of the counting; 0 takes all cores.
        progress: Told after every batch.

    Returns:
        The same statistics whatever the order and the batching of the samples.

    Raises:
        DataError: A sample does not fit the model.
        CalibrationError: A tensor does not exist.
    """
    observer = Observer(graph, tensors, threads=threads)
    statistics = Statistics(graph.hash, {name: TensorStatistics() for name in tensors})
    done = 0
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        count_rows = _Counter(statistics)
        for batch, count in samples.batches(observer.batch_size):
            rows = observer.run(batch, count)
            largest_first = sorted(rows.items(), key=lambda item: -item[1].size)
            list(pool.map(count_rows, largest_first))
            done += count
            if progress is not None:
                progress(done, samples.count)
    return statistics


class _Counter:
    """Counts one tensor's rows; called from several threads, each with scratch tables of its own."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._local = threading.local()

    def __call__(self, item: tuple[str, npt.NDArray[np.float32]]) -> None:
        name, rows = item
        if not hasattr(self._local, "workspace"):
            self._local.workspace = new_workspace()
        tensor = self._statistics.tensors[name]
        tensor.add(accumulate(rows, tensor.counts, self._local.workspace))
