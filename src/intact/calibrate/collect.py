"""Runs the float model over the samples and counts the values of its tensors.

One pass does, or several where memory is limited or a method counts a second time.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from intact.calibrate.observe.budget import (
    Schedule,
    known_sizes,
    part_observers,
    schedule,
    sizes_of_observed,
    worker_count,
)
from intact.calibrate.observe.observer import Observed, Observer
from intact.calibrate.statistics import Statistics, TensorStatistics
from intact.data.batching import Batch
from intact.data.chosen_samples import ChosenSamples
from intact.data.mask import RealPositions
from intact.data.progress import Progress
from intact.data.stream import AGAIN, Samples
from intact.errors import CalibrationError
from intact.graph import Graph
from intact.graph.caches import growing_inputs
from intact.numerics.histogram import Accumulator, SampleStatistics
from intact.numerics.histogram_kernel import KERNELS

if TYPE_CHECKING:
    from intact.calibrate.observe.padding import Padding


_GATHERED = 64
"""Counts of batches gathered by a thread before they are folded in."""

R = TypeVar("R", bound="_Reader")

_NO_COUNTS = np.zeros(0, np.int64)
"""Stands in for a tensor's counts while they are in the accumulator."""


class _Reason(NamedTuple):
    """Why samples are read several times."""

    text: str
    way_out: str


_MEMORY = _Reason("within the memory allowed", "allow more memory")
_METHOD = _Reason("for this threshold method", "use kl_stepwise, which reads them once")


class _Reader(ABC):
    """The part of a pass that one thread does: it runs batches and counts their tensors."""

    def __init__(self, observer: Observer, padding: Padding | None) -> None:
        self._observer = observer
        self._padding = padding

    def add(self, batch: Batch, count: int, real: RealPositions | None) -> None:
        """Run one batch, and count it or gather it until some are counted at once."""
        if self._padding is None or real is None:
            self._take(self._observer.add(batch, count))
            return
        for each in self._padding.real_parts(self._observer.run(batch, count), real):
            self._count(each)

    def end(self) -> None:
        """Count what is gathered; in the thread that has run it."""
        self._take(self._observer.rest())

    def _take(self, seen: Observed | None) -> None:
        if seen is not None:
            self._count(seen)

    @abstractmethod
    def _count(self, seen: Observed) -> None:
        """Count what was observed."""


class Counter(_Reader):
    """The counts of one thread, which are merged exactly with the others at the end."""

    def __init__(self, observer: Observer, padding: Padding | None) -> None:
        super().__init__(observer, padding)
        # Counts stay in the accumulator until the end, and tensors hold an empty array meanwhile:
        # the 512 KiB of each are there once in a thread.
        self._accumulator = Accumulator(len(observer.tensors))
        self._gathered: list[SampleStatistics] = []
        self._tensors = [TensorStatistics(counts=_NO_COUNTS) for _ in observer.tensors]

    def _count(self, seen: Observed) -> None:
        rows = self._accumulator.add(seen.values, seen.starts, seen.elements, seen.samples)
        self._gathered.append(rows)
        if len(self._gathered) >= _GATHERED:
            self._settle()

    def absorb(self, other: Counter) -> None:
        """Take over what another thread has counted, exactly."""
        self._settle()
        other._settle()
        for mine, theirs in zip(self._tensors, other._tensors, strict=True):
            mine.merge(theirs)
        self._accumulator.absorb(other._accumulator)

    def statistics(self, model_hash: str) -> Statistics:
        """Make the statistics of all samples counted so far."""
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


class MagnitudeCounter(_Reader):
    """What one thread counts in a second pass: magnitudes, in equal bins of the largest.

    Args:
        observer: The observer of the first pass.
        padding: The padding of the first pass.
        statistics: What that found.
        bins: Number of bins.
    """

    def __init__(
        self, observer: Observer, padding: Padding | None, statistics: Statistics, bins: int
    ) -> None:
        from intact.numerics.threshold_kl_counted import bin_widths, count_magnitudes  # few need it

        super().__init__(observer, padding)
        found = [statistics[name] for name in observer.tensors]
        # 0 for a tensor without finite elements, whose ends are infinite the wrong way round.
        largest = [max(each.maximum, -each.minimum, 0.0) for each in found]
        self._count_magnitudes = count_magnitudes
        self._widths = bin_widths(largest, bins)
        self.counts = np.zeros((len(found), bins), np.int64)

    def _count(self, seen: Observed) -> None:
        self._count_magnitudes(
            seen.values, seen.starts, seen.elements, seen.samples, self._widths, self.counts
        )


