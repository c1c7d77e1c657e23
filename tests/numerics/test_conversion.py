"""Scale and zero point as a range, and back, against exact rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.errors import ConfigError, UsageError
from intact.numerics.conversion import Quantization

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


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 1e-50, 1e50])
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
