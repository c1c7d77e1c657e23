"""Quantizes logarithmically: the codes are exponents, as on NNIE and in [mqbench].

Code 0 is 0; code ``k`` of ``1..quant_max`` stands for ``scale * 2**(k / steps_per_octave)``, and
``-k`` for its negative. Neighbouring levels differ by the same factor at every magnitude: with 16
steps an octave (NNIE's) by 4.4 %, with one step by 2. All levels together reach over
``(quant_max - 1) / steps_per_octave`` octaves: 127 codes of 16 steps over 7.9, 7 codes over 0.4
only; those span 3 octaves with 2 steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import ConfigError, DataError
from intact.numerics.levels import STEPS_PER_OCTAVE

Floats = npt.NDArray[np.float64]


def scale_from_threshold(
    threshold: npt.ArrayLike, quant_max: int, steps_per_octave: int = STEPS_PER_OCTAVE
) -> npt.NDArray[np.float32]:
    """Return the scale whose largest level is the threshold; 1 for a threshold of 0.

    Args:
        threshold: Not negative, scalar or ``[channels]``.
        quant_max: Largest code.
        steps_per_octave: Levels between a magnitude and its double.

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
    # The largest code stands for scale * 2**(quant_max / steps).
    scale = limit * 2.0 ** (-quant_max / steps_per_octave)
    scale = np.where(limit == 0.0, 1.0, np.maximum(scale, np.finfo(np.float32).tiny))
    return np.minimum(scale, np.finfo(np.float32).max).astype(np.float32)


def zero_below(steps_per_octave: int) -> float:
    """Return the magnitude, in scales, from which on the first level is nearer than 0: half of it.

    >>> zero_below(1)
    1.0
    """
    return float(2.0 ** (1.0 / steps_per_octave) / 2.0)


def levels_of(scale: float, quant_max: int, steps_per_octave: int) -> npt.NDArray[np.float32]:
    """Return the magnitudes of codes 0 to ``quant_max``, float32 ``[quant_max + 1]``.

    >>> levels_of(0.5, 3, 1).tolist()
    [0.0, 1.0, 2.0, 4.0]
    """
    return dequantize_logarithmic(np.arange(quant_max + 1), scale, steps_per_octave)


def quantize_logarithmic(
    values: npt.NDArray[np.floating[Any]],
    scale: npt.ArrayLike,
    quant_min: int,
    quant_max: int,
    steps_per_octave: int = STEPS_PER_OCTAVE,
) -> npt.NDArray[np.int32]:
    """Return the code of the nearest level, nearness being measured in the logarithm.

    Next to 0, which has no logarithm, the nearer of both is taken: less than half of the first
    level becomes 0. What lies beyond the last level, or is infinite, saturates. With ``quant_min``
    0 every negative value becomes 0.

    Args:
        values: float32 or float64 of any shape.
        scale: Positive; scalar, or of a shape that broadcasts over ``values``.
        quant_min: Smallest code, at most 0.
        quant_max: Largest code, at least 1.
        steps_per_octave: Levels between a magnitude and its double.

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
    ratio = np.abs(values).astype(np.float64) / _checked_scale(scale)
    magnitude = _codes(ratio, max(quant_max, -quant_min), steps_per_octave)
    codes = np.clip(np.where(values < 0, -magnitude, magnitude), quant_min, quant_max)
    return codes.astype(np.int32)


def dequantize_logarithmic(
    quantized: npt.NDArray[np.integer[Any]],
    scale: npt.ArrayLike,
    steps_per_octave: int = STEPS_PER_OCTAVE,
) -> npt.NDArray[np.float32]:
    """Return the float32 values of codes: the levels, computed in float64 and rounded once.

    Raises:
        ConfigError: If the scale is not positive and finite.
    """
    codes = np.asarray(quantized).astype(np.float64)
    with np.errstate(over="ignore"):
        magnitude = _checked_scale(scale) * np.exp2(np.abs(codes) / steps_per_octave)
        return (np.sign(codes) * magnitude).astype(np.float32)


_OCTAVES = 6
"""How far below the maximum thresholds are tried."""
_PER_OCTAVE = 8
_REFINE = 4
"""A refinement puts 2 * 4 candidates between the neighbours of the best."""


def threshold_of_least_error(
    magnitudes: npt.NDArray[np.floating[Any]],
    counts: npt.NDArray[np.integer[Any]] | None,
    quant_max: int,
    steps_per_octave: int,
) -> Floats:
    """Return the largest levels, a row each, with the least squared error.

    A lower threshold clips the largest magnitudes, and gives levels to smaller ones, that would
    be 0: the fewer octaves the levels span, the more this matters.

    Args:
        magnitudes: ``[rows, n]``, not negative.
        counts: How often each stands for a value, ``[n]``; None for once.
        quant_max: Largest code.
        steps_per_octave: Levels between a magnitude and its double.

    Returns:
        float64 ``[rows]``, between a 64th of the largest magnitude of a row and that.
    """
    values = magnitudes.astype(np.float64)
    highest: Floats = values.max(axis=1, initial=0.0)
    best, least = highest, np.full(highest.shape, np.inf)
    weights = np.ones(values.shape[1]) if counts is None else counts.astype(np.float64)
    spacing = 1.0 / _PER_OCTAVE
    offsets = -np.arange(_OCTAVES * _PER_OCTAVE + 1) * spacing
    centre = highest
    # Over all octaves first, then twice around the best of what was tried.
    for _ in range(3):
        for offset in offsets:
            threshold = np.minimum(centre * 2.0**offset, highest)
            error = _squared_errors(values, weights, threshold, quant_max, steps_per_octave)
            best = np.where(error < least, threshold, best)
            least = np.minimum(error, least)
        centre, spacing = best, spacing / _REFINE
        offsets = np.arange(-_REFINE, _REFINE + 1) * spacing
    return best


def _squared_errors(
    values: Floats, weights: Floats, threshold: Floats, quant_max: int, steps_per_octave: int
) -> Floats:
    scale = scale_from_threshold(threshold, quant_max, steps_per_octave).astype(np.float64)
    codes = _codes(values / scale[:, None], quant_max, steps_per_octave)
    levels = np.where(codes > 0, scale[:, None] * np.exp2(codes / steps_per_octave), 0.0)
    errors: Floats = np.square(values - levels) @ weights
    return errors


def _codes(ratio: Floats, largest: int, steps_per_octave: int) -> Floats:
    """Return the codes of magnitudes, which are given in scales."""
    with np.errstate(divide="ignore"):
        position = np.log2(ratio) * steps_per_octave
    # Clipped first: the logarithm of 0 is minus infinity.
    nearest = np.rint(np.clip(position, 1.0, largest))
    codes: Floats = np.where(ratio < zero_below(steps_per_octave), 0.0, nearest)
    return codes


def _checked_scale(scale: npt.ArrayLike) -> Floats:
    checked = np.asarray(scale, dtype=np.float64)
    if not (np.isfinite(checked).all() and (checked > 0.0).all()):
        raise ConfigError("a scale is not positive and finite", remedy="recalibrate the tensor")
    return checked
