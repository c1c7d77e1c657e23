"""Requantization against exact rationals and the definitions of the numbers' own types."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.config import Rounding
from intact.errors import ConfigError
from intact.numerics.fixed_point import multiply_by_quantized_multiplier, quantize_multiplier
from intact.numerics.rounding import round_to_integer
from intact.program import Encoding
from intact.program.arithmetic.requantize import Requantizer, code_bounds, real_multiplier
from intact.program.operations import Bounds
from intact.targets import (
    Arithmetic,
    FixedPoint,
    FloatOnce,
    FloatType,
    Multiplier,
    Product,
    Shift,
    ZeroPointOrder,
)
from intact.targets.arithmetic import Requantization
from tests.program.one_step import int8, int32, uint8

AWAY = Rounding.HALF_AWAY_FROM_ZERO
MULTIPLIED = [
    FixedPoint(Product.DOUBLE),
    FixedPoint(Product.SINGLE),
    FixedPoint(Product.WIDE),
    FloatOnce(),
    FloatOnce(precision=FloatType.FLOAT64),
]
KINDS = [*MULTIPLIED, Shift()]
ODD = np.array([[-1001, 7, 0], [2**31 - 1, -(2**31), 333], [64, -64, 63], [1, -1, 5]], np.int32)


def clamped(codes: npt.NDArray[Any], zero_point: int = 0) -> npt.NDArray[np.int8]:
    return np.asarray(np.clip(codes + zero_point, -128, 127), np.int8)


def rational(number: float) -> Fraction:
    return Fraction(float(number))


def rounded(number: Fraction, mode: Rounding) -> int:
    """Round a rational of few bits: float64 holds it exactly."""
    assert Fraction(float(number)) == number
    return int(round_to_integer(np.array([float(number)]), mode)[0])


def test_fixed_point_double_is_multiply_by_quantized_multiplier() -> None:
    factors = np.array([0.0123, 0.5, 1.7e-7])
    for rounding in (AWAY, Rounding.HALF_UP):
        arithmetic = Arithmetic(requantize=FixedPoint(Product.DOUBLE), rounding=rounding)
        found = Requantizer(arithmetic, factors, int8(0.1, -5))(ODD)
        expected = multiply_by_quantized_multiplier(
            ODD, *quantize_multiplier(factors), rounding=rounding
        )
        assert np.array_equal(found, clamped(expected, -5))
        assert found.dtype == np.int8


def test_the_two_roundings_of_a_double_shift_differ_on_negative_ties() -> None:
    away = Arithmetic(requantize=FixedPoint(Product.DOUBLE), rounding=AWAY)
    up = Arithmetic(requantize=FixedPoint(Product.DOUBLE), rounding=Rounding.HALF_UP)
    sums = np.array(
        [-4, 4], np.int32
    )  # a quarter: the first rounding halves, exactly, the second ties
    assert Requantizer(away, 0.125, int8(1))(sums).tolist() == [-1, 1]
    assert Requantizer(up, 0.125, int8(1))(sums).tolist() == [0, 1]


def test_single_rounding_differs_from_double_rounding() -> None:
    single = Arithmetic(requantize=FixedPoint(Product.SINGLE))
    double = Arithmetic(requantize=FixedPoint(Product.DOUBLE), rounding=AWAY)
    sums = np.array([3], np.int32)  # 3 / 8: doubly rounded 0.375 -> 0.5 (in quarters 1.5 -> 2) -> 1
    assert Requantizer(single, 0.125, int8(1))(sums).tolist() == [0]
    assert Requantizer(double, 0.125, int8(1))(sums).tolist() == [1]


@settings(max_examples=60)
@given(
    st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=20),
    st.floats(2.0**-16, 2.0, width=32),
    st.sampled_from(list(Rounding)),
    st.sampled_from([np.int32, np.int64, np.float32, np.float64]),
)
def test_float64_rounds_the_product_once(
    sums: list[int], factor: float, mode: Rounding, dtype: Any
) -> None:
    arithmetic = Arithmetic(requantize=FloatOnce(precision=FloatType.FLOAT64), rounding=mode)
    found = Requantizer(arithmetic, factor, int8(1, 3))(np.array(sums, dtype))
    expected = [min(max(rounded(rational(factor) * value, mode) + 3, -128), 127) for value in sums]
    assert found.tolist() == expected  # 24 bits times 21 are exact in float64


@pytest.mark.parametrize("mode", list(Rounding))
@pytest.mark.parametrize("order", list(ZeroPointOrder))
def test_float32_multiplies_in_float32(mode: Rounding, order: ZeroPointOrder) -> None:
    generator = np.random.default_rng(1)
    sums = generator.integers(-(2**30), 2**30, (50, 4)).astype(np.int32)
    sums[0] = [16777217, -16777217, 3, -3]
    factors = np.array([1e-7, 0.5, 3e-8, 0.25], np.float32)
    arithmetic = Arithmetic(requantize=FloatOnce(), rounding=mode, zero_point=order)
    found = Requantizer(arithmetic, factors, int8(1, 3))(sums)
    products = sums.astype(np.float32) * factors
    if order is ZeroPointOrder.BEFORE_ROUNDING:
        expected = round_to_integer(products + np.float32(3), mode)
    else:
        expected = round_to_integer(products, mode) + 3
    assert np.array_equal(found, np.clip(expected, -128, 127))


@pytest.mark.parametrize("kind", [FloatOnce(), FloatOnce(precision=FloatType.FLOAT64), Shift()])
def test_the_order_of_an_odd_zero_point_decides_ties(kind: Requantization) -> None:
    sums = np.array([-3, -1, 1, 3, 5], np.int32)  # halves
    after = Arithmetic(requantize=kind)
    before = Arithmetic(requantize=kind, zero_point=ZeroPointOrder.BEFORE_ROUNDING)
    assert Requantizer(after, 0.5, int8(1, 1))(sums).tolist() == [-1, 1, 1, 3, 3]
    assert Requantizer(before, 0.5, int8(1, 1))(sums).tolist() == [0, 0, 2, 2, 4]


@settings(max_examples=60)
@given(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=12),
    st.integers(-24, 3),
    st.sampled_from(list(Rounding)),
)
def test_a_shift_is_an_exact_division(sums: list[int], exponent: int, mode: Rounding) -> None:
    arithmetic = Arithmetic(requantize=Shift(), rounding=mode)
    found = Requantizer(arithmetic, 2.0**exponent, int8(1, -7))(np.array(sums, np.int32))
    expected = [rounded(value * Fraction(2) ** exponent, mode) - 7 for value in sums]
    assert found.tolist() == np.clip(expected, -128, 127).tolist()


def test_a_shift_needs_a_power_of_two() -> None:
    with pytest.raises(ConfigError, match="power of two"):
        Requantizer(Arithmetic(requantize=Shift()), 0.3, int8(1))


@pytest.mark.parametrize("kind", MULTIPLIED)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_multiplier_that_is_not_finite_is_refused(kind: Requantization, bad: float) -> None:
    with pytest.raises(ConfigError, match="not finite"):
        Requantizer(Arithmetic(requantize=kind), [1.0, bad], int8(1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_type_of_the_accumulator_is_indifferent(kind: Requantization) -> None:
    sums = np.array([[-100, 3, 77777], [2**23, -(2**23), 0]], np.int32)
    requantizer = Requantizer(Arithmetic(requantize=kind), [0.5, 0.25, 2**-10], uint8(1, 100))
    expected = requantizer(sums)
    assert expected.dtype == np.uint8
    for dtype in (np.int64, np.float32, np.float64):
        assert np.array_equal(requantizer(sums.astype(dtype)), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bias_is_added_to_the_accumulator(kind: Requantization) -> None:
    sums = np.array([[-100, 3, 777], [200, -999, 0]], np.int32)
    bias = np.array([-5, 100000, 7], np.int32)
    arithmetic = Arithmetic(requantize=kind)
    for factors in ([0.5, 2**-12, 0.25], 0.5):
        found = Requantizer(arithmetic, factors, int8(1), bias=bias)(sums)
        assert np.array_equal(found, Requantizer(arithmetic, factors, int8(1))(sums + bias))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (2, 0, 3), (2, 5, 1, 3), (3,)])
def test_shapes_are_kept(kind: Requantization, shape: tuple[int, ...]) -> None:
    sums = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    per_channel = Requantizer(Arithmetic(requantize=kind), [0.5, 0.5, 0.5], int8(1))(sums)
    whole = Requantizer(Arithmetic(requantize=kind), 0.5, int8(1))(sums)
    assert per_channel.shape == whole.shape == shape
    assert np.array_equal(per_channel, whole)


def test_one_element_without_axes() -> None:
    requantizer = Requantizer(Arithmetic(requantize=FloatOnce()), 0.5, int8(1))
    assert requantizer(np.asarray(np.int32(6))).shape == ()
    assert int(requantizer(np.asarray(np.int32(6)))) == 3


def test_accumulators_of_any_strides_are_taken() -> None:
    sums = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    requantizer = Requantizer(Arithmetic(requantize=FloatOnce()), [1, 2, 3], int8(1))
    turned = sums.transpose(0, 2, 1)
    assert np.array_equal(requantizer(turned), np.clip(turned * [1, 2, 3], -128, 127))
    frozen = sums.copy()
    frozen.flags.writeable = False
    whole = Requantizer(Arithmetic(requantize=FloatOnce()), 1.0, int8(1))
    assert np.array_equal(whole(frozen), sums)


@pytest.mark.crossed
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("output", [int8(1), uint8(1), int32(1), int8([1, 1], [3, -4], axis=1)])
def test_extremes_saturate_at_the_outputs_codes(kind: Requantization, output: Encoding) -> None:
    sums = np.array([[2**31 - 1, 2**31 - 1], [-(2**31), -(2**31)], [0, 0]], np.int32)
    found = Requantizer(Arithmetic(requantize=kind), [1.0, 1.0], output)(sums)
    fixed = kind in (FixedPoint(Product.DOUBLE), FixedPoint(Product.SINGLE))
    if fixed and output.quant_max > 255:
        return  # 1.0 is a shift to the left by one, which wraps
    if not fixed:
        assert found[0].tolist() == [output.quant_max] * 2
        assert found[1].tolist() == [output.quant_min] * 2
    zeros = np.broadcast_to(output.zero_point, (2,))
    assert found[2].tolist() == zeros.tolist()


def test_bounds_clamp() -> None:
    arithmetic = Arithmetic(requantize=FixedPoint(Product.DOUBLE), rounding=AWAY)
    sums = np.array([-500, -1, 0, 50, 5000], np.int32)
    relu = Requantizer(arithmetic, 1.0, int8(0.1, -10), Bounds(0))(sums)
    relu6 = Requantizer(arithmetic, 1.0, int8(0.1, -10), Bounds(0, 6))(sums)
    assert relu.tolist() == [-10, -10, -10, 40, 127]
    assert relu6.tolist() == [-10, -10, -10, 40, 50]


@pytest.mark.parametrize(
    ("bounds", "output", "expected"),
    [
        (Bounds(), int8(0.1), (-128, 127)),
        (Bounds(0), int8(0.1, 5), (5, 127)),
        (Bounds(0), int8(0.1, -128), (-128, 127)),
        (Bounds(0, 6), int8(0.1, -100), (-100, -40)),
        (Bounds(0, 6), int8(0.01), (0, 127)),  # 600 steps
        (Bounds(-1, 1), int8(0.4), (-3, 3)),  # 2.5, away from zero
        (Bounds(-100, -90), int8(0.1), (-128, -128)),  # both outside the codes
        (Bounds(0, 6), uint8(0.5, 128), (128, 140)),
        (Bounds(0, 6), uint8(1e-45, 128), (128, 255)),  # infinitely many steps
    ],
)
def test_codes_of_bounds(bounds: Bounds, output: Encoding, expected: tuple[int, int]) -> None:
    arithmetic = Arithmetic(requantize=FixedPoint(Product.DOUBLE))
    assert code_bounds(arithmetic, output, bounds) == expected


def test_codes_of_bounds_follow_the_rounding_of_float_hardware() -> None:
    arithmetic = Arithmetic(requantize=FloatOnce(), rounding=Rounding.HALF_EVEN)
    assert code_bounds(arithmetic, int8(0.4), Bounds(-1, 1)) == (-2, 2)


def test_multipliers_are_computed_in_the_precision_that_is_asked_for() -> None:
    left, right = np.array(0.012, np.float32), np.array([0.3, 0.7], np.float32)
    out = int8(0.011)
    narrow = real_multiplier(Arithmetic(requantize=FloatOnce()), [left, right], out)
    assert narrow.dtype == np.float32
    assert np.array_equal(narrow, left * right / np.float32(0.011))
    wide = real_multiplier(
        Arithmetic(requantize=FloatOnce(multiplier=Multiplier.FLOAT64)),
        [left, right],
        out,
    )
    exact = [
        float(rational(float(left)) * rational(each) / rational(float(np.float32(0.011))))
        for each in right
    ]
    assert wide.dtype == np.float64
    assert np.allclose(wide, exact, rtol=1e-15, atol=0)
    assert not np.array_equal(wide, narrow)


def test_products_in_float32_are_divided_in_float64() -> None:
    arithmetic = Arithmetic(requantize=FloatOnce(multiplier=Multiplier.FLOAT32_PRODUCT))
    left, right = np.array(0.012, np.float32), np.array(0.3, np.float32)
    found = real_multiplier(arithmetic, [left, right], int8(0.011))
    assert found.dtype == np.float64
    assert float(found) == float(left * right) / float(np.float32(0.011))


def test_multipliers_may_have_few_bits() -> None:
    arithmetic = Arithmetic(requantize=FixedPoint(Product.SINGLE, multiplier_bits=8))
    scales = np.array([0.3, 0.5 / 256, 1.5 / 256, -0.3], np.float32)  # two ties, to even
    multiplier = real_multiplier(arithmetic, [scales], int8(1))
    assert (multiplier * 256).tolist() == [77, 0, 2, -77]
    found = Requantizer(arithmetic, multiplier, int8(1, 5))(np.full((1, 4), 64, np.int32))
    assert found.tolist() == [[24, 5, 6, -14]]  # 19.25, 0, 0.5 up, -19.25


def test_channels_are_one_axis() -> None:
    with pytest.raises(ConfigError, match="channels"):
        Requantizer(Arithmetic(requantize=FloatOnce()), np.ones((2, 2)), int8(1))
