from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import intact.errors
from intact.errors import ConfigError, DataError
from intact.numerics.affine import dequantize, fake_quantize, quantize
from intact.numerics.levels import Rounding
from tests.numerics.arrays import float32, float32_of
from tests.numerics.test_rounding import reference

RANGES = [(0, 255), (-128, 127), (-127, 127), (0, 65535), (-8, 7), (-(2**31), 2**31 - 1)]
FINITE32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
SCALES = st.floats(2.0**-100, 2.0**100, width=32) | st.sampled_from(
    [1.0, 0.5, float(np.float32(0.1)), float(np.finfo(np.float32).tiny)]
)


def exact_code(quotient: float, zero_point: int, codes: tuple[int, int], mode: Rounding) -> int:
    """Round and shift one quotient with Python's integers, which neither round nor overflow."""
    if np.isinf(quotient):
        return codes[1] if quotient > 0 else codes[0]
    return min(max(reference(quotient, mode) + zero_point, codes[0]), codes[1])


@pytest.mark.parametrize("codes", RANGES)
@given(
    values=st.lists(FINITE32, min_size=1, max_size=20),
    scale=SCALES,
    position=st.floats(0, 1),
    mode=st.sampled_from(list(Rounding)),
)
@settings(max_examples=60, deadline=None)
def test_codes_agree_with_big_integers(
    codes: tuple[int, int], values: list[float], scale: float, position: float, mode: Rounding
) -> None:
    zero_point = codes[0] + int(position * (codes[1] - codes[0]))
    array = np.array(values, dtype=np.float32)
    result = quantize(array, np.float32(scale), zero_point, *codes, rounding=mode)
    with np.errstate(over="ignore"):
        quotients = array / np.float32(scale)
    assert result.dtype == np.int32
    assert result.tolist() == [exact_code(float(x), zero_point, codes, mode) for x in quotients]


@pytest.mark.parametrize("codes", RANGES)
@given(
    values=st.lists(st.floats(-300, 300, width=32), min_size=1, max_size=20),
    scale=st.sampled_from([1.0, 0.5, 0.1, 1e-7]),
    position=st.floats(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_fake_quantize_is_bit_for_bit_the_round_trip(
    codes: tuple[int, int], values: list[float], scale: float, position: float
) -> None:
    zero_point = codes[0] + int(position * (codes[1] - codes[0]))
    array = np.array(values, dtype=np.float32)
    quantized = quantize(array, scale, zero_point, *codes)
    round_trip = dequantize(quantized, scale, zero_point)
    direct = fake_quantize(array, scale, zero_point, *codes)
    assert direct.dtype == np.float32
    assert direct.tobytes() == round_trip.tobytes()


@given(
    codes=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20),
    zero_point=st.integers(-(2**31), 2**31 - 1),
    scale=SCALES,
)
@settings(deadline=None)
def test_dequantize_rounds_the_exact_difference_once(
    codes: list[int], zero_point: int, scale: float
) -> None:
    result = dequantize(np.array(codes, dtype=np.int32), scale, zero_point)
    with np.errstate(over="ignore"):
        expected = float32_of(c - zero_point for c in codes) * np.float32(scale)
    assert result.tobytes() == np.asarray(expected, dtype=np.float32).tobytes()


@given(st.lists(st.integers(-128, 127), min_size=1, max_size=40), st.integers(-128, 127))
@settings(deadline=None)
def test_codes_survive_the_round_trip(codes: list[int], zero_point: int) -> None:
    array = np.array(codes, dtype=np.int8)
    real = dequantize(array, 0.037, zero_point)
    assert quantize(real, 0.037, zero_point, -128, 127).tolist() == codes


def test_the_zero_point_is_added_after_rounding() -> None:
    # 0.5 rounds to 0 (even); with an odd zero point, rounding afterwards would give 2.
    assert quantize(float32(0.5), 1.0, 1, 0, 255).tolist() == [1]


def test_division_is_not_multiplication_by_the_reciprocal() -> None:
    scale = np.float32(0.1)
    value = np.float32(0.25)  # 0.25 / 0.1f is 2.5 exactly in float32
    assert value / scale == np.float32(2.5)
    assert quantize(np.array([value]), scale, 0, -128, 127).tolist() == [2]


def test_float64_values_are_divided_in_float64() -> None:
    bias = np.array([123456789.0 / 1024, -(2.0**33)])
    codes = quantize(bias, np.float32(2.0**-10), 0, -(2**31), 2**31 - 1)
    assert codes.tolist() == [123456789, -(2**31)]


def test_infinities_saturate_and_tiny_scales_overflow_to_saturation() -> None:
    values = float32(np.inf, -np.inf, 3e38, -3e38)
    assert quantize(values, np.finfo(np.float32).tiny, 7, 0, 255).tolist() == [255, 0, 255, 0]


def test_ranges_beyond_int32_give_int64() -> None:
    codes = quantize(np.array([1e12]), 1.0, 0, -(2**40), 2**40)
    assert codes.dtype == np.int64
    assert codes.tolist() == [10**12]


def test_channels_each_use_their_own_scale() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    scale, zero_point = float32(0.5, 1.0, 2.0), np.array([0, 3, -5])
    for axis in (1, -2):
        codes = quantize(values, scale, zero_point, -128, 127, axis=axis)
        for channel in range(3):
            alone = quantize(
                values[:, channel], scale[channel], int(zero_point[channel]), -128, 127
            )
            assert codes[:, channel].tolist() == alone.tolist()
        back = dequantize(codes, scale, zero_point, axis=axis)
        assert np.array_equal(back, fake_quantize(values, scale, zero_point, -128, 127, axis=axis))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 3), (3, 0)])
