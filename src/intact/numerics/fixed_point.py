"""Multiplies by a real number with integers only: an int32 multiplier and a shift.

Vectorized: every argument broadcasts. The elementary steps are those of
:mod:`intact.numerics.fixed_point_kernel`; what is made of real numbers beforehand is TFLite's
``QuantizeMultiplier``.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from intact.errors import ConfigError
from intact.numerics.fixed_point_kernel import (
    INT32_MAX,
    INT32_MIN,
    ROUNDING_CODES,
    multiply_double,
    multiply_double_half_up,
    multiply_single,
    rounding_divide_by_pot,
    saturating_rounding_doubling_high_mul,
    shift_left_saturating,
    shift_right,
    shift_right_half_up,
    wrap_int32,
)
from intact.numerics.levels import Rounding
from intact.numerics.rounding import round_to_integer

__all__ = [
    "INT32_MAX",
    "INT32_MIN",
    "Integers",
    "multiply_by_quantized_multiplier",
    "power_of_two_exponent",
    "quantize_multiplier",
    "rounding_divide_by_pot",
    "rounding_right_shift",
    "saturate_single",
    "saturating_rounding_doubling_high_mul",
    "shift_left_saturating",
    "shift_right_half_up",
    "wrap_int32",
]

Integers: TypeAlias = npt.NDArray[np.int64]


def quantize_multiplier(real: npt.ArrayLike) -> tuple[Integers, Integers]:
    """Split real numbers into int32 multipliers and shifts: ``multiplier * 2**(shift - 31)``.

    The mantissa of ``frexp`` is rounded half away from zero to 31 bits; one that reaches 2**31 is
    halved. What would be shifted right by more than 31 bits becomes 0.

    Args:
        real: Any shape; float32 values are taken as they are, not rounded to decimals.

    Returns:
        Multipliers and shifts, int64 of the shape of ``real``; a positive shift is to the left.

    Raises:
        ConfigError: If a number is not finite.

    >>> [int(part) for part in quantize_multiplier(np.float32(0.012))]
    [1649267456, -6]
    """
    numbers = np.asarray(real, np.float64)
    if not np.isfinite(numbers).all():
        raise ConfigError(
            "a multiplier is not finite", remedy="check the scales: they are positive and finite"
        )
    mantissa, exponent = np.frexp(numbers)
    multiplier = round_to_integer(mantissa * 2.0**31, Rounding.HALF_AWAY_FROM_ZERO).astype(np.int64)
    shift = exponent.astype(np.int64)
    # Rounded up from just below 1: 2**31 is no int32.
    carried = multiplier == 2**31
    multiplier, shift = np.where(carried, 2**30, multiplier), shift + carried
    # TFLite flushes to 0 here, and its kernels could not shift further.
    vanishes = shift < -31
    return np.where(vanishes, 0, multiplier), np.where(vanishes, 0, shift)


def saturate_single(multiplier: Integers, shift: Integers) -> tuple[Integers, Integers]:
    """Return multipliers that single rounding can take: beyond a shift of 30, the largest."""
    too_large = shift > 30
    return np.where(too_large, INT32_MAX, multiplier), np.where(too_large, 30, shift)


def multiply_by_quantized_multiplier(
    value: npt.ArrayLike,
    multiplier: npt.ArrayLike,
    shift: npt.ArrayLike,
    *,
    single: bool = False,
    rounding: Rounding = Rounding.HALF_AWAY_FROM_ZERO,
) -> Integers:
    """Multiply int32 values by quantized multipliers; the three broadcast.

    Args:
        value: int32 values of any integer type.
        multiplier: The first result of :func:`quantize_multiplier`.
        shift: The second one.
        single: Round once, half up, and not twice.
        rounding: How the second rounding treats ties: half away from zero or half up.

    Raises:
        ConfigError: If ``rounding`` is another.
    """
    operands = tuple(np.asarray(each, np.int64) for each in (value, multiplier, shift))
    if single:
        return np.asarray(multiply_single(operands[0], *saturate_single(*operands[1:])))
    if rounding is Rounding.HALF_UP:
        return np.asarray(multiply_double_half_up(*operands))
    if rounding is not Rounding.HALF_AWAY_FROM_ZERO:
        raise ConfigError(
            f"a fixed-point multiplication does not round {rounding}",
            remedy="use half_away_from_zero or half_up",
        )
    return np.asarray(multiply_double(*operands))


def power_of_two_exponent(real: npt.ArrayLike) -> Integers:
    """Return the exponents of numbers that are powers of two.

    Raises:
        ConfigError: If a number is none.
    """
    mantissa, exponent = np.frexp(np.asarray(real, np.float64))
    if not (mantissa == 0.5).all():
        wrong = float(np.asarray(real, np.float64)[mantissa != 0.5].flat[0])
        raise ConfigError(
            f"{wrong:g} is no power of two, and can be no shift",
            remedy="use power-of-two scales for hardware that only shifts",
        )
    return exponent.astype(np.int64) - 1


def rounding_right_shift(
    value: npt.ArrayLike, shift: npt.ArrayLike, rounding: Rounding = Rounding.HALF_UP
) -> Integers:
    """Return ``value / 2**shift`` rounded to an integer; negative shifts go to the left, exactly.

    Args:
        value: Integers below 2**62 in magnitude, also after a shift to the left.
        shift: -62 to 62; broadcasts to ``value``.
        rounding: How ties go; CMSIS-NN's legacy q7 kernels take :attr:`Rounding.HALF_UP`.
    """
    values, shifts = np.asarray(value, np.int64), np.asarray(shift, np.int64)
    # Numpy's shifts by negative numbers are undefined: one of both is 0.
    left, right = np.maximum(-shifts, 0), np.maximum(shifts, 0)
    return np.asarray(shift_right(values << left, right, ROUNDING_CODES[rounding]))
