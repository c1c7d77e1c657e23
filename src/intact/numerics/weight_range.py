"""Ranges of weights, whose values are all at hand: per tensor or per channel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intact.errors import CalibrationError, ConfigError, nearest
from intact.numerics.levels import Levels, Scheme

_METHODS = ("minmax", "mse")

Floats = npt.NDArray[np.float64]


def weight_range(
    values: npt.NDArray[np.float32], levels: Levels, method: str, axis: int | None
) -> tuple[Floats, Floats]:
    """Return the range of a weight tensor or of each of its channels.

    ``minmax`` holds every value. ``mse`` shrinks that range, both ends together, by the factor of
    least squared error on the values themselves (between 1 and 1/16).

    Args:
        values: float32 of any shape.
        levels: The codes and their scheme.
        method: "minmax" or "mse".
        axis: The channel axis, or None for one range.

    Returns:
        ``(low, high)``, float64, ``[channels]`` or 0-d, with ``low <= 0 <= high``. An empty
        channel has the range 0..0.

    Raises:
        CalibrationError: If the method is unknown or a weight is not finite.
        ConfigError: If the tensor has no such axis.
    """
    if method not in _METHODS:
        raise CalibrationError(
            f"unknown method {method!r} for weights", remedy=nearest(method, _METHODS)
        )
    rows = _channel_rows(values, axis)
    low = rows.min(axis=1, initial=0.0).astype(np.float64)
    high = rows.max(axis=1, initial=0.0).astype(np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise CalibrationError("a weight is not finite", remedy="check the model")
    if levels.scheme is Scheme.SYMMETRIC:
        high = np.maximum(-low, high)
        low = -high
    elif levels.scheme is Scheme.ONE_SIDED:
        low = np.zeros_like(low)
    if method == "mse" and rows.size:
        factor = _best_factors(rows, levels, low, high)
        low, high = low * factor, high * factor
    low, high = low + 0.0, high + 0.0  # no negative zero
    return (low, high) if axis is not None else (low.reshape(()), high.reshape(()))


def _channel_rows(values: npt.NDArray[np.float32], axis: int | None) -> npt.NDArray[np.float32]:
    """Return the values as a C-contiguous ``[channels, elements]`` array."""
    values = np.asarray(values, dtype=np.float32)
    if axis is None:
        return np.ascontiguousarray(values.reshape(1, -1))
    if not -values.ndim <= axis < values.ndim:
        raise ConfigError(
            f"axis {axis} of a tensor of shape {values.shape}", remedy="use an axis it has"
        )
    moved = np.moveaxis(values, axis, 0)
    elements = int(np.prod(moved.shape[1:], dtype=np.int64))
    return np.ascontiguousarray(moved.reshape(moved.shape[0], elements))


def _best_factors(
    rows: npt.NDArray[np.float32], levels: Levels, low: Floats, high: Floats
) -> Floats:
    from intact.numerics.weight_range_kernel import best_factors

    step = (high - low) / levels.steps
    first = np.full(step.shape, float(levels.quant_min))
    last = np.full(step.shape, float(levels.quant_max))
    if levels.scheme is Scheme.SYMMETRIC:
        step = high / levels.steps
    elif levels.scheme is Scheme.ASYMMETRIC:
        # Both ends shrink together, so that the zero point is the same for all factors.
        ratio = np.divide(low, step, out=np.zeros_like(low), where=step > 0.0)
        zero_point = np.clip(np.rint(levels.quant_min - ratio), levels.quant_min, levels.quant_max)
        first, last = levels.quant_min - zero_point, levels.quant_max - zero_point
    factors = np.ones(step.shape)
    best_factors(rows, step, first, last, factors)
    return factors
