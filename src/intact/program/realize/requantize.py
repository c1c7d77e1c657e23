"""Realizes requantization: roundings, fixed-point multiplications, shifts.

Every rounding is a floored quotient of a number that something is added to before. Formulas are
those of :mod:`intact.numerics.fixed_point_kernel`, which the integer engine runs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.errors import ConfigError, Unsupported
from intact.numerics.fixed_point import (
    INT32_MAX,
    power_of_two_exponent,
    quantize_multiplier,
    saturate_single,
)
from intact.program.arithmetic.requantize import code_bounds
from intact.program.operations import Bounds
from intact.program.program import Array, Encoding
from intact.program.realize.builder import IntegerBuilder
from intact.program.realize.graph import Value
from intact.targets import Arithmetic, Product, Shift, ZeroPointOrder

_LARGEST_SHIFT = 62
_LARGEST_LEFT = 32
"""Bits; further to the left nothing is left of 32."""


def refuse_floats(arithmetic: Arithmetic) -> None:
    """Refuse arithmetic that requantizes in floats.

    Raises:
        Unsupported: It does.
    """
    shifts = isinstance(arithmetic.requantize, Shift)
    if not shifts and arithmetic.product not in (Product.SINGLE, Product.DOUBLE):
        raise Unsupported(
            f"results are requantized in {arithmetic.product or arithmetic.precision}",
            "choose a target that does so in integers, with shift or fixed_point",
        )


def quotient(
    builder: IntegerBuilder, value: Value, divisor: npt.ArrayLike, rounding: Rounding
) -> Value:
    """Return ``value / divisor`` rounded; positive divisors broadcast to the value.

    Half of an odd divisor is no integer, so that there is no tie and every mode rounds alike.
    """
    by = np.asarray(divisor, np.int64)
    if (by == 1).all():
        return builder.floor_div(value, by)
    # Cases by what is added before the floor: all but one part (up); half (half up); half less one
    # where there are ties (half down); the sign decides at ties (away from zero, toward zero); the
    # parity of the floor does (half to even).
    half, even = by // 2, (by % 2 == 0).astype(np.int64)
    if rounding is Rounding.UP:
        nudged = builder.add(value, by - 1)
    elif rounding is Rounding.HALF_UP:
        nudged = builder.add(value, half)
    elif rounding is Rounding.HALF_DOWN:
        nudged = builder.add(value, half - even)
    elif rounding is Rounding.HALF_AWAY_FROM_ZERO:
        below = builder.mul(builder.is_negative(value), even)
        nudged = builder.sub(builder.add(value, half), below)
    elif rounding is Rounding.HALF_TOWARD_ZERO:
        below = builder.mul(builder.is_negative(value), even)
        nudged = builder.add(builder.add(value, half - even), below)
    else:
        floor = builder.floor_div(value, by)
        odd = builder.mul(_parity(builder, floor), even)
        nudged = builder.add(builder.add(value, half - even), odd)
    return builder.floor_div(nudged, by)


def _parity(builder: IntegerBuilder, value: Value) -> Value:
    """Return 1 for odd numbers, else 0."""
    twice = builder.mul(builder.floor_div(value, 2), 2)
    found = builder.sub(value, twice)
    return replace(found, low=0, high=1)  # what the difference of two ranges does not show


def wrap(builder: IntegerBuilder, value: Value, bits: int) -> Value:
    """Wrap a value to a two's complement register of this width."""
    half = 1 << (bits - 1)
    if -half <= value.low and value.high < half:
        return value
    # Without bit operations, which not every runtime has: whole turns of the register are taken
    # off.
    turns = builder.floor_div(builder.add(value, half), 1 << bits)
    rest = builder.sub(value, builder.mul(turns, 1 << bits))
    return replace(rest, low=-half, high=half - 1)


def high_product(builder: IntegerBuilder, first: Value, second: Value | npt.ArrayLike) -> Value:
    """Return ``first * second / 2**31`` rounded half up and saturated, of int32 values."""
    product = builder.add(builder.mul(first, second), 1 << 30)
    return builder.clip(builder.floor_div(product, 1 << 31), -INT32_MAX - 1, INT32_MAX)


