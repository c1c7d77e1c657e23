"""Logarithmic quantization, as NNIE and MQBench define it: the codes are exponents.

Code 0 is 0; code ``k`` of ``1..quant_max`` for ``scale * 2**(k / 16)``, and ``-k`` for its
negative. Neighbouring levels differ by 2**(1/16), about 4.4 %, at every magnitude.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import ConfigError, DataError

STEPS_PER_OCTAVE = 16
"""Levels between a magnitude and its double."""


def scale_from_threshold(threshold: npt.ArrayLike, quant_max: int) -> npt.NDArray[np.float32]:
    """Return the scale whose largest level is the threshold; 1 for a threshold of 0.

    Args:
        threshold: Not negative, scalar or ``[channels]``.
        quant_max: Largest code.

    Returns:
        float32 of the shape of ``threshold``, at least the smallest normal number.

    Raises:
        ConfigError: If a threshold is negative or not finite, or ``quant_max`` is not positive.
    """
    if quant_max < 1:
        raise ConfigError(f"logarithmic codes up to {quant_max}", remedy="use at least code 1")
    limit = np.asarray(threshold, dtype=np.float64)
    if not (np.isfinite(limit).all() and (limit >= 0.0).all()):
        raise ConfigError("a threshold is negative or not finite", remedy="recalibrate the tensor")
    scale = limit * 2.0 ** (-quant_max / STEPS_PER_OCTAVE)
    scale = np.where(limit == 0.0, 1.0, np.maximum(scale, np.finfo(np.float32).tiny))
    return np.minimum(scale, np.finfo(np.float32).max).astype(np.float32)


def quantize_logarithmic(
    values: npt.NDArray[np.floating[Any]], scale: npt.ArrayLike, quant_min: int, quant_max: int
) -> npt.NDArray[np.int32]:
    """Return the code of the nearest level, nearness being measured in the logarithm.

    A magnitude more than half a step below the first level becomes 0; one beyond the last level,
    or infinite, saturates. With ``quant_min`` 0 every negative value becomes 0.

    Args:
        values: float32 or float64 of any shape.
        scale: Positive; scalar, or of a shape that broadcasts over ``values``.
        quant_min: Smallest code, at most 0.
        quant_max: Largest code, at least 1.

    Returns:
        int32 codes of the shape of ``values``.

    Raises:
        DataError: If a value is NaN.
        ConfigError: If the scale is not positive and finite, or the codes are impossible.
    """
    if quant_min > 0 or quant_max < 1:
        raise ConfigError(
            f"logarithmic codes {quant_min}..{quant_max}", remedy="use codes that hold 0 and 1"
        )
    values = np.asarray(values)
    if np.isnan(values).any():
        raise DataError(
            "a value is NaN, which no code represents",
            remedy="find the layer or sample that produces it",
        )
    with np.errstate(divide="ignore"):
        octaves = np.log2(np.abs(values).astype(np.float64)) - np.log2(_checked_scale(scale))
    position = np.clip(octaves * STEPS_PER_OCTAVE, 0.0, max(quant_max, -quant_min))
    # 0.5 itself, half a step below the first level, goes up: rint would send it to 0.
    magnitude = np.where(position == 0.5, 1.0, np.rint(position))
    codes = np.clip(np.where(values < 0, -magnitude, magnitude), quant_min, quant_max)
    return codes.astype(np.int32)


def dequantize_logarithmic(
    quantized: npt.NDArray[np.integer[Any]], scale: npt.ArrayLike
) -> npt.NDArray[np.float32]:
    """Return the float32 values of codes: the levels, computed in float64 and rounded once.

    Raises:
        ConfigError: If the scale is not positive and finite.
    """
    codes = np.asarray(quantized).astype(np.float64)
    with np.errstate(over="ignore"):
        magnitude = _checked_scale(scale) * np.exp2(np.abs(codes) / STEPS_PER_OCTAVE)
        return (np.sign(codes) * magnitude).astype(np.float32)


def _checked_scale(scale: npt.ArrayLike) -> npt.NDArray[np.float64]:
    checked = np.asarray(scale, dtype=np.float64)
    if not (np.isfinite(checked).all() and (checked > 0.0).all()):
        raise ConfigError("a scale is not positive and finite", remedy="recalibrate the tensor")
    return checked
