"""Chooses a few of the samples that calibration reads: those of the least checksums.

A checksum follows from what a sample holds, so the same samples are kept whatever their order and
however they are batched, and they are as good as drawn at random. The number of samples need not be
known before they are read.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from intact.data.batching import Batch, Shapes, joined, padded, sample_count, shapes_of
from intact.limits import CHOSEN, CHOSEN_BYTES


class Mark(NamedTuple):
    """One of the samples that are kept.

    Attributes:
        checksum: Checksum of what the sample holds.
        number: Its place among all that passed by.
    """

    checksum: int
    number: int


class ChosenSamples:
    """Keeps some of the samples that pass by, all in the form that the model takes.

    Args:
        whole: Each batch is one sample, whatever its axes are.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole
        self._sums: list[int] = []
        self._rows: list[Batch] = []
        self._numbers: list[int] = []
        self._passed = 0
        self.limit: int | None = None  # the least checksum that was left out for want of room

    @property
    def marks(self) -> list[Mark]:
        """What is kept, in order of the checksums."""
        return [Mark(*pair) for pair in zip(self._sums, self._numbers, strict=True)]

    def add(self, batch: Batch, count: int) -> None:
        """Let a batch pass; only its first ``count`` samples are real."""
        # Contiguous, so that a checksum is of the elements in their order, whatever the layout in
        # memory.
        arrays = [np.asarray(array, order="C") for array in batch.values()]
        if self._whole or any(not array.ndim or len(array) != len(arrays[0]) for array in arrays):
            self._offer(batch, arrays)  # inputs without a common axis of samples
            return
        for row in range(count):
            self._offer(batch, [array[row : row + 1] for array in arrays])

    def _offer(self, batch: Batch, arrays: Sequence[npt.NDArray[Any]]) -> None:
        found, number = 0, self._passed
        self._passed += 1
        for array in arrays:
            found = crc32(array.data, found)
        # What was left out once stays out, also where a later loss of others would make room: else
        # the choice would depend on the order.
        if self.limit is not None and found >= self.limit:
            return
        at = bisect.bisect_left(self._sums, found)
        if self._sums[at : at + 1] == [found]:
            return  # the same sample again
        self._sums.insert(at, found)
        self._numbers.insert(at, number)
        self._rows.insert(at, {n: array.copy() for n, array in zip(batch, arrays, strict=True)})
        sizes = (sum(array.nbytes for array in rows.values()) for rows in self._rows)
        # A prefix in order of the checksums, so that which samples fit does not depend on when they
        # came.
        fit = sum(total <= CHOSEN_BYTES for total in accumulate(sizes))
        # One sample at least, however large.
        most = max(1, min(CHOSEN, fit))
        self.limit = self._sums[most] if most < len(self._sums) else self.limit
        del self._sums[most:], self._numbers[most:], self._rows[most:]

    def batches(self, size: int, most: int = CHOSEN) -> Iterator[tuple[Batch, int]]:
        """Yield batches of ``size`` samples in order of their checksums, the last ones padded.

        Samples that cannot be joined are batches of their own; of those of several shapes, each
        batch has one.

        Args:
            size: What the model takes.
            most: Number of samples.
        """
        waiting: dict[Shapes, list[Batch]] = {}
        for rows in self._rows[:most]:
            if self._whole or any(not each.ndim or len(each) != 1 for each in rows.values()):
                yield rows, sample_count(rows)
                continue
            shapes = shapes_of(rows)
            alike = waiting.setdefault(shapes, [])
            alike.append(rows)
            if len(alike) == size:
                yield joined(waiting.pop(shapes)), size
        for alike in waiting.values():
            full = {name: padded(array, size) for name, array in joined(alike).items()}
            yield full, len(alike)
