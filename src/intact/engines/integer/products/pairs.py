"""Pairs of products that saturate before they are summed (vpmaddubsw).

The instruction multiplies unsigned data by signed weights, adds the products of two neighbouring
channels and saturates the pair. It sees codes as they are: data without its zero point taken off,
moved to the unsigned range where they are signed, as runtimes do. Neighbours lie in one kernel tap
and one group; the last of an odd number of channels has none. Weights of an unsigned type take
other instructions, which do not saturate. The zero points are corrected afterwards, exactly.

Most weights cannot make a pair saturate, whatever the data: only the rest is looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from intact.engines.integer.kernel import Overflow
from intact.engines.integer.products.windows import Floats
from intact.program import Array


class PairSaturation:
    """What saturation adds to exact products.

    Args:
        weights: Raw codes, int64 ``[groups, K, N]``.
        run: Neighbouring channels in a row of K; a pair never crosses their end.
        data_dtype: Of the data's codes.
        weight_dtype: Of the weights' codes.
        bits: Of a pair.
        shift: What a row's elements lack to the raw codes as `signed` leaves them.

    Attributes:
        can_happen: Whether any pair of codes can saturate.
        limit: Largest magnitude that a pair holds.
    """

    def __init__(
        self,
        weights: npt.NDArray[np.int64],
        run: int,
        data_dtype: np.dtype[Any],
        weight_dtype: np.dtype[Any],
        bits: int,
        shift: int = 0,
    ) -> None:
        self.limit = (1 << (bits - 1)) - 1
        # From an element of a row to the unsigned code that the instruction sees: all codes are
        # signed where rows are made, and made unsigned here, whatever they were at first.
        half = 1 << (8 * data_dtype.itemsize - 1)
        self._shift = shift + half
        low, high = 0, 2 * half - 1
        firsts, seconds, left, right = _neighbours(weights, run)
        ends = np.stack([_span(left, low, high), _span(right, low, high)]).sum(axis=0)
        unsafe = (ends[0] < -self.limit - 1) | (ends[1] > self.limit)
        if not np.issubdtype(weight_dtype, np.signedinteger):
            unsafe = np.zeros_like(unsafe)
        group, pair, column = np.nonzero(unsafe)
        self._places = np.ascontiguousarray(
            np.stack([group, firsts[pair], seconds[pair], column], axis=1).astype(np.int64)
        )
        self._weights = np.ascontiguousarray(
            np.stack([left[group, pair, column], right[group, pair, column]], axis=1)
        )
        self._pairs = left.shape[1]
        self.can_happen = bool(unsafe.any())

    def apply(self, rows: Floats, products: Floats, counted: Overflow) -> Floats:
        """Return the products of saturated pairs, and count those.

        Args:
            rows: ``[groups, M, K]``.
            products: Exact ones, ``[groups, M, N]``.
            counted: Added to. ``largest`` is that of the pairs that can saturate.
        """
        result = products.astype(np.float64)
        found = np.array([0, counted.largest], np.int64)
        _saturate(rows, self._places, self._weights, self._shift, self.limit, result, found)
        counted.sums += products.size * self._pairs
        counted.overflows += int(found[0])
        counted.largest = int(found[1])
        counted.limit = self.limit
        return result


def _neighbours(weights: npt.NDArray[np.int64], run: int) -> tuple[Array, Array, Array, Array]:
    """Return the rows of K of each pair's halves, and their weights ``[groups, pairs, N]``.

    A channel without a neighbour is paired with itself, at weight 0.
    """
    starts = np.arange(0, weights.shape[1], max(run, 1))
    firsts = (starts[:, None] + np.arange(0, run, 2)[None, :]).ravel()
    alone = (firsts % run == run - 1) if run else np.zeros(0, bool)
    seconds = np.where(alone, firsts, firsts + 1)
    right = np.where(alone[None, :, None], 0, weights[:, seconds])
    return firsts, seconds, weights[:, firsts], right


def _span(weights: Array, low: int, high: int) -> Array:
    """Return the least and the greatest product of weights with a code of a range."""
    return np.sort(np.stack([weights * low, weights * high]), axis=0)


@njit(cache=True, nogil=True)
def _saturate(
    rows: Floats,
    places: npt.NDArray[np.int64],
    weights: npt.NDArray[np.int64],
    shift: int,
    limit: int,
    products: npt.NDArray[np.float64],
    found: npt.NDArray[np.int64],
) -> None:
    """Move products to what saturated pairs give; ``found`` is overflows and largest pair."""
    overflows, largest = 0, found[1]
    for row in range(rows.shape[1]):
        for index in range(places.shape[0]):
            group, column = places[index, 0], places[index, 3]
            first = np.int64(rows[group, row, places[index, 1]]) + shift
            second = np.int64(rows[group, row, places[index, 2]]) + shift
            pair = first * weights[index, 0] + second * weights[index, 1]
            largest = max(largest, abs(pair))
            held = min(max(pair, -limit - 1), limit)
            if held != pair:
                overflows += 1
                products[group, row, column] += held - pair
    found[0] += overflows
    found[1] = largest
