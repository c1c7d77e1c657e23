"""Fused multiply-add in float32: product and sum with one rounding, as the instruction has it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_BEHIND_FLOAT32 = (1 << 29) - 1
"""Bits of a float64 that a float32 lacks."""
_TIE = 1 << 28
_SMALLEST_NORMAL = 2.0**-126
"""Below it, float32 has fewer bits still."""


def fused_multiply_add(
    factor: npt.ArrayLike, other: npt.ArrayLike, addend: npt.ArrayLike
) -> npt.NDArray[np.float32]:
    """Return ``factor * other + addend`` of float32 operands, rounded once, to the nearest even.

    The product of two float32 is exact in float64. Their sum with the addend is not always, and
    where rounding it to float64 gives a tie of float32, which it was not, rounding again goes wrong
    half the time: such sums are moved to the odd one of the two neighbouring float64 first, after
    which rounding to float32 is that of the exact sum (Boldo and Melquiond 2008).

    Args:
        factor: float32, of any shape.
        other: float32, broadcast against it.
        addend: float32, broadcast against both.

    >>> tiny = np.float32(2.0**-24)
    >>> float(fused_multiply_add(np.float32(1) + 2 * tiny, np.float32(1) - tiny, np.float32(-1)))
    5.960463766996327e-08
    """
    product = np.asarray(factor, np.float32).astype(np.float64) * np.asarray(other, np.float32)
    third = np.asarray(addend, np.float32).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.asarray(product + third)
        last = total.view(np.int64) & _BEHIND_FLOAT32
        doubtful = np.asarray((last == _TIE) | (np.abs(total) < _SMALLEST_NORMAL))
        if doubtful.any():
            pair = (np.broadcast_to(each, total.shape)[doubtful] for each in (product, third))
            total[doubtful] = _to_odd(total[doubtful], *pair)
        return np.asarray(total, np.float32)


def _to_odd(
    total: npt.NDArray[np.float64], first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return sums that were rounded to the nearest float64 as they are rounded to odd."""
    taken = total - first  # Knuth's two-sum: what the sum left out, exactly
    rest = (first - (total - taken)) + (second - taken)
    moved = np.isfinite(total) & (rest != 0) & ((total.view(np.int64) & 1) == 0)
    return np.where(moved, np.nextafter(total, np.where(rest > 0, np.inf, -np.inf)), total)
