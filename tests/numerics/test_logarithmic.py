from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intact.errors import ConfigError, DataError
from intact.numerics.logarithmic import (
    dequantize_logarithmic,
    levels_of,
    quantize_logarithmic,
    scale_from_threshold,
    threshold_of_least_error,
)
from tests.numerics.arrays import float32, float32_of


@given(st.floats(2.0**-60, 2.0**60, width=32), st.integers(1, 255), st.integers(1, 32))
@settings(deadline=None)
def test_every_code_survives_the_round_trip(threshold: float, quant_max: int, steps: int) -> None:
    quant_max = min(quant_max, 40 * steps)  # the levels of one step an octave leave float32
    scale = scale_from_threshold(threshold, quant_max, steps)
    codes = np.arange(-quant_max, quant_max + 1)
    restored = dequantize_logarithmic(codes, scale, steps)
    assert restored.dtype == np.float32
    again = quantize_logarithmic(restored, scale, -quant_max, quant_max, steps)
    assert again.tolist() == codes.tolist()
    assert restored[-1] == pytest.approx(threshold, rel=1e-6)


@given(
    st.lists(st.floats(2.0**-20, 2.0**20, width=32), min_size=1, max_size=20),
    st.sampled_from([1, 2, 3, 16]),
)
@settings(deadline=None)
def test_the_nearest_level_in_the_logarithm_is_taken(values: list[float], steps: int) -> None:
    array = float32_of(values)
    levels = np.exp2(np.arange(1, 128) / steps)
    distance = np.abs(np.log2(array.astype(np.float64))[:, None] - np.log2(levels))
    nearest = distance.argmin(axis=1) + 1
    nearest[array < levels[0] / 2] = 0  # 0 is nearer
    assert quantize_logarithmic(array, 1.0, -127, 127, steps).tolist() == nearest.tolist()
    assert quantize_logarithmic(-array, 1.0, -127, 127, steps).tolist() == (-nearest).tolist()


def test_few_codes_span_as_many_octaves_as_the_steps_say() -> None:
    for steps, span in ((16, 2 ** (-6 / 16)), (2, 2**-3), (1, 2**-6)):
        levels = levels_of(float(scale_from_threshold(1.0, 7, steps)), 7, steps)
        assert (levels[0], levels[-1]) == (0.0, pytest.approx(1.0))
        assert levels[1] == pytest.approx(span)


@pytest.mark.parametrize(("quant_max", "steps"), [(7, 2), (7, 1), (127, 16)])
@pytest.mark.parametrize("counted", [True, False])
def test_the_threshold_of_least_error_is_the_best_of_all(
    quant_max: int, steps: int, counted: bool
) -> None:
    values = np.abs(np.random.default_rng(3).laplace(size=(2, 500)))
    counts = np.arange(500) if counted else None

    def error(row: int, threshold: float) -> float:
        scale = scale_from_threshold(threshold, quant_max, steps)
        codes = quantize_logarithmic(values[row], scale, 0, quant_max, steps)
        squares = (dequantize_logarithmic(codes, scale, steps) - values[row]) ** 2
        return float(squares @ (np.ones(500) if counts is None else counts))

    found = threshold_of_least_error(values, counts, quant_max, steps)
    for row, highest in enumerate(values.max(axis=1)):
        tried = [error(row, highest * 2.0**-offset) for offset in np.linspace(0, 5, 300)]
        assert error(row, found[row]) <= min(tried) * 1.02
        assert found[row] <= highest
    nothing = threshold_of_least_error(np.zeros((1, 3)), None, quant_max, steps)
    assert nothing.tolist() == [0.0]


def test_known_codes() -> None:
    values = float32(0.0, -0.0, 1.0, 1.04, 2.0, -4.0, 1e30, np.inf, -np.inf, 1e-45)
    codes = quantize_logarithmic(values, 1.0, -127, 127)
    assert codes.tolist() == [0, 0, 1, 1, 16, -32, 127, 127, -127, 0]
    assert codes.dtype == np.int32


def test_without_negative_codes_negative_values_become_zero() -> None:
    assert quantize_logarithmic(float32(-4.0, 4.0), 1.0, 0, 255).tolist() == [0, 32]


def test_a_zero_threshold_and_channels() -> None:
    scale = scale_from_threshold([0.0, 1.0], 16)
    assert scale.dtype == np.float32
    assert scale.tolist() == [1.0, 0.5]
    codes = quantize_logarithmic(np.ones((3, 2), dtype=np.float32), scale, -16, 16)
    assert codes.tolist() == [[1, 16]] * 3
    assert scale_from_threshold(1e-45, 127) >= np.finfo(np.float32).tiny


def test_empty_arrays() -> None:
    assert quantize_logarithmic(np.zeros((0, 2), dtype=np.float32), 1.0, -1, 1).shape == (0, 2)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(DataError, match="NaN"):
        quantize_logarithmic(float32(np.nan), 1.0, -1, 1)
    for scale in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ConfigError, match="scale"):
            quantize_logarithmic(float32(1.0), scale, -1, 1)
        with pytest.raises(ConfigError, match="scale"):
            dequantize_logarithmic(np.array([1]), scale)
    with pytest.raises(ConfigError, match="codes"):
        quantize_logarithmic(float32(1.0), 1.0, 1, 5)
    for threshold in (-1.0, np.nan, np.inf):
        with pytest.raises(ConfigError, match="threshold"):
            scale_from_threshold(threshold, 127)
    with pytest.raises(ConfigError, match="up to 0"):
        scale_from_threshold(1.0, 0)
