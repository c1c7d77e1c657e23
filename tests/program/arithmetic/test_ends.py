"""Grids that are told by the ends of their range, against exact numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.errors import ConfigError
from intact.numerics.fused import fused_float32
from intact.program import Encoding
from intact.program.arithmetic.ends import (
    EndsGrid,
    effective,
    effective_weight,
    ends_codes,
    has_ends,
)
from intact.program.arithmetic.reals import to_codes
from intact.program.operations import Bounds
from intact.targets import Arithmetic, FloatEnds, FloatOnce, ZeroPointOrder
from tests.program.one_step import int8, uint8

ENDS = Arithmetic(requantize=FloatEnds())
BEFORE = Arithmetic(requantize=FloatEnds(), zero_point=ZeroPointOrder.BEFORE_ROUNDING)
PLAIN = Arithmetic(requantize=FloatOnce())

scales = st.floats(2.0**-20, 2.0**10, width=32)


def encodings() -> st.SearchStrategy[Encoding]:
    signed = st.builds(int8, scales, st.integers(-128, 127))
    return st.one_of(signed, st.builds(uint8, scales, st.integers(0, 255)))


@given(encodings(), st.floats(-1e4, 1e4, width=32))
def test_codes_are_the_nearest_but_next_to_ties(encoding: Encoding, number: float) -> None:
    limits = (encoding.quant_min, encoding.quant_max)
    (code,) = ends_codes(np.array([number], np.float32), ENDS, encoding, limits)
    exact = Fraction(number) / Fraction(encoding.scale.item()) + encoding.zero_point.item()
    clamped = min(max(exact, Fraction(limits[0])), Fraction(limits[1]))
    assert abs(Fraction(int(code)) - clamped) <= Fraction(1, 2) + Fraction(1, 2**10)


@given(encodings())
def test_what_codes_stand_for_comes_back(encoding: Encoding) -> None:
    codes = np.arange(encoding.quant_min, encoding.quant_max + 1)
    held = effective(ENDS, encoding)
    numbers = ((codes - held.zero_point) * held.scale).astype(np.float32)
    limits = (encoding.quant_min, encoding.quant_max)
    for arithmetic in (ENDS, BEFORE):
        np.testing.assert_array_equal(ends_codes(numbers, arithmetic, encoding, limits), codes)


@given(encodings())
def test_the_effective_scale_is_next_to_the_scale(encoding: Encoding) -> None:
    made = effective(ENDS, encoding).scale.item()
    assert abs(made - encoding.scale.item()) <= np.spacing(encoding.scale) * 2
    assert effective(PLAIN, encoding) is encoding
    assert has_ends(ENDS)
    assert not has_ends(PLAIN)


def test_an_offset_need_not_be_whole() -> None:
    grid = EndsGrid.from_encoding(ENDS, uint8(0.317, 121))
    assert grid.offset.item() == np.nextafter(np.float32(121), np.float32(0))
    assert grid.first == 0
    assert grid.with_stored_scale() is grid


def test_signed_symmetric_codes_have_no_offset() -> None:
    grid = EndsGrid.from_encoding(BEFORE, int8(0.105317034))
    assert 0 < grid.offset.item() < 1e-4  # 128.00002 - 128
    stored = grid.with_stored_scale()
    assert stored.offset.item() == 0
    assert stored.factor.item() == np.float32(1) / (np.float32(1) / grid.factor.item())


def test_ties_go_to_the_even_code() -> None:
    numbers = np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    codes = ends_codes(numbers, ENDS, int8(1.0), (-128, 127))
    assert codes.tolist() == [0, 2, 2, 0, -2]


def test_units_and_limits() -> None:
    numbers = np.array([[-300.0, 3.0, 300.0]], np.float32)
    codes = ends_codes(numbers, ENDS, uint8(0.5), (0, 200), unit=0.25)
    assert codes.dtype == np.uint8
    assert codes.tolist() == [[0, 2, 150]]


def test_one_scale_a_channel() -> None:
    encoding = Encoding(np.array([1, 2], np.float32), np.array([0, 4], np.int64), 0, 255, axis=0)
    numbers = np.array([[3, 4, 5], [6, 8, -4]], np.float32)
    found = to_codes(numbers, ENDS, encoding)
    assert found.tolist() == [[3, 4, 5], [7, 8, 2]]
    assert to_codes(numbers, ENDS, encoding, Bounds(0, 8)).max() <= 8


def test_fewer_bits_are_stored_as_all() -> None:
    seven = Encoding(np.asarray(0.1, np.float32), np.asarray(0, np.int64), -64, 63)
    stored = effective(ENDS, int8(0.1)).scale
    assert effective_weight(ENDS, seven).scale == stored
    assert effective_weight(PLAIN, seven) is seven
    narrow = Encoding(np.asarray(0.1, np.float32), np.asarray(0, np.int64), -127, 127)
    assert effective_weight(ENDS, narrow).scale == effective(ENDS, narrow).scale


def test_ranges_beyond_float32_are_refused() -> None:
    with pytest.raises(ConfigError, match="too small or too large"):
        EndsGrid.from_encoding(ENDS, uint8(1e38))


def test_one_rounding() -> None:
    tiny = np.float32(2.0**-24)
    one = np.float32(1)
    fused: object = fused_float32(one + 2 * tiny, one - tiny, -one)
    assert fused == np.float32(2.0**-24 - 2.0**-47)
