"""Products of integer matrices, exact and as fast as floats go.

A sum of integers computed in floats is exact, in any order and with fused multiplication or
without, if the magnitudes of its terms add up to no more than 2**24 in float32, or 2**53 in
float64: every partial sum is then an integer that the type holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from intact.engines.integer.products.windows import Floats

EXACT_FLOAT32 = 1 << 24
EXACT_FLOAT64 = 1 << 53
_SHORTEST_BLOCK = 64
"""Products that pay for adding one more block: shorter ones are slower than float64 at once."""
_ALONE = (1 << 19) - 1
"""Products of one call that OpenBLAS computes in the calling thread: less than twice 2**18."""
_FEWEST_ROWS, _MOST_ROWS = 16, 256
"""Rows of a tile: with fewer the weights are read too often, more gain nothing."""
_LANES = 16
"""Columns of a tile are a multiple of them: float32 elements of a 512-bit register."""


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
        # float32 twice as fast as float64: K is cut into blocks whose sums are exact in it, and
        # those are added in float64.
        if self.dtype != np.float32:
            limit = EXACT_FLOAT32 // max(largest, 1)
            blocks = _blocks(magnitudes, limit)
            long_enough = weights.shape[1] >= _SHORTEST_BLOCK * len(blocks)
            if long_enough and magnitudes.max(initial=0) <= limit:
                self.dtype, self._blocks = np.dtype(np.float32), blocks
        self._factors = [_Factor(weights[:, block].astype(self.dtype)) for block in self._blocks]

    def __call__(self, rows: Floats) -> Floats:
        """Return the products ``[groups, M, N]`` of rows ``[groups, M, K]`` of ``dtype``.

        They are float32 or float64 (int64 where neither is exact).
        """
        if len(self._factors) == 1:
            return self._factors[0](rows)
        products = np.zeros((), np.float64)
        for block, factor in zip(self._blocks, self._factors, strict=True):
            products = products + factor(np.ascontiguousarray(rows[:, :, block]))
        return products


class _Factor:
    """The right side of products, cut so that BLAS starts no threads for them.

    A thread that has no core, on a machine with other work, holds all of them up: up to 50 times
    as long as the layer takes. Tiles are no slower than one product in one thread (measured with
    OpenBLAS 0.3.31 on two cores). Matrices that are long in both directions are left whole.

    Args:
        weights: ``[groups, K, N]``.
    """

    def __init__(self, weights: Floats) -> None:
        self._groups, length, self._columns = weights.shape
        self._rows, width = _tile(length, self._columns)
        starts = range(0, self._columns, max(width, 1))
        self._tiles = [np.ascontiguousarray(weights[:, :, n : n + width]) for n in starts]

    def __call__(self, rows: Floats) -> Floats:
        """Return the products ``[groups, M, N]`` of contiguous rows ``[groups, M, K]``."""
        count, length = rows.shape[1:]
        products = np.empty((self._groups, count, self._columns), rows.dtype)
        tiles = count // self._rows if self._rows else 0
        whole = tiles * self._rows
        for group in range(self._groups):
            cut = rows[group, :whole].reshape(tiles, self._rows, length)
            target = products[group, :whole].reshape(tiles, self._rows, self._columns)
            start = 0
            for tile in self._tiles:
                stop = start + tile.shape[2]
                if whole:
                    np.matmul(cut, tile[group], out=target[:, :, start:stop])
                if whole < count:
                    rest = products[group, whole:, start:stop]
                    np.matmul(rows[group, whole:], tile[group], out=rest)
                start = stop
        return products


def _tile(length: int, columns: int) -> tuple[int, int]:
    """Return how many rows and columns are multiplied at once; no rows stand for all."""
    at_once = _ALONE // max(length * columns, 1)
    # Rows by all columns, where that is below what BLAS starts threads for; else columns are cut
    # too; else the matrix is left whole.
    if at_once >= _FEWEST_ROWS:
        return min(at_once, _MOST_ROWS), columns
    for rows in (2 * _FEWEST_ROWS, _FEWEST_ROWS):
        width = _ALONE // (rows * length) // _LANES * _LANES
        if width >= rows:
            tiles = -(-columns // width)
            return rows, -(-columns // (tiles * _LANES)) * _LANES
    return 0, columns


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