def test_shapes_are_kept(shape: tuple[int, ...]) -> None:
    values = np.zeros(shape, dtype=np.float32)
    assert quantize(values, 1.0, 0, 0, 255).shape == shape
    assert fake_quantize(values, 1.0, 0, 0, 255).shape == shape


def test_the_input_is_not_written() -> None:
    values = float32(1.25, -2.5)
    values.flags.writeable = False
    fake_quantize(values, 1.0, 0, 0, 255)
    assert values.tolist() == [1.25, -2.5]


@pytest.mark.parametrize("function", [quantize, fake_quantize])
def test_nan_is_refused_with_its_place(function: object) -> None:
    values = np.zeros((2, 3), dtype=np.float32)
    values[1, 2] = np.nan
    with pytest.raises(DataError, match=r"\(1, 2\) is NaN"):
        function(values, 1.0, 0, 0, 255)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("scale", "zero_point", "codes", "axis", "message"),
    [
        (0.0, 0, (0, 255), None, "positive"),
        (-1.0, 0, (0, 255), None, "positive"),
        (np.nan, 0, (0, 255), None, "positive"),
        (np.inf, 0, (0, 255), None, "positive"),
        (1.0, 256, (0, 255), None, "zero point"),
        (1.0, -1, (0, 255), None, "zero point"),
        (1.0, 0.5, (0, 255), None, "integers"),
        (1.0, 0, (255, 0), None, "empty"),
        (1.0, 0, (0, 2**60), None, "52 bits"),
        ([1.0, 2.0], 0, (0, 255), None, "channel axis"),
        ([1.0, 2.0], 0, (0, 255), 1, "3 channels"),
        (1.0, 0, (0, 255), 2, "axis 2"),
    ],
)
def test_what_does_not_fit_is_refused(
    scale: npt.ArrayLike,
    zero_point: npt.ArrayLike,
    codes: tuple[int, int],
    axis: int | None,
    message: str,
) -> None:
    with pytest.raises(ConfigError, match=message):
        quantize(np.zeros((2, 3), dtype=np.float32), scale, zero_point, *codes, axis=axis)


def test_values_that_are_not_float_are_refused() -> None:
    with pytest.raises(ConfigError, match="float16"):
        quantize(np.zeros(2, dtype=np.float16), 1.0, 0, 0, 255)
    with pytest.raises(ConfigError, match="float32"):
        dequantize(np.zeros(2, dtype=np.float32), 1.0, 0)


@given(value=st.floats(-2.0, 2.0, width=32), zero_point=st.integers(0, 255))
@settings(deadline=None)
def test_the_error_inside_the_range_is_at_most_half_a_step(value: float, zero_point: int) -> None:
    scale = Fraction(1, 64)
    low, high = (0 - zero_point) * scale, (255 - zero_point) * scale
    restored = fake_quantize(float32(value), float(scale), zero_point, 0, 255)
    nearest_inside = min(max(Fraction(value), low), high)
    assert abs(Fraction(float(restored[0])) - nearest_inside) <= scale / 2


def test_importing_rounding_and_affine_brings_no_heavy_package() -> None:
    code = (
        "import intact.numerics.rounding, intact.numerics.affine;"
        "print([m for m in ('numba', 'scipy', 'onnx') if m in sys.modules])"
    )
    source = str(Path(intact.errors.__file__).parents[1])
    shown = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.strip() == "[]"
