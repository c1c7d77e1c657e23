"""Compares whole numbers that name something, of which only equality tells."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intact.numerics.metrics import share_interval


class EqualShare(NamedTuple):
    """How much of two results is equal, with its 95 % interval.

    Attributes:
        percent: Percent of the numbers that are equal.
        low: Lower end of the interval.
        high: Upper end.
    """

    percent: float
    low: float
    high: float


class Equality(NamedTuple):
    """How much of an output is equal, by sample.

    Attributes:
        shares: The share of equal numbers, float64 ``[samples]``; 0 where shapes differ.
        numbers: Number of the numbers of a sample.
    """

    shares: npt.NDArray[np.float64]
    numbers: int

    @classmethod
    def of(cls, reference: npt.NDArray[Any], actual: npt.NDArray[Any], count: int) -> Equality:
        """Compare a batch of which so many samples are real; what has no axis of them is one."""
        rows = count if reference.ndim and len(reference) >= count else 1
        if reference.shape != actual.shape:
            return cls(np.zeros(rows), 1)
        size = len(reference) if rows == count and reference.ndim else 1
        equal = (reference == actual).reshape(size, -1)[:rows]
        return cls(equal.mean(axis=1) if equal.size else np.ones(rows), max(equal.shape[1], 1))

    def joined(self, more: Equality) -> Equality:
        """Return the same of these samples and of more."""
        shares = np.concatenate([self.shares, more.shares])
        return Equality(shares, max(self.numbers, more.numbers))

    @property
    def share(self) -> EqualShare:
        """The share of all numbers, with its interval."""
        share = float(self.shares.mean())
        low, high = share_interval(self.shares, self.numbers)
        # Wilson's ends at 1 but for a rounding error.
        return EqualShare(100 * share, 100 * low, 100 * max(high, share))
