"""Ranges for scales that have to be powers of two: a method chooses on the grid that is used.

A method without a criterion of its own (min-max, a percentile) says which range is to be held: it
gets the smallest power that holds it. One that minimizes something compares powers by that, from
those around its optimum on downwards or upwards, until a neighbour is no better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from intact.numerics.affine_params import params_from_range
from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels, Scheme

Loss = Callable[[tuple[float, float]], float]
"""What a method minimizes, of a range."""

_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
_WINDOWS = 257
"""Zero points that are tried for a range narrower than the values: all of those of 8 bits."""


def on_powers(
    distribution: Distribution, levels: Levels, low: float, high: float, loss: Loss | None
) -> tuple[float, float]:
    """Return the range of a power-of-two scale that a method chooses.

    Args:
        distribution: What was observed. No power is tried that is more than twice what holds it.
        levels: The codes, of equally spaced levels.
        low: Lower end of the range that the method would take of all scales.
        high: Upper end.
        loss: What the method minimizes; None where ``low..high`` is to be held.

    Returns:
        The values of the outermost codes (symmetric: of the threshold on both sides); ``low, high``
        if they are equal.
    """
    if low == high:
        return low, high
    scale = _holding(low, high, levels)
    if loss is None:
        return next(_windows(scale, low, high, levels))
    largest = max(scale, _holding(distribution.minimum, distribution.maximum, levels))
    ends = min(low, distribution.minimum), max(high, distribution.maximum)
    best, least = _best(scale, ends, levels, loss)
    for factor in (0.5, 2.0):
        start = scale
        while _SMALLEST_SCALE <= scale * factor <= largest:
            found, error = _best(scale * factor, ends, levels, loss)
            if not error < least:
                break
            best, least, scale = found, error, scale * factor
        if scale != start:
            break
    return best


def _best(
    scale: float, ends: tuple[float, float], levels: Levels, loss: Loss
) -> tuple[tuple[float, float], float]:
    """Return the range of a scale that loses least, and what it loses."""
    tried = [(each, loss(each)) for each in _windows(scale, *ends, levels)]
    return min(tried, key=lambda each: each[1])


def _holding(low: float, high: float, levels: Levels) -> float:
    """Return the smallest power of two whose codes hold a range."""
    codes = levels.quant_min, levels.quant_max
    ends = min(low, 0.0), max(high, 0.0)
    symmetric = levels.scheme is not Scheme.ASYMMETRIC
    return float(params_from_range(*ends, *codes, symmetric=symmetric, power_of_two=True).scale)


def _windows(
    scale: float, low: float, high: float, levels: Levels
) -> Iterator[tuple[float, float]]:
    """Yield the ranges of a scale: one that holds all, or several that cut off either end."""
    if levels.scheme is not Scheme.ASYMMETRIC:
        yield levels.range_of_threshold(min(scale * levels.steps, _LARGEST))
        return
    first, last = levels.quant_min, levels.quant_max
    at_low = float(np.clip(np.rint(first - min(low, 0.0) / scale), first, last))
    at_high = float(np.clip(np.rint(last - max(high, 0.0) / scale), first, last))
    if at_high >= at_low:  # it holds both ends
        zero_points = np.array([at_low])
    else:
        zero_points = np.unique(np.rint(np.linspace(at_high, at_low, _WINDOWS)))
    for zero_point in zero_points.tolist():
        yield (
            max((first - zero_point) * scale, -_LARGEST),
            min((last - zero_point) * scale, _LARGEST),
        )
