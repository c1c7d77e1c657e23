"""Products of integer matrices, exact and as fast as floats go.

A sum of integers computed in floats is exact, in any order and with fused multiplication or
without, if the magnitudes of its terms add up to no more than 2**24 in float32, or 2**53 in
float64: every partial sum is then an integer that the type holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from intact.run.integer.patches import Floats

EXACT_FLOAT32 = 1 << 24
EXACT_FLOAT64 = 1 << 53
_SHORTEST_BLOCK = 64
"""Products that pay for adding one more block: shorter ones are slower than float64 at once."""


def exact_type(largest: int) -> np.dtype[Any]:
    """Return the fastest type that holds sums whose terms add up to ``largest`` exactly."""
    if largest <= EXACT_FLOAT32:
        return np.dtype(np.float32)
    return np.dtype(np.float64 if largest <= EXACT_FLOAT64 else np.int64)


def grouped(weights: npt.NDArray[np.int64], groups: int) -> npt.NDArray[np.int64]:
    """Return weights ``[O, *K, C / groups]`` as matrices ``[groups, K, O / groups]``."""
    rows = weights.reshape(groups, len(weights) // groups, -1)
    return np.ascontiguousarray(rows.transpose(0, 2, 1))


class ExactProduct:
    """Multiplies rows of integers by a constant matrix.

    Args:
        weights: int64 ``[groups, K, N]``.
        largest: No element of a row has a larger magnitude.

    Attributes:
        dtype: That of the rows it takes.
        length: K.
    """

    def __init__(self, weights: npt.NDArray[np.int64], largest: int) -> None:
        self.length = weights.shape[1]
        magnitudes = np.abs(weights)
        worst = int(magnitudes.sum(axis=1).max(initial=0)) * largest
        self.dtype = exact_type(worst)
        self._blocks = [slice(0, weights.shape[1])]
        if self.dtype != np.float32:
            limit = EXACT_FLOAT32 // max(largest, 1)
            blocks = _blocks(magnitudes, limit)
            long_enough = weights.shape[1] >= _SHORTEST_BLOCK * len(blocks)
            if long_enough and magnitudes.max(initial=0) <= limit:
                self.dtype, self._blocks = np.dtype(np.float32), blocks
        self._weights = weights.astype(self.dtype)

    def __call__(self, rows: Floats) -> Floats:
        """Return the products ``[groups, M, N]`` of rows ``[groups, M, K]`` of ``dtype``.

        They are float32 or float64 (int64 where neither is exact).
        """
        if len(self._blocks) == 1:
            return np.asarray(np.matmul(rows, self._weights))
        total = np.zeros((*rows.shape[:2], self._weights.shape[2]), np.float64)
        for block in self._blocks:
            total += np.matmul(rows[:, :, block], self._weights[:, block])
        return total


def _blocks(magnitudes: npt.NDArray[np.int64], limit: int) -> list[slice]:
    """Cut K where the magnitudes of some column would add up to more than a limit."""
    blocks = []
    start, stop = 0, magnitudes.shape[1]
    sums = np.zeros((magnitudes.shape[0], magnitudes.shape[2]), np.int64)
    for k in range(stop):
        sums += magnitudes[:, k]
        if k > start and sums.max(initial=0) > limit:
            blocks.append(slice(start, k))
            start = k
            sums[:] = magnitudes[:, k]
    return [*blocks, slice(start, stop)]
