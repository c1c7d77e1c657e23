"""A grid refuses contradictions and parameters that do not fit it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.config import Grid, PerChannel, PerTensor, Rounding, parse_policy
from intact.errors import ConfigError, DataError
from intact.numerics.levels import Levels, Scheme

SYMMETRIC = "PER_TENSOR+LINEAR+SYMMETRICAL"
ASYMMETRIC = "PER_TENSOR+LINEAR+ASYMMETRICAL"
EXPONENTIAL = "PER_TENSOR+EXPONENTIAL+SYMMETRICAL"
CHANNELS = "PER_CHANNEL+LINEAR+SYMMETRICAL"


def grid(policy: str = SYMMETRIC, low: int = -127, high: int = 127, **changes: Any) -> Grid:
    fields: dict[str, Any] = {
        "policy": parse_policy(policy),
        "granularity": PerChannel(0) if "PER_CHANNEL" in policy else PerTensor(),
        "rounding": Rounding.HALF_EVEN,
        "bits": 8,
        "quant_min": low,
        "quant_max": high,
    }
    return Grid(**(fields | changes))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bits": 1}, "bits is 1; use 2 to 32"),
        ({"bits": 33}, "bits is 33"),
        ({"low": 5, "high": 5}, "quant_min 5 is not below quant_max 5"),
        ({"low": -129}, "does not fit 8 bits"),
        ({"low": 0, "high": 256}, "does not fit 8 bits"),
        ({"low": -1, "high": 128}, "does not fit 8 bits"),
        ({"low": 1, "high": 255}, "does not contain zero"),
        ({"low": -128, "high": 0}, "does not contain zero"),
        ({"policy": EXPONENTIAL, "low": -128}, "is not symmetric"),
        ({"granularity": PerChannel(0)}, "does not fit granularity"),
        ({"policy": CHANNELS, "granularity": PerTensor()}, "does not fit granularity"),
        ({"channel_codes": ((-8, 7),)}, "is not symmetric, linear and per channel"),
        ({"policy": CHANNELS, "channel_codes": ((1, 7),)}, "range of a channel does not contain"),
        ({"policy": CHANNELS, "channel_codes": ((0, 0),)}, "do not fit two codes of 8 bits"),
        ({"policy": CHANNELS, "channel_codes": ((-(10**30), 7),)}, "do not fit two codes of 8"),
    ],
)
def test_contradictions(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        grid(**arguments)


@pytest.mark.parametrize(
    ("policy", "low", "scheme"),
    [
        (SYMMETRIC, -127, Scheme.SYMMETRIC),
        (SYMMETRIC, 0, Scheme.ONE_SIDED),
        (ASYMMETRIC, 0, Scheme.ASYMMETRIC),
        (ASYMMETRIC, -128, Scheme.ASYMMETRIC),
        (EXPONENTIAL, -127, Scheme.SYMMETRIC),
    ],
)
def test_scheme_and_levels(policy: str, low: int, scheme: Scheme) -> None:
    made = grid(policy, low)
    assert made.scheme is scheme
    steps = 16 if policy == EXPONENTIAL else None
    assert made.levels == Levels(low, 127, scheme, steps)


def test_width_of_thirty_two_bits_and_fewer_levels_than_bits() -> None:
    assert grid(bits=32, low=-(2**31), high=2**31 - 1).bits == 32
    assert grid(low=-31, high=31).levels.quant_max == 31


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan, 1e-60, 1e60])
def test_impossible_scales(scale: float) -> None:
    with pytest.raises(ConfigError, match="not a positive finite float32"):
        grid().check_params(scale, None)
    with pytest.raises(ConfigError, match="not a positive finite float32"):
        grid(CHANNELS).check_params([1.0, scale], None)


def test_scale_that_is_no_number() -> None:
    with pytest.raises(ConfigError, match="scale is not numeric"):
        grid().check_params("wide", None)


@pytest.mark.parametrize(
    ("policy", "scale", "offset", "message"),
    [
        (ASYMMETRIC, 1.0, 128, "offset 128 is outside -127..127"),
        (ASYMMETRIC, 1.0, 1.5, "offset has dtype float64"),
        (ASYMMETRIC, 1.0, [1], r"offset has shape \[1\], scale has \[\]"),
        (ASYMMETRIC, [1.0], [1], r"per-tensor scale has shape \[1\]"),
        (SYMMETRIC, 1.0, 1, "SYMMETRICAL but an offset is not 0"),
        (CHANNELS, 1.0, None, r"per-channel scale has shape \[\]"),
        (CHANNELS, [], None, r"per-channel scale has shape \[0\]"),
        (CHANNELS, [[1.0]], None, r"per-channel scale has shape \[1, 1\]"),
        (f"{SYMMETRIC}+POWER_OF_2", 0.3, None, "not a power of two"),
    ],
)
def test_params_that_do_not_fit(policy: str, scale: Any, offset: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        grid(policy).check_params(scale, offset)


def test_params_are_private_read_only_copies() -> None:
    scales = np.array([0.5, 2.0], np.float32)
    params = grid(CHANNELS).check_params(scales, None)
    scales[0] = 9
    assert params.scale.tolist() == [0.5, 2.0]
    assert params.scale.dtype == np.float32
    assert params.zero_point.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        params.scale[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        params.zero_point[0] = 1


def test_power_of_two_scale() -> None:
    params = grid(f"{SYMMETRIC}+POWER_OF_2").check_params(2.0**-9, 0)
    assert params.scale == 2.0**-9


@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), max_size=20),
    st.floats(2.0**-20, 2.0**20, width=32),
    st.sampled_from(list(Rounding)),
)
def test_fake_quantize_is_quantize_then_dequantize(
    numbers: list[float], scale: float, rounding: Rounding
) -> None:
    made = grid(ASYMMETRIC, 0, 255, rounding=rounding)
    params = made.check_params(scale, 3)
    values = np.array(numbers, np.float32)
    codes = made.quantize(values, params)
    assert ((codes >= 0) & (codes <= 255)).all()
    expected = made.dequantize(codes, params)
    np.testing.assert_array_equal(made.fake_quantize(values, params), expected)


def test_rounding_and_axis_reach_the_arithmetic() -> None:
    up = grid(rounding=Rounding.HALF_UP)
    even = grid(rounding=Rounding.HALF_EVEN)
    ties = np.array([0.5, -0.5, 2.5], np.float32)
    assert up.quantize(ties, up.check_params(1.0, None)).tolist() == [1, 0, 3]
    assert even.quantize(ties, even.check_params(1.0, None)).tolist() == [0, 0, 2]
    channels = grid(CHANNELS, granularity=PerChannel(1))
    params = channels.check_params([1.0, 2.0], None)
    assert channels.quantize(np.full((1, 2), 4, np.float32), params).tolist() == [[4, 2]]


def test_value_range_is_that_of_all_channels() -> None:
    made = grid(CHANNELS, granularity=PerChannel(1))
    params = made.check_params([0.5, 2.0], None)
    assert made.value_range(params) == (-254.0, 254.0)


def test_exponential_levels_are_sixteen_to_the_octave() -> None:
    made = grid(EXPONENTIAL)
    params = made.check_params(0.25, None)
    values = 0.25 * 2.0 ** (np.array([16, 32, 127]) / 16)
    codes = made.quantize(np.concatenate([values, -values, [0]]).astype(np.float32), params)
    assert codes.tolist() == [16, 32, 127, -16, -32, -127, 0]
    back = made.fake_quantize(np.array([0.5, -1.0, 0.0, 1e9], np.float32), params)
    np.testing.assert_allclose(back, [0.5, -1.0, 0.0, values[2]], rtol=1e-6)


def test_exponential_levels_per_channel_and_one_sided() -> None:
    made = grid("PER_CHANNEL+EXPONENTIAL+SYMMETRICAL", granularity=PerChannel(1))
    params = made.check_params([0.25, 0.5], None)
    values = np.ones((3, 2, 1), np.float32)
    codes = made.quantize(values, params)
    assert codes[:, 0].tolist() == [[32]] * 3
    assert codes[:, 1].tolist() == [[16]] * 3
    np.testing.assert_array_equal(made.fake_quantize(values, params), values)
    for shape in ((2,), (2, 3), (1, 1)):
        with pytest.raises(ConfigError, match="2 scales along axis 1 of a tensor of shape"):
            made.quantize(np.ones(shape, np.float32), params)
    positive = grid(EXPONENTIAL, 0, 127)
    params = positive.check_params(0.25, None)
    assert positive.quantize(np.array([-1, 1], np.float32), params).tolist() == [0, 32]


@pytest.mark.parametrize("policy", [SYMMETRIC, EXPONENTIAL])
def test_nan_is_refused_and_infinity_saturates(policy: str) -> None:
    made = grid(policy)
    params = made.check_params(0.5, None)
    codes = made.quantize(np.array([np.inf, -np.inf], np.float32), params)
    assert codes.tolist() == [127, -127]
    with pytest.raises(DataError, match="NaN"):
        made.quantize(np.array([np.nan], np.float32), params)
    assert made.quantize(np.zeros((0, 3), np.float32), params).shape == (0, 3)
