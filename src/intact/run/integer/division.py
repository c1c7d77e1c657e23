"""Quotients of integers, rounded once: what the mean of a window is."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from intact.config import Rounding
from intact.numerics.fixed_point_kernel import ROUNDING_CODES
from intact.program import Array


def divide_rounded(sums: Array, counts: npt.ArrayLike, rounding: Rounding) -> Array:
    """Return ``sums / counts`` rounded to integers, exactly.

    Args:
        sums: Integers below 2**61 in magnitude.
        counts: Positive integers that broadcast to ``sums``.
        rounding: What happens to ties (and, with UP, to all).

    Returns:
        int64 of the shape of ``sums``.
    """
    divisors = np.broadcast_to(np.asarray(counts, np.int64), sums.shape)
    quotients = np.empty(sums.shape, np.int64)
    dividends = np.ascontiguousarray(sums, np.int64).reshape(-1)
    flat = np.ascontiguousarray(divisors).reshape(-1)
    _divide(dividends, flat, ROUNDING_CODES[rounding], quotients.reshape(-1))
    return quotients


@njit(cache=True, nogil=True)
def _divide(sums: Any, counts: Any, rounding: int, quotients: Any) -> None:
    """Compare twice the remainder of a floored division with the divisor."""
    for index in range(sums.shape[0]):
        value, count = sums[index], counts[index]
        floor = value // count
        twice = 2 * (value - floor * count)
        if rounding == 5:
            up = twice > 0
        elif twice != count:
            up = twice > count
        elif rounding == 0:
            up = floor & 1 == 1
        elif rounding == 1:
            up = True
        elif rounding == 2:
            up = False
        else:
            up = (value >= 0) == (rounding == 4)
        quotients[index] = floor + up
