"""Computes curved functions in fixed point, bit for bit as hardware without floats.

``Qm`` is an int32 with ``m`` integer bits: its value is ``raw * 2**(m - 31)``. Arrays are int64
that hold such values. One in Q0 is its largest number, ``1 - 2**-31``.

Sources: gemmlowp's ``fixedpoint.h`` (exponential, division, logistic, tanh) and TFLite's
``kernels/internal/common.h`` (logarithm, reciprocal of a sum, inverse square root). Constants are
computed from what they stand for.
"""

from __future__ import annotations

import math

import numpy as np

from intact.errors import ConfigError
from intact.numerics.fixed_point import (
    INT32_MAX,
    INT32_MIN,
    Integers,
    rounding_divide_by_pot,
    shift_left_saturating,
    wrap_int32,
)
from intact.numerics.fixed_point import saturating_rounding_doubling_high_mul as _multiply

_ONE = INT32_MAX
"""One in Q0, as near as it comes."""
_LARGEST_EXPONENT = 4
"""The largest power among the factors of the exponential: Q0 holds ``exp(-2**4)`` as the last."""


def constant(real: float, integer_bits: int = 0) -> int:
    """Return the raw value of a number, rounded half up.

    >>> constant(math.exp(-0.125))
    1895147668
    """
    return math.floor(real * 2.0 ** (31 - integer_bits) + 0.5)


def exp_on_negative_values(raw: Integers, integer_bits: int) -> Integers:
    """Return ``exp(x)`` in Q0 of numbers that are not above 0.

    The number is parted into one in [-1/4, 0), whose exponential is a Taylor polynomial about
    -1/8, and powers of two from 1/4 on, whose exponentials are multiplied in.

    Args:
        raw: In ``Q<integer_bits>``.
        integer_bits: 0 to 5.
    """
    if not 0 <= integer_bits <= _LARGEST_EXPONENT + 1:
        raise ConfigError(f"no exponential with {integer_bits} integer bits", remedy="use 0 to 5")
    fraction_bits = 31 - integer_bits
    quarter = 1 << (fraction_bits - 2)
    part = (raw & (quarter - 1)) - quarter
    result = _exp_near_zero(shift_left_saturating(part, integer_bits))
    # Not negative, and a multiple of 1/4: each of its bits is a factor exp(-2**exponent).
    rest = part - raw
    for exponent in range(-2, integer_bits):
        is_in = (rest & (1 << (fraction_bits + exponent))) != 0
        factor = constant(math.exp(-(2.0**exponent)))
        result = np.where(is_in, _multiply(result, factor), result)
    return np.where(raw == 0, _ONE, result)


def _exp_near_zero(raw: Integers) -> Integers:
    """Return ``exp(x)`` in Q0 of ``x`` in [-1/4, 0), in Q0."""
    # About the middle of the interval: a polynomial of degree 4 is good to the last bits of Q0
    # there, about 0 it is not.
    middle = constant(math.exp(-0.125))
    x = raw + (1 << 28)
    square = _multiply(x, x)
    cube, fourth = _multiply(square, x), _multiply(square, square)
    higher = _multiply(rounding_divide_by_pot(fourth, 2) + cube, constant(1 / 3)) + square
    return np.asarray(middle + _multiply(middle, x + rounding_divide_by_pot(higher, 1)))


def _half_sum(first: Integers, second: int) -> Integers:
    return np.asarray(rounding_divide_by_pot(first + second, 1))


def _two_over_one_plus(raw: Integers) -> Integers:
    """Return ``2 / (1 + x)`` in Q2 of ``x`` in [0, 1], in Q0.

    Three steps of Newton's method on half the denominator, from the best line through its range.
    """
    one = 1 << 29
    half = _half_sum(raw, _ONE)
    guess = constant(48 / 17, 2) + _multiply(half, constant(-32 / 17, 2))
    # Newton's method doubles the digits in each step: from 4 bits of the line to the 31 of Q0.
    for _ in range(3):
        error = one - _multiply(half, guess)
        guess = guess + shift_left_saturating(_multiply(guess, error), 2)
    return np.asarray(guess)


def one_over_one_plus_x(raw: Integers) -> Integers:
    """Return ``1 / (1 + x)`` in Q0 of ``x`` in [0, 1], in Q0."""
    return np.asarray(shift_left_saturating(_two_over_one_plus(raw), 1))


def one_minus_x_over_one_plus_x(raw: Integers) -> Integers:
    """Return ``(1 - x) / (1 + x)`` in Q0 of ``x`` in [0, 1], in Q0."""
    return np.asarray(shift_left_saturating(_two_over_one_plus(raw) - (1 << 29), 2))


def logistic(raw: Integers, integer_bits: int) -> Integers:
    """Return ``1 / (1 + exp(-x))`` in Q0 of numbers in ``Q<integer_bits>``."""
    # Of the magnitude, and mirrored: the exponential of a positive number would leave Q0.
    upper = one_over_one_plus_x(exp_on_negative_values(-np.abs(raw), integer_bits))
    return np.where(raw == 0, 1 << 30, np.where(raw > 0, upper, _ONE - upper))


