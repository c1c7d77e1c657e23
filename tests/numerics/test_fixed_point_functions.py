"""Curved functions in fixed point: their accuracy, their edges, and some of their exact bits."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from intact.errors import ConfigError
from intact.numerics import fixed_point_functions as functions
from intact.numerics.fixed_point import INT32_MAX, INT32_MIN, Integers

Reals = npt.NDArray[np.float64]
STEPS = 20001


def raw_of(real: Reals, integer_bits: int) -> Integers:
    scaled = np.rint(real * 2.0 ** (31 - integer_bits))
    return np.clip(scaled, INT32_MIN, INT32_MAX).astype(np.int64)


def real_of(raw: Integers, integer_bits: int = 0) -> Reals:
    return raw / 2.0 ** (31 - integer_bits)


def one(raw: int) -> Integers:
    return np.array(raw, np.int64)


def test_constants_are_the_rounded_numbers() -> None:
    """The figures that gemmlowp writes out."""
    factors = [functions.constant(math.exp(-(2.0**power))) for power in range(-2, 5)]
    assert factors == [1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242]
    assert functions.constant(48 / 17, 2) == 1515870810
    assert functions.constant(-32 / 17, 2) == -1010580540


@pytest.mark.parametrize("bits", [0, 1, 3, 4, 5])
def test_exponentials_of_negative_numbers(bits: int) -> None:
    raw = raw_of(np.linspace(-(2.0**bits), 0, STEPS), bits)
    found = functions.exp_on_negative_values(raw, bits)
    assert np.abs(real_of(found) - np.exp(real_of(raw, bits))).max() < 2.5e-7
    assert found[-1] == INT32_MAX
    assert found.min() >= 0
    # Its pieces of a quarter meet within the error of the polynomial and no better.
    assert np.diff(found).min() > -600


@given(st.integers(INT32_MIN, 0))
@example(0)
@example(-1)
@example(INT32_MIN)
def test_any_exponent_of_q5_is_near(raw: int) -> None:
    found = int(functions.exp_on_negative_values(one(raw), 5))
    assert abs(found / 2**31 - math.exp(raw / 2**26)) < 2.5e-7


@pytest.mark.parametrize("bits", [-1, 6])
def test_exponentials_have_up_to_five_integer_bits(bits: int) -> None:
    with pytest.raises(ConfigError, match="integer bits"):
        functions.exp_on_negative_values(one(-1), bits)


@given(st.integers(0, INT32_MAX))
@example(0)
@example(INT32_MAX)
def test_quotients(raw: int) -> None:
    x = raw / 2**31
    inverse = int(functions.one_over_one_plus_x(one(raw)))
    assert abs(inverse / 2**31 - 1 / (1 + x)) < 8 / 2**31
    assert inverse <= INT32_MAX
    quotient = int(functions.one_minus_x_over_one_plus_x(one(raw)))
    assert abs(quotient / 2**31 - (1 - x) / (1 + x)) < 16 / 2**31


def test_logistic_and_tanh() -> None:
    raw = raw_of(np.linspace(-16, 16, STEPS), 4)
    x = real_of(raw, 4)
    assert np.abs(real_of(functions.logistic(raw, 4)) - 1 / (1 + np.exp(-x))).max() < 1e-7
    assert np.abs(real_of(functions.tanh(raw, 4)) - np.tanh(x)).max() < 2e-7
    assert int(functions.logistic(one(0), 4)) == 2**30
    assert int(functions.tanh(one(0), 4)) == 0


@given(st.integers(0, INT32_MAX))
def test_logistic_and_tanh_are_symmetric(raw: int) -> None:
    positive, negative = functions.logistic(one(raw), 4), functions.logistic(one(-raw), 4)
    assert int(positive + negative) == (INT32_MAX if raw else 2**31)
    assert int(functions.tanh(one(raw), 4)) == -int(functions.tanh(one(-raw), 4))


@given(st.integers(2**19, INT32_MAX))
@example(2**19)
@example(2**20)
@example(2**20 - 1)
@example(INT32_MAX)
def test_reciprocals_and_logarithms_of_sums(raw: int) -> None:
    real = raw / 2**19
    factor, shift = functions.reciprocal_of_at_least_one(one(raw), 12)
    assert int(shift) == math.floor(math.log2(real))
    assert abs(int(factor) / 2**31 * 2.0 ** -int(shift) * real - 1) < 1e-8
    logarithm = int(functions.log_of_at_least_one(one(raw), 12, 5))
    assert abs(logarithm / 2**26 - math.log(real)) < 1e-7


def test_logarithm_of_one_is_nothing() -> None:
    assert abs(int(functions.log_of_at_least_one(one(2**19), 12, 5))) <= 4


@given(st.integers(2, INT32_MAX))
@example(2)
@example(2**29 - 1)
@example(2**29)
@example(INT32_MAX)
def test_inverse_square_roots(value: int) -> None:
    multiplier, shift = functions.inverse_square_root(value)
    assert 0 < multiplier <= INT32_MAX
    assert abs(multiplier * 2.0 ** (shift - 31) * math.sqrt(value) - 1) < 3e-6


@pytest.mark.parametrize("value", [0, 1])
def test_the_inverse_square_root_of_one_and_of_zero(value: int) -> None:
    assert functions.inverse_square_root(value) == (INT32_MAX, 0)


@given(st.integers(0, 2**53 - 1))
def test_bit_lengths(value: int) -> None:
    assert int(functions.bit_length(one(value))) == value.bit_length()


def test_bits_are_those_that_agreed_with_hardware() -> None:
    """Kept from when whole tables equalled those of LiteRT 2.3 and TFLM (tests/engines/integer)."""
    assert int(functions.exp_on_negative_values(one(-(1 << 27)), 4)) == 790015308
    assert int(functions.one_over_one_plus_x(one(1 << 29))) == 1717986914
    assert int(functions.logistic(one(1 << 27), 4)) == 1569936226
    assert int(functions.tanh(one(-(1 << 26)), 4)) == -992388804
    assert int(functions.log_of_at_least_one(one(3 << 19), 12, 5)) == 73726624
    assert functions.inverse_square_root(4) == (1073741828, 0)
    assert functions.inverse_square_root(255) == (268961290, -1)


@pytest.mark.parametrize("name", ["logistic", "tanh"])
def test_nothing_gives_nothing(name: str) -> None:
    assert getattr(functions, name)(np.zeros((0, 3), np.int64), 4).shape == (0, 3)
