"""Measures how unlike the values of two tensors are distributed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_MOST = 4096
"""Values of a piece that are counted, evenly spaced: with 64 bins their chance adds 0.008 nats."""
_SMOOTHING = 0.5
"""Added to each bin, so that empty ones are no proof (Krichevsky and Trofimov, IEEE Transactions on
Information Theory 27, 1981)."""


class Bins(NamedTuple):
    """Equal bins, with what lies outside in the first and the last one.

    Attributes:
        low: Lower end of the first.
        high: Upper end of the last, above ``low``.
        number: How many.
    """

    low: float
    high: float
    number: int


class Divergence:
    """The Kullback-Leibler divergence of a tensor's values from those of a reference.

    Args:
        bins: That both are counted in.
    """

    def __init__(self, bins: Bins) -> None:
        self._low, self._per_bin = bins.low, (bins.high - bins.low) / bins.number
        self._counts = np.zeros((2, bins.number), np.int64)

    def add(self, reference: npt.NDArray[np.floating], actual: npt.NDArray[np.floating]) -> None:
        """Count some values of both, of any shape; NaN and infinity are left out."""
        from intact.numerics.comparison_kernel import count

        for counts, values in zip(self._counts, (reference, actual), strict=True):
            flat = np.ascontiguousarray(values, np.float32).reshape(-1)
            # The same step for both, so that the same elements are compared.
            count(flat, max(flat.size // _MOST, 1), self._low, self._per_bin, counts)

    def join(self, more: Divergence) -> None:
        """Add what was counted of other values in the same bins."""
        self._counts += more._counts

    @property
    def nats(self) -> float:
        """The divergence ``sum(p log(p / q))``; 0 if both are distributed alike."""
        smooth = self._counts + _SMOOTHING
        wanted, found = smooth / smooth.sum(axis=1, keepdims=True)
        # Of equal distributions rounding may leave a little less than 0.
        return max(float((wanted * np.log(wanted / found)).sum()), 0.0)
