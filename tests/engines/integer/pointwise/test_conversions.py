"""Between floats and codes: exact arithmetic, and the runtimes for every code."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.config import Rounding
from intact.engines.integer.pointwise.conversions import recoder
from intact.formats.tflite.write import program_to_tflite
from intact.program import Array, Encoding
from intact.program.operations import Dequantize, Quantize, Requantize
from intact.targets import Arithmetic
from tests.engines.integer.hardware import (
    AFTER,
    BEFORE,
    DOUBLE,
    SHIFT,
    SINGLE,
    as_int8,
    computed,
    onnxruntime,
    run_step,
)
from tests.engines.integer.one_op import OPTIMIZED, REFERENCE, XNNPACK, litert, micro
from tests.program.one_step import int8, one_step, uint8, with_options

CODES = np.arange(-128, 128).astype(np.int8).reshape(1, 256)
HALF_UP = msgspec.structs.replace(DOUBLE, rounding=Rounding.HALF_UP)
EIGHT_BITS = with_options(SINGLE, multiplier_bits=8)
RECIPROCAL = msgspec.structs.replace(AFTER, reciprocal_scale=True)
PAIRS = [
    (int8(0.5), int8(1.0)),
    (int8(1.0, 3), int8(4.0, -5)),
    (int8(0.0371, -128), int8(0.0113, 127)),
    (int8(0.02, 10), int8(0.031, -20)),
]


def _even(encoding: Encoding) -> Encoding:
    return Encoding(encoding.scale, encoding.zero_point, -128, 127, rounding=Rounding.HALF_EVEN)


def _floats(scale: float) -> Array:
    steps = np.concatenate([np.arange(-300, 300) / 2, np.linspace(-140, 140, 999)])
    return np.asarray(steps * np.float32(scale), np.float32).reshape(1, -1)


@pytest.mark.parametrize("pair", PAIRS)
def test_codes_become_those_that_the_runtimes_make(pair: tuple[Encoding, Encoding]) -> None:
    source, target = pair
    ends = [(CODES.shape, source)], [(CODES.shape, target)]
    program = one_step(Requantize(), DOUBLE, *ends)
    model, ours = program_to_tflite(program), computed(program, CODES)
    np.testing.assert_array_equal(ours, litert(model, CODES, kernels=REFERENCE))
    np.testing.assert_array_equal(ours, micro(model, CODES))
    ours = computed(one_step(Requantize(), HALF_UP, *ends), CODES)
    np.testing.assert_array_equal(ours, litert(model, CODES, kernels=OPTIMIZED))
    ours = computed(one_step(Requantize(), EIGHT_BITS, *ends), CODES)
    np.testing.assert_array_equal(ours, litert(model, CODES, kernels=XNNPACK))
    ours = computed(one_step(Requantize(), AFTER, *ends), CODES)
    np.testing.assert_array_equal(ours, onnxruntime("Identity", [(CODES, source)], target))


@pytest.mark.parametrize("encoding", [int8(0.5, 3), int8(0.0371, -128), int8(0.02, 10)])
def test_floats_become_the_codes_that_the_runtimes_make(encoding: Encoding) -> None:
    values = _floats(float(encoding.scale))
    ends = [(values.shape, None)], [(values.shape, encoding)]
    program = one_step(Quantize(), DOUBLE, *ends)
    model, ours = program_to_tflite(program), computed(program, values)
    np.testing.assert_array_equal(ours, litert(model, values, kernels=REFERENCE))
    np.testing.assert_array_equal(ours, micro(model, values))
    even = [(values.shape, _even(encoding))]
    ours = computed(one_step(Quantize(), RECIPROCAL, ends[0], even), values)
    np.testing.assert_array_equal(ours, litert(model, values, kernels=XNNPACK))
    back = one_step(Dequantize(), DOUBLE, [(CODES.shape, encoding)], [(CODES.shape, None)])
    floats = computed(back, CODES)
    np.testing.assert_array_equal(floats, litert(program_to_tflite(back), CODES))
    assert floats.dtype == np.float32


@given(
    st.floats(-300, 300, width=32),
    st.sampled_from([0.25, 0.1, 3.0]),
    st.integers(0, 255),
    st.sampled_from(list(Rounding)),
)
def test_a_float_is_divided_and_rounded_in_float32(
    value: float, scale: float, zero_point: int, rounding: Rounding
) -> None:
    plain = uint8(scale, zero_point)
    encoding = Encoding(plain.scale, plain.zero_point, 0, 255, rounding=rounding)
    values = np.asarray([value], np.float32)
    quotient = Fraction(float(values[0] / encoding.scale))
    ours = run_step(Quantize(), AFTER, [((1,), None)], ((1,), encoding), values)
    assert ours.tolist() == [max(0, min(255, _rounded(quotient, rounding) + zero_point))]


def _rounded(value: Fraction, rounding: Rounding) -> int:
    floor = value.numerator // value.denominator
    rest = value - floor
    if rounding is Rounding.UP:
        return floor + (rest > 0)
    if rest != Fraction(1, 2):
        return floor + (rest > Fraction(1, 2))
    up = {
        Rounding.HALF_UP: True,
        Rounding.HALF_DOWN: False,
        Rounding.HALF_TOWARD_ZERO: value < 0,
        Rounding.HALF_AWAY_FROM_ZERO: value > 0,
    }
    return floor + up.get(rounding, floor % 2 == 1)


def test_the_zero_point_before_rounding_moves_ties() -> None:
    values = np.asarray([0.5, 1.5, -0.5], np.float32)
    ends = [((3,), None)], ((3,), uint8(1.0, 3))
    assert run_step(Quantize(), AFTER, *ends, values).tolist() == [3, 5, 3]
    assert run_step(Quantize(), BEFORE, *ends, values).tolist() == [4, 4, 2]


def test_what_is_no_finite_number_saturates() -> None:
    values = np.asarray([np.nan, np.inf, -np.inf, 3e38, -3e38], np.float32)
    ours = run_step(Quantize(), AFTER, [((5,), None)], ((5,), int8(1e-3, 7)), values)
    assert ours.tolist() == [-128, 127, -128, 127, -128]
    highest = msgspec.structs.replace(RECIPROCAL, nan_is_highest=True)
    ends = [(values.shape, None)], [(values.shape, int8(1e-3, 7))]
    program = one_step(Quantize(), highest, *ends)
    ours = computed(program, values)
    assert ours.tolist() == [127, 127, -128, 127, -128]
    found = litert(program_to_tflite(program), values, kernels=XNNPACK)
    np.testing.assert_array_equal(ours, found)


@pytest.mark.parametrize("axis", [1, -2])
def test_scales_by_channel(axis: int) -> None:
    encoding = int8([0.5, 2.0], [1, -1], axis=axis)
    values = np.asarray([[[1.0, 2.0, 3.0], [4.0, 6.0, -8.0]]] * 2, np.float32)
    codes = run_step(Quantize(), AFTER, [(values.shape, None)], (values.shape, encoding), values)
    assert codes.tolist() == [[[3, 5, 7], [1, 2, -5]]] * 2
    back = run_step(Dequantize(), AFTER, [(values.shape, encoding)], (values.shape, None), codes)
    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize("operation", [Quantize(), Dequantize(), Requantize()])
@pytest.mark.parametrize("shape", [(0, 4), (1, 1), ()])
def test_odd_shapes_pass(
    operation: Quantize | Dequantize | Requantize, shape: tuple[int, ...]
) -> None:
    source = None if isinstance(operation, Quantize) else int8(0.5)
    target = None if isinstance(operation, Dequantize) else int8(0.25, 1)
    array = np.ones(shape, np.float32 if source is None else np.int8)
    result = run_step(operation, DOUBLE, [(shape, source)], (shape, target), array)
    assert result.shape == shape
    assert result.dtype == (np.float32 if target is None else np.int8)


def test_wide_codes_are_converted_without_a_table() -> None:
    zero = np.zeros((), np.int64)
    wide = Encoding(np.asarray(2.0**-10, np.float32), zero, -(2**31), 2**31 - 1)
    codes = np.asarray([2**30, -(2**30), 1536, -1536, 512], np.int32)
    ours = run_step(Requantize(), SHIFT, [((5,), wide)], ((5,), int8(1.0)), codes)
    assert ours.tolist() == [127, -128, 2, -1, 1]


def test_codes_beyond_the_range_are_taken_as_they_are() -> None:
    narrow = Encoding(np.asarray(1.0, np.float32), np.zeros((), np.int64), -127, 127)
    ours = run_step(Requantize(), AFTER, [((2,), narrow)], ((2,), int8(2.0)), as_int8([-128, 127]))
    assert ours.tolist() == [-64, 64]


def test_unsigned_and_signed_codes_change_places() -> None:
    codes = np.arange(256).astype(np.uint8)
    for arithmetic in (DOUBLE, AFTER, Arithmetic(requantize=SHIFT.requantize)):
        ends = [((256,), uint8(0.5, 128))], ((256,), int8(0.5))
        ours = run_step(Requantize(), arithmetic, *ends, codes)
        assert ours.tolist() == list(range(-128, 128))


def test_the_ratio_of_scales_and_the_number_between_differ_on_ties() -> None:
    """``code * (s_x / s_y)`` and ``(code * s_x) / s_y`` in float32, each rounded half away."""
    source, target = int8(0.12642638, 3), int8(0.061923128, -2)
    plain = msgspec.structs.replace(AFTER, rounding=Rounding.HALF_AWAY_FROM_ZERO)
    by_ratio = with_options(plain, ratio_conversions=True)
    steps = CODES.astype(np.float32) - 3
    ratio = steps * (source.scale / target.scale)
    number = (steps * source.scale) / target.scale
    found = []
    for arithmetic, exact in ((by_ratio, ratio), (plain, number)):
        away = np.sign(exact) * np.floor(np.abs(exact).astype(np.float64) + 0.5)
        codes = recoder(arithmetic, source, target)(CODES)
        np.testing.assert_array_equal(codes, np.clip(away - 2, -128, 127))
        found.append(codes)
    assert (found[0] != found[1]).any()


def test_channels_with_ranges_of_their_own() -> None:
    """One with two codes, one with one, and one that is not kept."""
    encoding = Encoding(
        np.array([1 / 15, 1, 1], np.float32),
        np.zeros(3, np.int64),
        -128,
        112,
        axis=1,
        channel_codes=((-128, 112), (-8, 7), (0, 0)),
    )
    values = np.array([[1.0, 1.2, 1.0], [99, 99, 99], [-99, -99, -99]], np.float32)
    found = run_step(Quantize(), BEFORE, [((3, 3), None)], ((3, 3), encoding), values)
    assert found.tolist() == [[15, 1, 0], [112, 7, 0], [-128, -8, 0]]
