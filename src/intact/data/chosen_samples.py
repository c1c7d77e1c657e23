"""A few of the samples that calibration reads: those of the least digests.

A digest follows from what a sample holds, so the same samples are kept whatever their order and
however they are batched, and they are as good as drawn at random. The number of samples need not be
known before they are read.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.data.batching import Batch, joined, padded

MOST = 32
"""Samples that are kept at most."""
_MOST_BYTES = 1 << 26
"""Bytes of them, but for a single sample, which may be larger."""


class ChosenSamples:
    """Keeps some of the samples that pass by, all in the form that the model takes."""

    def __init__(self) -> None:
        self._digests: list[bytes] = []
        self._rows: list[Batch] = []
        self._limit: bytes | None = None  # the least digest that was left out for want of room

    def add(self, batch: Batch, count: int) -> None:
        """Let a batch pass; only its first ``count`` samples are real."""
        arrays = [np.ascontiguousarray(array) for array in batch.values()]
        if any(not array.ndim or len(array) != len(arrays[0]) for array in arrays):
            self._offer(batch, arrays)  # inputs without a common axis of samples
            return
        for row in range(count):
            self._offer(batch, [array[row : row + 1] for array in arrays])

    def _offer(self, batch: Batch, arrays: Sequence[npt.NDArray[Any]]) -> None:
        digest = blake2b(digest_size=16)
        for array in arrays:
            digest.update(array.data)
        found = digest.digest()
        if self._limit is not None and found >= self._limit:
            return
        at = bisect.bisect_left(self._digests, found)
        if self._digests[at : at + 1] == [found]:
            return  # the same sample again
        self._digests.insert(at, found)
        self._rows.insert(at, {n: array.copy() for n, array in zip(batch, arrays, strict=True)})
        sizes = (sum(array.nbytes for array in rows.values()) for rows in self._rows)
        fit = sum(total <= _MOST_BYTES for total in accumulate(sizes))
        most = max(1, min(MOST, fit))
        self._limit = self._digests[most] if most < len(self._digests) else self._limit
        del self._digests[most:], self._rows[most:]

    def batches(self, size: int, most: int = MOST) -> Iterator[tuple[Batch, int]]:
        """Yield batches of ``size`` samples in order of their digests, the last one padded.

        Samples that cannot be joined are batches of their own.

        Args:
            size: What the model takes.
            most: Number of samples.
        """
        waiting: list[Batch] = []
        for rows in self._rows[:most]:
            if any(not array.ndim or len(array) != 1 for array in rows.values()):
                yield rows, size
                continue
            waiting.append(rows)
            if len(waiting) == size:
                yield joined(waiting), size
                waiting = []
        if waiting:
            rows = joined(waiting)
            full = {name: padded(array, size) for name, array in rows.items()}
            yield full, len(waiting)
