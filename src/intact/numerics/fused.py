"""Multiplies and adds float32 numbers with one rounding, as fused instructions do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, vectorize

from intact.numerics.loop_cache import CACHED


@njit(cache=CACHED, nogil=True)
def fused_float32(factor: Any, other: Any, addend: Any) -> Any:
    """Return ``factor * other + addend`` of float32 numbers, rounded once, to the nearest even.

    The product of two float32 is exact in float64. Their sum with the addend is not always, and
    where rounding it to float64 gives a tie of float32, which it was not, rounding again goes wrong
    half the time: the rest that the sum left out decides to which side it lies (Boldo and
    Melquiond 2008).
    Sums within a float64's rounding of where float32 overflows become infinite.
    """
    product = np.float64(factor) * np.float64(other)
    third = np.float64(addend)
    total = product + third
    nearest = np.float32(total)
    beyond = total - np.float64(nearest)
    if beyond == 0 or not np.isfinite(beyond):
        return nearest
    neighbour = np.float32(total + beyond)
    if np.float64(neighbour) != total + beyond:
        return nearest  # no tie: the sum is not halfway to another float32
    taken = total - product  # Knuth's two-sum: what the sum left out, exactly
    rest = (product - (total - taken)) + (third - taken)
    if rest == 0:
        return nearest
    return max(nearest, neighbour) if rest > 0 else min(nearest, neighbour)


# numpy has no fused multiply-add; as a ufunc this one broadcasts as numpy's own functions do.
@vectorize(cache=CACHED)  # type: ignore[no-untyped-call,untyped-decorator,unused-ignore]
def _each(factor: Any, other: Any, addend: Any) -> Any:
    return fused_float32(factor, other, addend)


def fused_multiply_add(
    factor: npt.ArrayLike, other: npt.ArrayLike, addend: npt.ArrayLike
) -> npt.NDArray[np.float32]:
    """Apply `fused_float32` to arrays.

    Args:
        factor: float32, of any shape.
        other: float32, broadcast against it.
        addend: float32, broadcast against both.

    >>> tiny = np.float32(2.0**-24)
    >>> float(fused_multiply_add(np.float32(1) + 2 * tiny, np.float32(1) - tiny, np.float32(-1)))
    5.960463766996327e-08
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(_each(*(np.asarray(x, np.float32) for x in (factor, other, addend))))
