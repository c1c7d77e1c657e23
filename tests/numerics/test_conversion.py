"""Scale and zero point as a range, and back, against exact rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.errors import ConfigError, UsageError
from intact.numerics.affine_params import QuantParams
from intact.numerics.conversion import Quantization, ends_of_codes, params_of_ends

CODES = [(-128, 127), (-127, 127), (0, 255), (-8, 7), (0, 65535)]
scales = st.floats(2.0**-60, 2.0**60, width=32)


@given(scales, st.sampled_from(CODES), st.data())
def test_a_range_is_what_the_outer_codes_stand_for(
    scale: float, codes: tuple[int, int], data: st.DataObject
) -> None:
    zero_point = data.draw(st.integers(*codes))
    found = Quantization.of_scale(scale, zero_point, *codes)
    exact = [float((code - zero_point) * Fraction(scale)) for code in codes]
    assert [found.low, found.high] == exact
    assert (found.quant_min, found.quant_max, found.zero_point) == (*codes, zero_point)


@given(scales, st.sampled_from(CODES), st.data())
def test_there_and_back(scale: float, codes: tuple[int, int], data: st.DataObject) -> None:
    zero_point = data.draw(st.integers(*codes))
    there = Quantization.of_scale(scale, zero_point, *codes)
    back = Quantization.of_range(there.low, there.high, *codes, symmetric=False)
    assert back == there


def test_a_symmetric_range_and_one_without_zero() -> None:
    found = Quantization.of_range(-1.0, 2.54, -127, 127, symmetric=True)
    assert (found.scale, found.zero_point) == (np.float32(0.02), 0)
    widened = Quantization.of_range(2.0, 2.55, 0, 255, symmetric=False)
    assert (widened.low, widened.zero_point) == (0.0, 0)


@pytest.mark.parametrize(
    ("low", "high", "codes", "scale"),
    [
        (-1.28, 1.27, (-128, 127), 0.01),  # the inverse in [mqbench], of 8 bits
        (-0.64, 0.63, (-64, 63), 0.01),  # and of the 7 bits of its weights
        (0.0, 2.55, (0, 255), 0.01),
        (-1.27, 1.27, (-127, 127), 0.01),
        (-1.28, 1.28, (-128, 127), 1.28 / 127),  # 1.28 needs more than 1.27 does
        (-1.28, 0.5, (-128, 127), 0.01),
        (-0.5, 1.27, (-128, 127), 0.01),
        (0.0, 0.0, (-128, 127), 1.0),
    ],
)
def test_a_symmetric_range_has_the_smallest_scale_that_holds_it(
    low: float, high: float, codes: tuple[int, int], scale: float
) -> None:
    found = Quantization.of_range(low, high, *codes, symmetric=True)
    assert (found.scale, found.zero_point) == (np.float32(scale), 0)


@given(scales, st.sampled_from(CODES), st.booleans(), st.data())
def test_ends_as_they_are_written_come_back(
    scale: float, codes: tuple[int, int], symmetric: bool, data: st.DataObject
) -> None:
    """What a FakeQuantize holds in float32 gives a scale that writes the same two numbers."""
    zero_point = 0 if symmetric else data.draw(st.integers(*codes))
    params = QuantParams(np.asarray(scale, np.float32), np.asarray(zero_point))
    low, high = (float(end) for end in ends_of_codes(params, *codes))
    back = Quantization.of_range(low, high, *codes, symmetric=symmetric)
    again = QuantParams(np.asarray(back.scale), np.asarray(back.zero_point))
    assert [float(end) for end in ends_of_codes(again, *codes)] == [low, high]
    assert back.zero_point == zero_point
    # Two neighbours rarely write the same ends: then either is right.
    assert abs(back.scale - np.float32(scale)) <= np.spacing(np.float32(scale))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 1e-50, 1e-40, 1e50])
def test_impossible_scales(scale: float) -> None:
    with pytest.raises(UsageError, match="a scale of"):
        Quantization.of_scale(scale, 0, -128, 127)


def test_impossible_codes_and_ranges() -> None:
    with pytest.raises(UsageError, match="give a code: -128 to 127"):
        Quantization.of_scale(1.0, 128, -128, 127)
    with pytest.raises(ConfigError):
        Quantization.of_range(1.0, -1.0, -128, 127, symmetric=False)
    with pytest.raises(ConfigError):
        Quantization.of_range(float("nan"), 1.0, -128, 127, symmetric=False)


FAKE_QUANTIZE_CODES = [(-128, 127), (-127, 127), (0, 255), (-64, 63), (0, 127), (0, 65535), (0, 2)]


def rounded(number: Fraction) -> np.float32:
    """The float32 next to a rational, ties to even, found by integers alone."""
    if number == 0:
        return np.float32(0)
    exponent = -149
    while abs(number) >= Fraction(2) ** (exponent + 24):
        exponent += 1
    return np.float32(float(round(number / Fraction(2) ** exponent) * Fraction(2) ** exponent))


@given(scales, st.sampled_from(FAKE_QUANTIZE_CODES), st.data())
def test_ends_are_the_outer_codes_rounded_once(
    scale: float, codes: tuple[int, int], data: st.DataObject
) -> None:
    zero_point = data.draw(st.integers(*codes))
    params = QuantParams(np.asarray(scale, np.float32), np.asarray(zero_point))
    found = ends_of_codes(params, *codes)
    assert [end.dtype for end in found] == [np.float32, np.float32]
    for end, code in zip(found, codes, strict=True):
        assert end == rounded((code - zero_point) * Fraction(scale))


@given(scales, st.sampled_from(FAKE_QUANTIZE_CODES), st.data())
def test_ends_give_the_scale_back(
    scale: float, codes: tuple[int, int], data: st.DataObject
) -> None:
    zero_point = data.draw(st.integers(*codes))
    params = QuantParams(np.asarray(scale, np.float32), np.asarray(zero_point))
    low, high = ends_of_codes(params, *codes)
    back = params_of_ends(low, high, *codes)
    assert back.zero_point == zero_point
    # Two neighbours may have the same ends; then either is right.
    assert ends_of_codes(back, *codes) == (low, high)
    assert abs(back.scale - params.scale) <= np.spacing(params.scale)
    if codes in [(-128, 127), (-64, 63)] and zero_point == 0:  # low is a power of two times it
        assert back.scale == params.scale


def test_few_scales_share_their_ends_with_a_neighbour() -> None:
    scale = np.random.default_rng(0).uniform(0.001, 1, 20_000).astype(np.float32)
    params = QuantParams(scale, np.zeros(scale.size, np.int64))
    back = params_of_ends(*ends_of_codes(params, 0, 255), 0, 255)
    assert 0 < np.count_nonzero(back.scale != scale) < scale.size / 150


def test_ends_by_channel_and_beyond_float32() -> None:
    params = QuantParams(np.array([0.5, 3e38], np.float32), np.array([0, 0]))
    low, high = ends_of_codes(params, -128, 127)
    assert low.tolist() == [-64.0, -np.inf]
    assert high.tolist() == [63.5, np.inf]


def test_half_range_keeps_the_scale() -> None:
    params = QuantParams(np.asarray(0.1, np.float32), np.asarray(0))
    low, high = ends_of_codes(params, -128, 127)  # 128 levels stored as 256
    narrow = ends_of_codes(params, -64, 63)
    assert low == 2 * narrow[0]
    assert params_of_ends(low, high, -128, 127) == params


def test_ends_with_0_between_two_levels_give_the_nearest() -> None:
    ends = [np.array([end], np.float32) for end in (-1.26, 1.29)]
    back = params_of_ends(ends[0], ends[1], 0, 255)
    assert back.zero_point.tolist() == [126]
    np.testing.assert_allclose(back.scale, 0.01, rtol=1e-6)


@pytest.mark.parametrize(("low", "high", "code"), [(2.0, 3.0, 0), (-3.0, -2.0, 255)])
def test_ends_beside_zero_have_the_nearest_code_for_it(low: float, high: float, code: int) -> None:
    params = params_of_ends(np.asarray(np.float32(low)), np.asarray(np.float32(high)), 0, 255)
    assert int(params.zero_point) == code


def test_ends_of_steps_below_normal_numbers_have_the_smallest_normal_scale() -> None:
    params = params_of_ends(np.asarray(np.float32(0)), np.asarray(np.float32(1e-44)), 0, 255)
    assert params.scale == np.finfo(np.float32).tiny
