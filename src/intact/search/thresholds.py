"""Thresholds in the place of scales, as the TVM document writes them.

    scale = threshold / 2^(bits - sign_bit)

The divisor is a power of two and thresholds are float64: nothing is rounded either way. The sign
bit is 1 for symmetric codes of both signs. For unsigned and for asymmetric codes it is 0, and the
threshold is the width of the range. On a logarithmic grid the formula holds as well, but the scale
is that of the first level, and the threshold says nothing of the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from intact.config import MEANING, QuantState, StateMeaning, TensorQuantConfig
from intact.errors import ConfigError
from intact.graph import Role, constant_array, input_role
from intact.numerics.affine_params import QuantParams
from intact.plan import Direction, QuantizedGraph, TensorEnd

Threshold: TypeAlias = float | list[float]
"""One number, or one for each channel."""

WIDEST_CODES = 16
"""Wider integers are sums: their scale follows, and their width is the target's affair."""


def has_integers(config: TensorQuantConfig) -> bool:
    """Tell whether integers are at an end, its own or those of the end that governs it."""
    return MEANING[config.state] in (StateMeaning.QUANTIZES, StateMeaning.GOVERNED)


def scale_owners(plan: QuantizedGraph) -> Iterator[tuple[TensorEnd, TensorQuantConfig]]:
    """Yield every config that owns a scale, but for biases, whose scales follow."""
    for end, config in plan.configs.items():
        is_bias = config.bits > WIDEST_CODES and role_at(plan, end) is Role.BIAS
        is_float = config.state in (QuantState.FP32, QuantState.SOI)
        if config.dominator is config and not is_bias and not is_float:
            yield end, config


def role_at(plan: QuantizedGraph, end: TensorEnd) -> Role:
    """Return what is read at an end; DATA for what is written."""
    is_input = end.direction is Direction.INPUT
    return input_role(plan.graph.node(end.node), end.slot) if is_input else Role.DATA


def sign_bit(config: TensorQuantConfig) -> int:
    """Return 1 for symmetric codes of both signs, else 0."""
    return int(config.grid.symmetric and config.quant_min < 0)


def threshold_of(config: TensorQuantConfig, params: QuantParams) -> Threshold:
    """Return the threshold that stands for the scale of a config."""
    found = params.scale.astype(np.float64) * 2.0 ** (config.bits - sign_bit(config))
    threshold: Threshold = found.tolist()
    return threshold


def params_from_threshold(
    plan: QuantizedGraph,
    end: TensorEnd,
    threshold: Threshold,
    zero_point: int | list[int] | None,
) -> QuantParams:
    """Return scale and zero point that a threshold stands for at an end that owns a scale.

    Args:
        plan: With or without scales.
        end: Where.
        threshold: Positive.
        zero_point: Shaped like it; None for zeros.

    Raises:
        ConfigError: They do not fit the grid there or the channels of the weight, or the scale is
            no positive finite float32.
    """
    config = plan.configs[end]
    exact: npt.NDArray[np.float64] = np.asarray(threshold, np.float64)
    with np.errstate(over="ignore", under="ignore"):  # what leaves float32 is refused below
        scale = (exact / 2.0 ** (config.bits - sign_bit(config))).astype(np.float32)
    axis = config.grid.axis
    if axis is not None:
        array = constant_array(plan.graph.node(end.node).inputs[end.slot])
        shape = () if array is None else array.shape
        if scale.shape != shape[axis : axis + 1]:
            raise ConfigError(f"{scale.size} numbers for a weight of shape {list(shape)}")
    offset = None if zero_point is None else np.asarray(zero_point).astype(np.int64)
    return config.grid.check_params(scale, offset)
