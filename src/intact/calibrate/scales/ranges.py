"""The range of one tensor and the scale that holds it: both follow from tensor and grid alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intact.calibrate.method import Method
from intact.calibrate.scales.masked import MaskConstants
from intact.calibrate.scales.roles import refuse_not_finite
from intact.calibrate.statistics import Statistics
from intact.config import Grid, TensorQuantConfig
from intact.numerics.affine_params import PowerOfTwo, QuantParams, params_from_range
from intact.numerics.distribution import Distribution
from intact.numerics.logarithmic import scale_from_threshold
from intact.numerics.thresholds import METHODS, Levels, Scheme, estimate_range, weight_range
from intact.plan import QuantPoint


class Found(NamedTuple):
    """The range of a tensor, and what is to be noted of it.

    Attributes:
        low: Lowest value that codes shall hold.
        high: Highest value.
        is_fallen: The method is not defined for it, the fallback chose.
        masks: Its own mask constants; the key of its scale is 0.
    """

    low: float
    high: float
    is_fallen: bool
    masks: MaskConstants


def range_of(
    point: QuantPoint,
    statistics: Statistics,
    method: Method,
    factors: Mapping[str, float],
) -> Found:
    """Return the range of an activation, or of a constant that is none of a layer's parameters.

    Args:
        point: Where it is quantised.
        statistics: Of its tensor, unless that is constant.
        method: Chooses the range.
        factors: How tensors come out at a Softmax (see `MaskConstants`).

    Raises:
        CalibrationError: It was not observed, or is NaN; or a method is not defined for it.
    """
    name, masks = str(point.value.name), MaskConstants(factors)
    if point.is_constant and point.value.const_value is not None:
        values = point.value.const_value.numpy().astype(np.float32)
        # Infinity may mask; what is to be done about it is not decided here.
        refuse_not_finite(values[~np.isinf(values)], f"constant {name!r}", point.end.node)
        kept = masks.of_values(name, values, 0)
        low, high = kept.widened(kept.distribution.minimum, kept.distribution.maximum)
        return Found(low, high, False, masks)
    kept = masks.of_statistics(name, statistics[name], 0)
    distribution = kept.distribution
    levels = _levels(point.config, distribution)
    chosen, is_fallen = method.activations, False
    if levels.scheme not in METHODS[chosen].schemes:
        chosen, is_fallen = method.fallback, True
    options = {
        key: value for key, value in method.options.items() if key in METHODS[chosen].options
    }
    low, high = kept.widened(*estimate_range(distribution, levels, chosen, **options))
    return Found(low, high, is_fallen, masks)


def _levels(config: TensorQuantConfig, distribution: Distribution) -> Levels:
    """Return the levels as they serve this tensor: all on one side where its values are."""
    levels = config.levels
    if levels.scheme is Scheme.ASYMMETRIC and distribution.minimum >= 0:
        return Levels(0, levels.quant_max - levels.quant_min, Scheme.ONE_SIDED)
    return levels


def weight_params(point: QuantPoint, method: Method, *, truncates: bool) -> QuantParams:
    """Return the scale and offset of a weight.

    Args:
        point: Where it is quantised.
        method: Chooses the range.
        truncates: The zero point is cut off to an integer (`TensorScheme.truncated_zero_point`).

    Raises:
        CalibrationError: It holds NaN or infinity.
    """
    config, tensor = point.config, point.value.const_value
    values = np.zeros(0, np.float32) if tensor is None else tensor.numpy()
    values = values.astype(np.float32, copy=False)
    refuse_not_finite(values, f"weight {point.value.name!r}", point.end.node)
    low, high = weight_range(values, config.levels, method.weights, config.granularity.axis)
    # A clipped weight is wrong for every sample.
    return params_of(config.grid, low, high, PowerOfTwo.CEIL, truncates=truncates)


def params_of(
    grid: Grid, low: npt.ArrayLike, high: npt.ArrayLike, power: PowerOfTwo, *, truncates: bool
) -> QuantParams:
    """Return the scale and offset of a grid that hold a range, or one for each channel."""
    if grid.exponential:
        threshold = np.maximum(np.abs(low), np.abs(high))
        return grid.check_params(scale_from_threshold(threshold, grid.quant_max), None)
    params = params_from_range(
        low,
        high,
        grid.quant_min,
        grid.quant_max,
        symmetric=grid.symmetric,
        power_of_two=power if grid.power_of_two else None,
        truncated_zero_point=truncates,
    )
    return grid.check_params(params.scale, params.zero_point)
