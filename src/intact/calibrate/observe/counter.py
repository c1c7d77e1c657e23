"""What one thread counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from intact.calibrate.observe.layout import Observed
from intact.calibrate.observe.observer import Observer
from intact.calibrate.statistics import Statistics, TensorStatistics
from intact.data.batching import Batch
from intact.data.mask import RealPositions
from intact.numerics.histogram import Accumulator, SampleStatistics

if TYPE_CHECKING:
    from intact.calibrate.observe.padding import Padding

_GATHERED = 64

"""Batches gathered by a thread before they are folded in."""

_NO_COUNTS = np.zeros(0, np.int64)

"""Stands in for a tensor's counts while they are in the accumulator."""


class Counter:
    """What one thread has counted: merged exactly with the others at the end."""

    def __init__(self, observer: Observer, padding: Padding | None) -> None:
        self._observer = observer
        self._padding = padding
        self._accumulator = Accumulator(len(observer.tensors))
        self._gathered: list[SampleStatistics] = []
        self._tensors = [TensorStatistics(counts=_NO_COUNTS) for _ in observer.tensors]

    def add(self, batch: Batch, count: int, real: RealPositions | None) -> None:
        """Run and count one batch."""
        seen = self._observer.run(batch, count)
        parts: Iterable[Observed] = (seen,)
        if self._padding is not None and real is not None:
            parts = self._padding.real_parts(seen, real)
        for each in parts:
            rows = self._accumulator.add(each.values, each.starts, each.elements, each.samples)
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
