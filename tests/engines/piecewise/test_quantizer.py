"""A config's quantizer computes what the config computes."""

from __future__ import annotations

import numpy as np
import pytest

from intact.config import PerTensor, QuantState, Rounding, TensorQuantConfig, make_policy
from intact.engines.piecewise.streams import config_key, quantizer_of, wrapping_quantizer
from intact.errors import DataError
from intact.numerics.simulated_quantize import SimulatedQuantize
from intact.plan.overflows import WrappingSums

VALUES = np.array([-9.0, -1.5, -0.5, -0.0, 0.0, 0.1, 0.5, 1.5, 2.5, 300.0, np.inf], np.float32)


def linear(low: int, high: int, offset: int, rounding: Rounding) -> TensorQuantConfig:
    config = TensorQuantConfig(
        policy=make_policy(PerTensor(), symmetric=False),
        rounding=rounding,
        bits=8,
        quant_min=low,
        quant_max=high,
        scale=0.5,
        offset=offset,
    )
    config.transition(QuantState.ACTIVATED)
    return config


def exponential(scale: float, low: int) -> TensorQuantConfig:
    config = TensorQuantConfig(
        policy=make_policy(PerTensor(), symmetric=True, exponential=True),
        bits=8,
        quant_min=low,
        quant_max=127,
        scale=scale,
    )
    config.transition(QuantState.ACTIVATED)
    return config


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize(("low", "high", "offset"), [(0, 255, 3), (-128, 127, -128), (-8, 7, 0)])
def test_linear_grids(low: int, high: int, offset: int, rounding: Rounding) -> None:
    config = linear(low, high, offset, rounding)
    expected = config.fake_quantize(VALUES)
    quantizer = quantizer_of(config)
    assert isinstance(quantizer, SimulatedQuantize)
    np.testing.assert_array_equal(quantizer(VALUES), expected)


@pytest.mark.parametrize("low", [0, -127])
def test_logarithmic_grids(low: int) -> None:
    config = exponential(0.01, low)
    quantizer = quantizer_of(config)
    out = np.empty_like(VALUES)
    assert quantizer(VALUES, out) is out
    np.testing.assert_array_equal(out, config.fake_quantize(VALUES))
    np.testing.assert_array_equal(quantizer(VALUES), out)
    with pytest.raises(DataError, match="NaN"):
        quantizer(np.full(1, np.nan, np.float32))


def test_keys_tell_grids_and_scales_apart() -> None:
    configs = [
        linear(0, 255, 3, Rounding.HALF_EVEN),
        linear(0, 255, 4, Rounding.HALF_EVEN),
        linear(0, 255, 3, Rounding.HALF_UP),
        exponential(0.01, 0),
        exponential(0.02, 0),
        exponential(0.01, -127),
    ]
    keys = [quantizer_of(config).key for config in configs]
    assert len(set(keys)) == len(keys)
    assert keys == [quantizer_of(config.copy()).key for config in configs]


def test_keys_of_constants_tell_grids_and_scales_apart() -> None:
    configs = [
        linear(-128, 127, 0, Rounding.HALF_EVEN),
        linear(-127, 127, 0, Rounding.HALF_EVEN),
        linear(-128, 126, 0, Rounding.HALF_EVEN),
        linear(-128, 127, 1, Rounding.HALF_EVEN),
        linear(-128, 127, 0, Rounding.HALF_UP),
        exponential(0.5, -127),
        exponential(0.25, -127),
    ]
    keys = [config_key(config) for config in configs]
    assert len(set(keys)) == len(keys)
    assert keys == [config_key(config.copy()) for config in configs]


def test_sums_that_float32_does_not_hold_are_left_alone() -> None:
    node = None
    scale = np.array(0.5)

    def sums(largest: int | None, scale: np.ndarray | None = scale) -> WrappingSums:
        return WrappingSums(node, 8, largest, scale, None)  # type: ignore[arg-type]

    assert wrapping_quantizer(sums(2**24), None) is None
    assert wrapping_quantizer(sums(None), None) is None
    assert wrapping_quantizer(sums(1000, None), None) is None
    quantizer = quantizer_of(linear(-8, 7, 0, Rounding.HALF_EVEN))
    both = wrapping_quantizer(sums(1000), quantizer)
    alone = wrapping_quantizer(sums(1000), None)
    assert both is not None
    assert alone is not None
    assert both.key != alone.key
    data = np.array([64.0, 63.5, -64.5, 2.25], np.float32)  # 128, 127, -129: int8 wraps two of them
    assert alone(data).tolist() == [-64.0, 63.5, 63.5, 2.25]
    assert both(data).tolist() == [-4.0, 3.5, 3.5, 2.0]
    assert data.tolist() == [64.0, 63.5, -64.5, 2.25]