def collect(
    graph: Graph,
    samples: Samples,
    tensors: Sequence[str],
    *,
    threads: int = 0,
    progress: Progress | None = None,
    max_memory: int | None = None,
    refuses: bool = True,
    first: Batch | None = None,
    chosen: ChosenSamples | None = None,
    observer: Observer | None = None,
    bins: int = 0,
) -> Statistics:
    """Observe tensors of the float model over all samples.

    Memory does not grow with the number of samples: each thread has up to 32 MiB of activations, or
    one batch, and 512 KiB of counts a tensor. Padding, by the samples' mask, is left out
    (see :class:`intact.calibrate.observe.padding.Padding`).

    Where that would be more than ``max_memory``, fewer threads are used; then the tensors are
    observed in groups, each in a pass over the samples of its own, by a session that has only the
    part of the model that leads there. A pass for each group, rather than several sessions in one
    pass, keeps one copy of the weights and the counts of one group in memory; reading samples
    again costs little beside running the model. The statistics are the same, bit for bit, if the
    samples are the same in each pass.

    Args:
        graph: The float model.
        samples: What to run it on.
        tensors: Names of the values to observe; a plan's ``required_tensors``.
        threads: Batches that run side by side; 0 takes all cores. The floats are the same for
            any number.
        progress: Called after every batch; a sample counts once, when its last group is done.
        max_memory: Bytes for observed activations and counts; None for no limit. The weights and
            the runtime's own working memory come on top. Where the sizes of tensors depend on the
            samples, those of the first are taken.
        refuses: Whether what needs more memory is refused; otherwise it has what it needs, and
            sizes that depend on the samples are not limited.
        first: Filled with the inputs of the first sample, or of the batch that the model fixes.
        chosen: Filled with some of the samples.
        observer: What counts these tensors; made if it is not given.
        bins: Equal bins up to the largest, in which a second pass counts magnitudes for threshold
            methods with ``counted_bins``; 0 for none.

    Returns:
        The same statistics whatever the order and the batching of the samples.

    Raises:
        DataError: A sample does not fit the model.
        CalibrationError: A tensor does not exist, or needs more memory than is allowed, or samples
            that are to be read several times cannot be.
    """
    KERNELS.load_beside()  # while the session is made and runs the first batch
    observer = observer or Observer(graph, tensors, takes_feeds=samples.takes_feeds)
    workers = worker_count(threads, len(tensors))
    twice = 1 + bool(bins)
    layout = observer.layout
    # From shapes where they are all known: a sample is run only for lengths that it decides.
    sizes = None if max_memory is None else known_sizes(graph, layout, tensors)
    if sizes is None and max_memory is not None and refuses:
        sizes = _sizes_of_first(observer, samples)
    plan = Schedule(workers, (tuple(tensors),))
    if sizes is not None and max_memory is not None:
        plan = schedule(tensors, workers, sizes, max_memory, refuses=refuses)
    is_single = len(plan.groups) == 1 or isinstance(samples.reader, Iterator)
    if max_memory is None or (not refuses and is_single):
        if bins:
            _refuse_single_pass(samples, twice, _METHOD)
        passes = _Passes(progress, twice)
        statistics = _observe(graph, samples, observer, plan.workers, passes, first, chosen, bins)
        return _fill_caches(graph, statistics)
    del observer  # and its copy of the weights
    if len(plan.groups) > 1:
        _refuse_single_pass(samples, len(plan.groups) * twice, _MEMORY)
    statistics = Statistics(graph.hash)
    passes = _Passes(progress, len(plan.groups) * twice)
    for part in part_observers(graph, tensors, layout, plan.groups):
        found = _observe(graph, samples, part, plan.workers, passes, first, chosen, bins)
        statistics.tensors |= found.tensors
        chosen = None  # they are the same in each pass
        del part  # before the next one's session is made
    return _fill_caches(graph, statistics)


def _fill_caches(graph: Graph, statistics: Statistics) -> Statistics:
    """Give caches that were empty in all samples the statistics of what is appended to them."""
    # In the first run a cache is empty, so nothing is observed of it. What it holds later is what
    # the model appends to it.
    tensors = statistics.tensors
    if not all(each.samples for each in tensors.values()):
        for name, grown in growing_inputs(graph).items():
            if name in tensors and grown in tensors and not tensors[name].samples:
                tensors[name] = TensorStatistics()
                tensors[name].merge(tensors[grown])
    return statistics