def multiply_fixed(
    builder: IntegerBuilder,
    value: Value,
    multiplier: npt.ArrayLike,
    shift: npt.ArrayLike,
    arithmetic: Arithmetic,
) -> Value:
    """Return ``value * multiplier * 2**(shift - 31)``, rounded as the arithmetic rounds."""
    factors, shifts = np.asarray(multiplier, np.int64), np.asarray(shift, np.int64)
    if arithmetic.product is Product.SINGLE:
        factors, shifts = saturate_single(factors, shifts)
        product = builder.mul(value, factors)
        scaled = quotient(builder, product, np.int64(1) << (31 - shifts), Rounding.HALF_UP)
        return wrap(builder, scaled, 32)
    left = np.clip(shifts, 0, _LARGEST_LEFT)
    moved = wrap(builder, builder.mul(value, np.int64(1) << left), 32)
    product = high_product(builder, moved, factors)
    half_up = arithmetic.rounding is Rounding.HALF_UP
    last = Rounding.HALF_UP if half_up else Rounding.HALF_AWAY_FROM_ZERO
    return quotient(builder, product, np.int64(1) << np.maximum(-shifts, 0), last)


def requantize_sums(
    builder: IntegerBuilder,
    value: Value,
    arithmetic: Arithmetic,
    multiplier: npt.ArrayLike,
    output: Encoding,
    bounds: Bounds = Bounds(),  # noqa: B008
) -> Value:
    """Return the codes of accumulators, biases added: `Requantizer` with integers.

    Args:
        builder: The graph.
        value: The accumulators.
        arithmetic: How.
        multiplier: ``accumulator scale / output scale``, of a shape that broadcasts to them.
        output: The encoding of the result, of one scale.
        bounds: What it is clamped to.
    """
    refuse_floats(arithmetic)
    zero = zero_point(output)
    low, high = code_bounds(arithmetic, output, bounds)
    if isinstance(arithmetic.requantize, Shift):
        before = arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING
        scaled = shift_rounded(
            builder, value, multiplier, arithmetic.rounding, zero if before else 0
        )
        zero = 0 if before else zero
    else:
        factors, shifts = _fixed_point_multipliers(multiplier)
        value = wrap(builder, value, 32)
        scaled = multiply_fixed(builder, value, factors, shifts, arithmetic)
    # Clamped first: what is added then cannot make the type wider.
    limited = builder.clip(scaled, low - zero, high - zero)
    return builder.cast(builder.add(limited, zero), output.dtype)


def shift_rounded(
    builder: IntegerBuilder, value: Value, factor: npt.ArrayLike, rounding: Rounding, zero: int = 0
) -> Value:
    """Return a value times powers of two, rounded once; ``zero`` is added before that."""
    try:
        exponents = power_of_two_exponent(factor)
    except ConfigError as error:
        raise Unsupported(str(error), "use power-of-two scales, or another target") from error
    right = np.clip(-exponents, -_LARGEST_SHIFT, _LARGEST_SHIFT)
    moved = builder.mul(value, np.int64(1) << np.maximum(-right, 0))
    divisor = np.int64(1) << np.maximum(right, 0)
    if zero:
        moved = builder.add(moved, zero * divisor)
    return quotient(builder, moved, divisor, rounding)


def _fixed_point_multipliers(multiplier: npt.ArrayLike) -> tuple[Array, Array]:
    try:
        return quantize_multiplier(multiplier)
    except ConfigError as error:
        raise Unsupported(str(error), "mend the scales") from error


def zero_point(encoding: Encoding) -> int:
    """Return the zero point of an encoding with one scale."""
    return int(encoding.zero_point.flat[0])


def steps_of(builder: IntegerBuilder, codes: Value, encoding: Encoding) -> Value:
    """Return codes less their zero point."""
    return builder.sub(builder.wide(codes), zero_point(encoding))