def tanh(raw: Integers, integer_bits: int) -> Integers:
    """Return ``tanh(x)`` in Q0 of numbers in ``Q<integer_bits>``; ``integer_bits`` is 0 to 4."""
    twice = -np.abs(raw)  # read with one integer bit more, it is doubled
    size = one_minus_x_over_one_plus_x(exp_on_negative_values(twice, integer_bits + 1))
    return np.where(raw == 0, 0, np.where(raw > 0, size, -size))


def bit_length(values: Integers) -> Integers:
    """Return how many bits numbers from 0 to 2**53 have.

    >>> bit_length(np.array([0, 1, 255, 256])).tolist()
    [0, 1, 8, 9]
    """
    return np.frexp(values.astype(np.float64))[1].astype(np.int64)


def reciprocal_of_at_least_one(raw: Integers, integer_bits: int) -> tuple[Integers, Integers]:
    """Return ``1 / x`` of numbers not below 1, as a factor in Q0 and a shift to the right."""
    headroom = 32 - bit_length(raw)
    fraction = (raw << headroom) - 2**31
    return one_over_one_plus_x(fraction), integer_bits - headroom


def log_of_at_least_one(raw: Integers, integer_bits: int, output_bits: int) -> Integers:
    """Return ``log(x)`` in ``Q<output_bits>`` of numbers not below 1 in ``Q<integer_bits>``.

    The number is a power of two, in steps of a half, times one near ``2**-1/4``, whose logarithm
    is a quotient of polynomials.
    """
    accumulator_bits = output_bits + 1
    fourth_root = constant(0.5**0.25)
    remainder, power = _near_fourth_root(raw, integer_bits, accumulator_bits)
    middle = _half_sum(remainder, fourth_root)
    q = 2 * (remainder - fourth_root)
    square = _multiply(q, q)
    root = 2**0.25
    cubic = _multiply(_multiply(q, square), constant(11 / 240 * root))
    numerator = _multiply(q, remainder) + cubic
    line = constant(2 / root - root) + q + _multiply(constant(root / 20), square)
    denominator = _multiply(middle, line) + _multiply(constant(root / 4), q)
    scaled = _multiply(
        rounding_divide_by_pot(numerator, accumulator_bits), one_over_one_plus_x(denominator)
    )
    result = _multiply(power, constant(math.log(2.0))) + scaled
    return np.asarray(shift_left_saturating(result, accumulator_bits - output_bits))


def _near_fourth_root(
    raw: Integers, integer_bits: int, accumulator_bits: int
) -> tuple[Integers, Integers]:
    """Part a number into one near ``2**-1/4``, in Q0, and a power of two; return its exponent."""
    half_root = constant(0.5**0.5)
    quarter = rounding_divide_by_pot(np.int64(1 << 29), accumulator_bits)

    def adjusted(exponent: Integers, sign: int) -> Integers:
        scaled = shift_left_saturating(exponent, 31 - accumulator_bits)
        return np.asarray(np.clip(scaled + sign * quarter, INT32_MIN, INT32_MAX))

    headroom = 32 - bit_length(raw)
    whole = shift_left_saturating(raw, headroom - 1)
    first = shift_left_saturating(_multiply(whole, half_root), 1)
    headroom_of_product = 32 - bit_length(_multiply(raw, half_root)) - 1
    second = shift_left_saturating(raw, headroom_of_product)
    power = np.maximum(
        adjusted(integer_bits - headroom, 1), adjusted(integer_bits - headroom_of_product, -1)
    )
    return np.minimum(first, second), power


def inverse_square_root(value: int) -> tuple[int, int]:
    """Return ``1 / sqrt(value)`` of an integer as an int32 multiplier and a shift to the left.

    Five steps of Newton's method from 1, in Q3. 0 counts as 1, for which the largest multiplier
    is returned.
    """
    if value <= 1:
        return INT32_MAX, 0
    shift = 11
    # By 4 at a time, as the root of it is then a whole factor of 2, which the shift keeps.
    while value >= 1 << 29:
        value //= 4
        shift += 1
    pairs = (31 - value.bit_length()) // 2 - 1
    shift -= pairs
    number = np.int64((value << (2 * pairs)) >> 1)
    half = rounding_divide_by_pot(number, 1)
    guess = np.int64(1 << 28)
    for _ in range(5):
        cube = shift_left_saturating(_multiply(_multiply(guess, guess), guess), 6)
        step = _multiply(constant(1.5, 3), guess) - _multiply(half, cube)
        guess = shift_left_saturating(wrap_int32(step), 3)
    # The number was halved to fit Q3 above; here the root of that half is made good.
    multiplier = int(_multiply(guess, constant(0.5**0.5)))
    return (multiplier << -shift, 0) if shift < 0 else (multiplier, -shift)
