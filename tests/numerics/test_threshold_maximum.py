"""The two simple methods of [tvm]: scale = threshold / 2^(bits - sign_bit)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.errors import CalibrationError
from intact.numerics.affine import fake_quantize, params_from_range
from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels, Scheme
from intact.numerics.thresholds import estimate_range, threshold_of
from intact.numerics.weight_range import weight_range
from tests.numerics.arrays import float32

SIZES = st.floats(2.0**-60, 2.0**60, width=32)
BITS = st.integers(2, 16)


def levels_of(bits: int, *, signed: bool) -> Levels:
    if signed:
        return Levels(1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1, Scheme.SYMMETRIC)
    return Levels(0, 2**bits - 1, Scheme.ONE_SIDED)


def scale_of(low: float, high: float, levels: Levels) -> float:
    params = params_from_range(low, high, levels.quant_min, levels.quant_max, symmetric=True)
    return float(params.scale)


@given(SIZES, BITS, st.booleans())
def test_the_scale_of_max_range_is_that_of_the_document(
    largest: float, bits: int, signed: bool
) -> None:
    levels = levels_of(bits, signed=signed)
    distribution = Distribution.from_values(float32(largest, 0.25 * largest))
    low, high = estimate_range(distribution, levels, "max_range")
    assert scale_of(low, high, levels) == largest / 2.0 ** (bits - signed)
    assert threshold_of(low, high, levels, "max_range") == largest


@given(SIZES, BITS, st.booleans())
def test_power2_range_gives_a_power_of_two(largest: float, bits: int, signed: bool) -> None:
    levels = levels_of(bits, signed=signed)
    low, high = estimate_range(Distribution.from_values(float32(largest)), levels, "power2_range")
    threshold = threshold_of(low, high, levels, "power2_range")
    assert math.frexp(threshold)[0] == 0.5
    assert 2**-0.5 <= threshold / largest <= 2**0.5
    assert scale_of(low, high, levels) == threshold / 2.0 ** (bits - signed)


def test_the_numbers_of_an_activation() -> None:
    """Of 8 bits: the largest magnitude is 128 steps, of which the codes hold 127."""
    values, levels = float32(-4.1757, 3.5, 0.1), levels_of(8, signed=True)
    distribution = Distribution.from_values(values)
    largest = float(np.float32(4.1757))
    thresholds = {"max_range": largest, "power2_range": 4.0, "minmax": largest}
    for method, threshold in thresholds.items():
        low, high = estimate_range(distribution, levels, method)
        assert threshold_of(low, high, levels, method) == threshold
        divisor = 127 if method == "minmax" else 128
        assert scale_of(low, high, levels) == np.float32(threshold / divisor)
    scale = np.float32(largest / 128)
    codes = fake_quantize(values, scale, np.int64(0), -127, 127) / scale
    assert codes.round().tolist()[0] == -127  # the largest one saturates


def test_codes_of_one_sign_take_the_largest_value_of_it() -> None:
    distribution = Distribution.from_values(float32(-9.0, 4.0))
    levels = levels_of(8, signed=False)
    low, high = estimate_range(distribution, levels, "max_range")
    assert (low, threshold_of(low, high, levels, "max_range")) == (0.0, 4.0)


@pytest.mark.parametrize("method", ["max_range", "power2_range"])
def test_a_weight_has_the_threshold_of_each_channel(method: str) -> None:
    weight = np.array([[3.0, -4.1757], [0.0, 0.0], [0.5, 0.25]], np.float32)
    levels = levels_of(8, signed=True)
    low, high = weight_range(weight, levels, method, 0)
    assert np.array_equal(low, -high)
    expected = [np.abs(row).max() for row in weight]
    if method == "power2_range":
        expected = [4.0, 0.0, 0.5]
    assert np.array_equal(threshold_of(low, high, levels, method), expected)
    _, whole = weight_range(weight, levels, method, None)
    assert threshold_of(0.0, float(whole), levels, method) == expected[0]


@pytest.mark.parametrize("method", ["max_range", "power2_range"])
@pytest.mark.parametrize(
    ("levels", "kind"),
    [
        (Levels(0, 255, Scheme.ASYMMETRIC), "asymmetric"),
        (Levels(-127, 127, Scheme.SYMMETRIC, 16), "logarithmic"),
    ],
)
def test_weights_without_such_steps_are_refused_with_what_there_is(
    method: str, levels: Levels, kind: str
) -> None:
    with pytest.raises(CalibrationError, match=rf"{kind} weights.*minmax or mse"):
        weight_range(float32(1.0, -1.0), levels, method, None)
