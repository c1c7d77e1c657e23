"""Fixed-point arithmetic against exact rationals."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from intact.errors import ConfigError
from intact.numerics import fixed_point as fp
from intact.numerics.levels import Rounding

INT32 = st.integers(-(2**31), 2**31 - 1)
LOWEST, HIGHEST = -(2**31), 2**31 - 1
TIES = [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.HALF_DOWN, Rounding.HALF_TOWARD_ZERO]
TIES += [Rounding.HALF_AWAY_FROM_ZERO]


def exactly_rounded(number: Fraction, mode: Rounding) -> int:
    """Round with the definition and nothing else."""
    below = math.floor(number)
    if mode is Rounding.UP:
        return math.ceil(number)
    part = number - below
    if part != Fraction(1, 2):
        return below + (part > Fraction(1, 2))
    ends = {
        Rounding.HALF_EVEN: below + below % 2,
        Rounding.HALF_UP: below + 1,
        Rounding.HALF_DOWN: below,
        Rounding.HALF_TOWARD_ZERO: below if number > 0 else below + 1,
        Rounding.HALF_AWAY_FROM_ZERO: below + 1 if number > 0 else below,
    }
    return ends[mode]


def in_32_bits(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def gemmlowp_high_mul(first: int, second: int) -> int:
    """The published definition: a nudge by sign, then a division towards zero."""
    if first == second == LOWEST:
        return HIGHEST
    product = first * second
    nudged = product + (2**30 if product >= 0 else 1 - 2**30)
    return math.trunc(Fraction(nudged, 2**31))


def test_the_documents_figures() -> None:
    assert [int(part) for part in fp.quantize_multiplier(np.float32(0.012))] == [1649267456, -6]
    assert [int(part) for part in fp.quantize_multiplier(0.012)] == [1649267442, -6]


@pytest.mark.parametrize(
    ("real", "multiplier", "shift"),
    [
        (0.0, 0, 0),
        (1.0, 2**30, 1),
        (0.5, 2**30, 0),
        (2.0**40, 2**30, 41),
        (1 - 2.0**-40, 2**30, 1),  # the mantissa is rounded up to 2**31 and halved
        (-0.75, -3 * 2**29, 0),
        (2.0**-32, 2**30, -31),
        (2.0**-33, 0, 0),  # shifted right by 32 bits: nothing is left
        (2.0**-32 * (1 - 2.0**-40), 2**30, -31),  # the carry saves it
        (5e-324, 0, 0),
    ],
)
def test_multipliers_at_the_edges(real: float, multiplier: int, shift: int) -> None:
    assert [int(part) for part in fp.quantize_multiplier(real)] == [multiplier, shift]


@given(st.floats(2.0**-32, 2.0**30))
def test_a_multiplier_is_within_half_a_step(real: float) -> None:
    multiplier, shift = (int(part) for part in fp.quantize_multiplier(real))
    assert 2**30 <= multiplier <= HIGHEST
    unit = Fraction(2) ** (shift - 31)
    assert abs(multiplier * unit - Fraction(real)) <= unit / 2


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_multiplier_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ConfigError, match="not finite"):
        fp.quantize_multiplier([0.5, bad])


def test_no_multipliers_give_no_multipliers() -> None:
    multiplier, shift = fp.quantize_multiplier(np.zeros((0, 3), np.float32))
    assert multiplier.shape == shift.shape == (0, 3)


@given(INT32, INT32)
@example(LOWEST, LOWEST)
@example(LOWEST, HIGHEST)
@example(-1, 2**30)  # a negative tie
@example(1, 2**30)
def test_high_mul_is_gemmlowps(first: int, second: int) -> None:
    found = fp.saturating_rounding_doubling_high_mul(np.int64(first), np.int64(second))
    assert int(found) == gemmlowp_high_mul(first, second)
    exact = exactly_rounded(Fraction(first * second, 2**31), Rounding.HALF_UP)
    assert int(found) == min(exact, HIGHEST)


@given(INT32, st.integers(0, 31))
@example(-1, 1)
@example(-3, 1)
@example(LOWEST, 31)
@example(LOWEST, 0)
@example(HIGHEST, 31)
def test_divisions_by_powers_of_two(value: int, exponent: int) -> None:
    exact = Fraction(value, 2**exponent)
    away = fp.rounding_divide_by_pot(np.int64(value), np.int64(exponent))
    assert int(away) == exactly_rounded(exact, Rounding.HALF_AWAY_FROM_ZERO)
    up = fp.shift_right_half_up(np.int64(value), np.int64(exponent))
    assert int(up) == exactly_rounded(exact, Rounding.HALF_UP)


@given(INT32, st.integers(0, 31))
def test_a_shift_to_the_left_saturates(value: int, exponent: int) -> None:
    found = fp.shift_left_saturating(np.int64(value), np.int64(exponent))
    assert int(found) == min(max(value * 2**exponent, LOWEST), HIGHEST)


@given(st.integers(-(2**62), 2**62))
def test_wrapping_is_a_cast(value: int) -> None:
    assert int(fp.wrap_int32(np.int64(value))) == in_32_bits(value)


@given(INT32, st.integers(-HIGHEST, HIGHEST), st.integers(-31, 31), st.booleans())
@example(LOWEST, HIGHEST, 31, False)
@example(LOWEST, 2**30, 0, False)
@example(3, 2**30, 0, False)
@example(-3, 2**30, 0, False)
@example(-5, 2**30, -2, True)
def test_double_rounding_rounds_twice(value: int, multiplier: int, shift: int, up: bool) -> None:
    rounding = Rounding.HALF_UP if up else Rounding.HALF_AWAY_FROM_ZERO
    found = fp.multiply_by_quantized_multiplier(value, multiplier, shift, rounding=rounding)
    first = gemmlowp_high_mul(in_32_bits(value * 2 ** max(shift, 0)), multiplier)
    assert int(found) == exactly_rounded(Fraction(first, 2 ** max(-shift, 0)), rounding)


@given(INT32, st.integers(-HIGHEST, HIGHEST), st.integers(-31, 30))
@example(LOWEST, -HIGHEST, 30)
@example(-1, 2**30, 0)
def test_single_rounding_rounds_once(value: int, multiplier: int, shift: int) -> None:
    found = fp.multiply_by_quantized_multiplier(value, multiplier, shift, single=True)
    exact = Fraction(value * multiplier) * Fraction(2) ** (shift - 31)
    assert int(found) == in_32_bits(exactly_rounded(exact, Rounding.HALF_UP))


@given(INT32, st.floats(1e-6, 0.999))  # from 1 on the product is shifted left, and may overflow
def test_both_roundings_are_within_one_of_the_product(value: int, real: float) -> None:
    multiplier, shift = fp.quantize_multiplier(real)
    for single in (False, True):
        found = fp.multiply_by_quantized_multiplier(value, multiplier, shift, single=single)
        assert abs(int(found) - Fraction(real) * value) <= 2


def test_a_shift_beyond_32_bits_is_the_largest_multiplier_or_wraps_to_nothing() -> None:
    multiplier, shift = fp.quantize_multiplier(2.0**40)
    single = fp.multiply_by_quantized_multiplier(1, multiplier, shift, single=True)
    assert int(single) == 2**30  # (2**31 - 1) * 2**-1, rounded half up
    assert int(fp.multiply_by_quantized_multiplier(1, multiplier, shift)) == 0


def test_arrays_broadcast() -> None:
    multiplier, shift = fp.quantize_multiplier([0.25, 0.5, 2.0])
    found = fp.multiply_by_quantized_multiplier(np.array([[6], [-6]], np.int32), multiplier, shift)
    assert found.tolist() == [[2, 3, 12], [-2, -3, -12]]


def test_a_rounding_that_no_kernel_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="half_even"):
        fp.multiply_by_quantized_multiplier(1, 2**30, 0, rounding=Rounding.HALF_EVEN)


@given(st.integers(-(2**40), 2**40), st.integers(-20, 45), st.sampled_from(list(Rounding)))
@example(-3, 1, Rounding.HALF_AWAY_FROM_ZERO)
@example(-3, 1, Rounding.HALF_TOWARD_ZERO)
@example(3, 1, Rounding.HALF_TOWARD_ZERO)
@example(5, 1, Rounding.HALF_EVEN)
@example(-5, 1, Rounding.HALF_EVEN)
def test_right_shifts_round_by_mode(value: int, shift: int, mode: Rounding) -> None:
    exact = Fraction(value) / Fraction(2) ** shift
    same = Rounding.HALF_EVEN if mode is Rounding.NEAREST else mode
    assert int(fp.rounding_right_shift(value, shift, mode)) == exactly_rounded(exact, same)


@pytest.mark.parametrize("mode", TIES)
def test_ties_of_right_shifts(mode: Rounding) -> None:
    values = np.arange(-9, 10)
    expected = [exactly_rounded(Fraction(int(value), 2), mode) for value in values]
    assert fp.rounding_right_shift(values, 1, mode).tolist() == expected


def test_legacy_q7_shift() -> None:
    """CMSIS-NN's q7 kernels: the accumulator plus half of the last place, shifted."""
    sums = np.array([-(2**20) - 64, -65, -64, -63, 0, 63, 64, 65])
    expected = [(int(value) + 64) >> 7 for value in sums]
    assert fp.rounding_right_shift(sums, 7).tolist() == expected


@given(st.integers(-70, 70))
def test_powers_of_two_have_exponents(exponent: int) -> None:
    assert int(fp.power_of_two_exponent(2.0**exponent)) == exponent


@pytest.mark.parametrize("bad", [0.3, 0.0, -0.5, np.inf])
def test_other_numbers_have_no_exponent(bad: float) -> None:
    with pytest.raises(ConfigError, match="power of two"):
        fp.power_of_two_exponent([0.5, bad])
