"""Computes fixed-point arithmetic, and requantizes in compiled loops.

The elementary functions are written with operators that NumPy arrays and compiled scalars share:
called from Python they take int64 arrays, and the loops below compile the same definitions. The
integers are int64 that hold int32 values, so that no step overflows unseen. Definitions and loops
stay in one file, because the cache of compiled code notices changes of its own file only.

The rules are those of gemmlowp's ``fixedpoint.h``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.extending import register_jitable

from intact.numerics.levels import Rounding
from intact.numerics.loop_cache import CACHED

INT32_MAX = 2**31 - 1
INT32_MIN = -(2**31)

ROUNDING_CODES = {
    Rounding.HALF_EVEN: 0,
    Rounding.NEAREST: 0,
    Rounding.HALF_UP: 1,
    Rounding.HALF_DOWN: 2,
    Rounding.HALF_TOWARD_ZERO: 3,
    Rounding.HALF_AWAY_FROM_ZERO: 4,
    Rounding.UP: 5,
}
"""Modes as numbers, for compiled code."""

DOUBLE_HALF_AWAY, DOUBLE_HALF_UP, SINGLE, WIDE = 0, 1, 2, 3
"""Which multiplication :func:`requantize_fixed_point` does."""


@register_jitable
def wrap_int32(value: Any) -> Any:
    """Wrap an integer to 32 bits, as two's complement does.

    >>> int(wrap_int32(np.int64(2**31)))
    -2147483648
    """
    return ((value + 2147483648) & 4294967295) - 2147483648


@register_jitable
def saturating_rounding_doubling_high_mul(first: Any, second: Any) -> Any:
    """Return ``first * second / 2**31``, rounded half up and saturated: int32 by int32.

    gemmlowp nudges negative products by ``1 - 2**30`` and divides towards zero, which gives the
    same as a half-up shift. Only the square of INT32_MIN saturates.
    """
    return np.minimum((first * second + 1073741824) >> 31, 2147483647)


@register_jitable
def rounding_divide_by_pot(value: Any, exponent: Any) -> Any:
    """Return ``value / 2**exponent``, rounded half away from zero; ``exponent`` is 0 to 62."""
    # 0 for an exponent of 0, where nothing is rounded.
    half = (1 << exponent) >> 1
    return (value + half - ((value < 0) & (half > 0))) >> exponent


@register_jitable
def shift_right_half_up(value: Any, exponent: Any) -> Any:
    """Return ``value / 2**exponent``, rounded half up; ``exponent`` is 0 to 62.

    The optimized x86 kernels end so, and CMSIS-NN's power-of-two kernels.
    """
    return (value + ((1 << exponent) >> 1)) >> exponent


@register_jitable
def shift_left_saturating(value: Any, exponent: Any) -> Any:
    """Return ``value * 2**exponent`` saturated at int32; ``exponent`` is 0 to 31."""
    return np.maximum(np.minimum(value << exponent, 2147483647), -2147483648)


@register_jitable
def shift_right(value: Any, exponent: Any, code: int) -> Any:
    """Return ``value / 2**exponent`` rounded by a mode of `ROUNDING_CODES`.

    The remainder of a floored shift is compared with one half, both doubled to be integers.
    """
    floor = value >> exponent
    whole = 1 << exponent
    twice = 2 * (value - (floor << exponent))
    above, tie = twice > whole, twice == whole
    # By ROUNDING_CODES: 1 half up, 2 half down, 3 half toward zero, 4 half away from zero, 5 up,
    # and 0 (the end) half to even. The floor is the lower neighbour of a tie.
    if code == 1:
        return floor + (above | tie)
    if code == 2:
        return floor + above
    if code == 3:
        return floor + (above | (tie & (value < 0)))
    if code == 4:
        return floor + (above | (tie & (value >= 0)))
    if code == 5:
        return floor + (twice > 0)
    return floor + (above | (tie & ((floor & 1) == 1)))


@register_jitable
def multiply_double(value: Any, multiplier: Any, shift: Any) -> Any:
    """Return ``value * multiplier * 2**(shift - 31)``, rounded twice, the second half away.

    A positive ``shift`` goes to the left before the product, and wraps in int32 as the kernels do.
    """
    shifted = wrap_int32(value << np.minimum(np.maximum(shift, 0), 32))
    product = saturating_rounding_doubling_high_mul(shifted, multiplier)
    return rounding_divide_by_pot(product, np.maximum(-shift, 0))


@register_jitable
def multiply_double_half_up(value: Any, multiplier: Any, shift: Any) -> Any:
    """Do what :func:`multiply_double` does, with the second rounding half up."""
    shifted = wrap_int32(value << np.minimum(np.maximum(shift, 0), 32))
    product = saturating_rounding_doubling_high_mul(shifted, multiplier)
    return shift_right_half_up(product, np.maximum(-shift, 0))


@register_jitable
def multiply_single(value: Any, multiplier: Any, shift: Any) -> Any:
    """Return ``value * multiplier * 2**(shift - 31)``: one 64-bit product, rounded once half up.

    What leaves int32 is wrapped, as by a cast. ``shift`` is -31 to 30.
    """
    return wrap_int32(shift_right_half_up(value * multiplier, 31 - shift))


@register_jitable
def multiply_wide(value: Any, multiplier: Any, shift: Any) -> Any:
    """Return ``value * multiplier * 2**(shift - 31)`` of a 64-bit value, rounded once half up.

    The multiplier is rounded to 15 bits first. ``shift`` is -31 to 7 (TFLite's
    ``MultiplyByQuantizedMultiplier`` of int64).
    """
    # 16 bits times a 48-bit sum stays in 64; one that rounds up to 2**15 saturates.
    reduced = np.minimum((multiplier + 32768) >> 16, 32767)
    return wrap_int32(shift_right_half_up(value * reduced, 15 - shift))


@register_jitable
def round_float(value: Any, code: int) -> Any:
    """Return one float rounded to an integer by a mode of `ROUNDING_CODES`, exactly."""
    # 1 half up, 2 half down, 3 half toward zero, 4 half away from zero, 5 up, 0 half to even, as
    # rint has done it. The others move the ties that rint sent the wrong way.
    nearest = np.rint(value)
    difference = value - nearest
    if code == 1:
        return nearest + 1 if difference == 0.5 else nearest
    if code == 2:
        return nearest - 1 if difference == -0.5 else nearest
    if code == 3:
        return np.trunc(value) if abs(difference) == 0.5 else nearest
    if code == 4:
        is_inward_tie = abs(difference) == 0.5 and difference * value > 0
        # Twice the difference of a half is one step outward, with its sign.
        return nearest + difference + difference if is_inward_tie else nearest
    if code == 5:
        return np.ceil(value)
    return nearest


@njit(cache=CACHED, nogil=True)
def requantize_fixed_point(
    accumulators: Any,
    bias: Any,
    multiplier: Any,
    shift: Any,
    zero_point: Any,
    low: int,
    high: int,
    multiplication: int,
    codes: Any,
) -> None:
    """Multiply by int32 multipliers with shifts, add the zero point, clamp.

    Args:
        accumulators: Integers, or floats that are integers, ``[rows, channels]``; in 32 bits they
            wrap, but for `WIDE` ones.
        bias: int64 ``[1 or channels]``, added to the accumulators.
        multiplier: int64, as ``bias``.
        shift: int64, as ``bias``; to the left if positive.
        zero_point: int64, as ``bias``.
        low: Smallest code.
        high: Largest code.
        multiplication: `DOUBLE_HALF_AWAY`, `DOUBLE_HALF_UP`, `SINGLE` or `WIDE`.
        codes: Written.
    """
    step = 1 if multiplier.shape[0] > 1 else 0
    for row in range(accumulators.shape[0]):
        for channel in range(accumulators.shape[1]):
            one = channel * step
            value = np.int64(accumulators[row, channel]) + bias[one]
            # The kernels add the bias in int32, and their sum wraps where it leaves it.
            value = value if multiplication == WIDE else wrap_int32(value)
            if multiplication == DOUBLE_HALF_AWAY:
                code = multiply_double(value, multiplier[one], shift[one])
            elif multiplication == DOUBLE_HALF_UP:
                code = multiply_double_half_up(value, multiplier[one], shift[one])
            elif multiplication == SINGLE:
                code = multiply_single(value, multiplier[one], shift[one])
            else:
                code = multiply_wide(value, multiplier[one], shift[one])
            codes[row, channel] = min(max(code + zero_point[one], low), high)


@njit(cache=CACHED, nogil=True)
def requantize_shift(
    accumulators: Any,
    bias: Any,
    shift: Any,
    zero_before: Any,
    zero_after: Any,
    low: int,
    high: int,
    rounding: int,
    codes: Any,
) -> None:
    """Shift right by ``shift`` (to the left if negative), rounding once; -62 to 62.

    Args:
        zero_before: int64 ``[1 or channels]``, added at the output's scale before rounding.
        zero_after: int64 ``[1 or channels]``, added after rounding.
        rounding: A mode of `ROUNDING_CODES`.

    The others are those of :func:`requantize_fixed_point`.
    """
    step = 1 if shift.shape[0] > 1 else 0
    for row in range(accumulators.shape[0]):
        for channel in range(accumulators.shape[1]):
            one = channel * step
            right = max(shift[one], 0)
            value = (np.int64(accumulators[row, channel]) + bias[one]) << max(-shift[one], 0)
            code = shift_right(value + (zero_before[one] << right), right, rounding)
            codes[row, channel] = min(max(code + zero_after[one], low), high)


@njit(cache=CACHED, nogil=True)
def requantize_float(
    accumulators: Any,
    bias: Any,
    multiplier: Any,
    zero_before: Any,
    zero_after: Any,
    low: float,
    high: float,
    rounding: int,
    codes: Any,
) -> None:
    """Multiply in the float type of ``multiplier`` and round once.

    Args:
        bias: float64 ``[1 or channels]``, whole; sums are exact below 2**53.
        multiplier: float32 or float64, as ``bias``.
        zero_before: Like ``multiplier``, added before rounding.
        zero_after: float64, added after rounding.

    The others are those of :func:`requantize_shift`. Codes are clamped as floats, since a float
    that leaves int64 cannot be converted.
    """
    step = 1 if multiplier.shape[0] > 1 else 0
    real = multiplier.dtype.type
    for row in range(accumulators.shape[0]):
        for channel in range(accumulators.shape[1]):
            one = channel * step
            exact = np.float64(accumulators[row, channel]) + bias[one]
            scaled = real(exact) * multiplier[one] + zero_before[one]
            code = np.float64(round_float(scaled, rounding)) + zero_after[one]
            codes[row, channel] = np.int32(min(max(code, low), high))