def _observe(
    graph: Graph,
    samples: Samples,
    observer: Observer,
    workers: int,
    passes: _Passes,
    sample: Batch | None,
    chosen: ChosenSamples | None,
    bins: int,
) -> Statistics:
    """Count what an observer reads in one pass over the samples, or in two."""
    padding = None
    if samples.mask is not None:
        from intact.calibrate.observe.padding import Padding

        padding = Padding(graph, observer.tensors, samples.mask, observer.layout)
    feed = Feed(samples, observer.batch_size, passes.report, sample, chosen)
    # A counter for each thread, merged at the end: counts are integers and sums exact, so that it
    # does not matter who counted what.
    first, *others = _read_all(feed, workers, lambda: Counter(observer, padding))
    passes.end(samples.source)
    for counter in others:
        first.absorb(counter)
    statistics = first.statistics(graph.hash)
    if bins:
        feed = Feed(samples, observer.batch_size, passes.report, None, None)
        again = _read_all(
            feed, workers, lambda: MagnitudeCounter(observer, padding, statistics, bins)
        )
        passes.end(samples.source)
        counts = sum((each.counts for each in again[1:]), again[0].counts)
        for name, row in zip(observer.tensors, counts, strict=True):
            statistics[name].count_again(row)
    return statistics


def _read_all(feed: Feed, workers: int, make: Callable[[], R]) -> list[R]:
    """Let threads read batches until there are none left, each with a reader of its own."""
    with ThreadPoolExecutor(workers) as pool:
        try:  # Ctrl-C may come while the first thread already counts and the next is not started
            waiting = [pool.submit(_read, feed, make) for _ in range(workers)]
            return [future.result() for future in waiting]
        finally:
            feed.stop()  # an error or Ctrl-C: the others end with the batch they have


def _read(feed: Feed, make: Callable[[], R]) -> R:
    """Read batches until there are none left; one thread's work."""
    reader = make()
    try:
        for batch, count, real in feed:
            reader.add(batch, count, real)
        reader.end()
    # Also KeyboardInterrupt: other threads would go on reading all samples before the pool ends.
    except BaseException:
        feed.stop()
        raise
    return reader


def _sizes_of_first(observer: Observer, samples: Samples) -> dict[str, int]:
    """Measure the bytes of each tensor in the first batch."""
    _refuse_single_pass(samples, 2, _MEMORY)
    batch, count = next(samples.batches(observer.batch_size))
    return sizes_of_observed(observer.run(batch, count), observer.tensors)


def _refuse_single_pass(samples: Samples, passes: int, reason: _Reason) -> None:
    if isinstance(samples.reader, Iterator):
        raise CalibrationError(
            f"{samples.source}: {reason.text}, the samples are read {passes} times, and an "
            "iterator gives them once",
            remedy=f"{AGAIN}, or {reason.way_out}",
        )


class _Passes:
    """Progress over several passes, and the check that each had as many samples."""

    def __init__(self, progress: Progress | None, number: int) -> None:
        self._progress = progress
        self._number = number
        self._ended = 0
        self._samples = 0
        self._before: int | None = None

    def report(self, done: int, total: int | None) -> None:
        """Report the progress of one pass as that of all passes."""
        self._samples = done
        if self._progress is not None:
            before = self._before or 0
            self._progress((self._ended * before + done) // self._number, before or total)

    def end(self, source: str) -> None:
        """End a pass.

        Raises:
            CalibrationError: It had not as many samples as the one before.
        """
        if self._before not in (None, self._samples):
            raise CalibrationError(
                f"{source}: gives {self._samples} samples, and gave {self._before} before",
                remedy="let it give the same each time",
            )
        self._before = self._samples
        self._ended += 1


class Feed:
    """Batches that several threads take in turn, each when it has room for one.

    Samples are read no faster than they are run, and no thread waits for another's hand-over.
    """

    def __init__(
        self,
        samples: Samples,
        size: int,
        progress: Progress | None,
        first: Batch | None,
        chosen: ChosenSamples | None,
    ) -> None:
        self._batches = samples.masked_batches(size)
        self._lock = threading.Lock()
        self._stopped = False
        self._progress = progress
        self._all = samples.count
        self._given = 0
        self._first = first
        # A model that fixes its batch takes no single sample.
        self._is_whole = samples.fixed_batch is not None
        self._chosen = chosen

    def __iter__(self) -> Iterator[tuple[Batch, int, RealPositions | None]]:
        return self

    def __next__(self) -> tuple[Batch, int, RealPositions | None]:
        """Return the next batch, its number of real samples and their real positions."""
        with self._lock:
            if self._progress is not None and self._given:
                self._progress(self._given, self._all)
            if self._stopped:
                raise StopIteration
            # Inside the lock: a reader is an iterator, which two threads may not advance at once.
            batch, count, real = next(self._batches)
            self._given += count
            if self._first is not None and not self._first:
                self._first.update(
                    {n: (a if self._is_whole else a[:1]).copy() for n, a in batch.items()}
                )
            if self._chosen is not None:
                self._chosen.add(batch, count)
            return batch, count, None if real is None else real[:count]

    def stop(self) -> None:
        """Yield no more batches."""
        self._stopped = True
