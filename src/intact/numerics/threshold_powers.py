"""Finds ranges tied to powers of two: two methods of [tvm], and powers for any method.

``max_range`` takes scale = threshold / 2^(bits - sign_bit) of the largest magnitude. The codes
reach to 2^(bits - sign_bit) - 1, so the threshold itself is one step beyond them and saturates.
``minmax`` divides by that number of steps instead, and holds every value. ``power2_range`` moves
the threshold to the nearest power of two first.

Where scales have to be powers of two, a method without a criterion of its own (min-max, a
percentile) says which range is to be held: it gets the smallest power that holds it. One that
minimizes something compares powers by that, from those around its optimum on downwards or upwards,
until a neighbour is no better.
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


def best_power_range(
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
    scale = _smallest_scale(low, high, levels)
    if loss is None:
        return next(_windows(scale, low, high, levels))
    largest = max(scale, _smallest_scale(distribution.minimum, distribution.maximum, levels))
    ends = min(low, distribution.minimum), max(high, distribution.maximum)
    best, least = _best(scale, ends, levels, loss)
    for factor in (0.5, 2.0):
        start = scale
        while _SMALLEST_SCALE <= scale * factor <= largest:
            found, error = _best(scale * factor, ends, levels, loss)
            if not error < least:
                break
            best, least, scale = found, error, scale * factor
        # The error has one valley over the scales: what went down need not be tried upwards.
        if scale != start:
            break
    return best


def _best(
    scale: float, ends: tuple[float, float], levels: Levels, loss: Loss
) -> tuple[tuple[float, float], float]:
    """Return the range of a scale that loses least, and what it loses."""
    tried = [(each, loss(each)) for each in _windows(scale, *ends, levels)]
    return min(tried, key=lambda each: each[1])


def _smallest_scale(low: float, high: float, levels: Levels) -> float:
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
        # The range is shorter than the values: the zero point says which end is cut off, and how
        # much.
        zero_points = np.unique(np.rint(np.linspace(at_high, at_low, _WINDOWS)))
    for zero_point in zero_points.tolist():
        yield (
            max((first - zero_point) * scale, -_LARGEST),
            min((last - zero_point) * scale, _LARGEST),
        )


def reach(levels: Levels) -> float:
    """Return the part of a threshold that the codes reach to: 127/128 with 8 bits and a sign.

    >>> reach(Levels(-127, 127, Scheme.SYMMETRIC)) == 127 / 128
    True
    """
    # 127 steps have 7 bits: the threshold is 128 of them.
    return levels.steps / float(1 << levels.steps.bit_length())


def nearest_power_of_two(threshold: float) -> float:
    """Return the power of two that is nearest in log2; 0 stays 0.

    >>> [nearest_power_of_two(each) for each in (4.1757, 5.6, 5.7, 0.0)]
    [4.0, 4.0, 8.0, 0.0]
    """
    if not threshold > 0.0:
        return 0.0
    mantissa, exponent = np.frexp(threshold)  # exact, as log2 and rounding would not be
    # The mantissa lies in [0.5, 1): its middle in log2 is the root of one half.
    return float(np.ldexp(1.0, int(exponent) - int(mantissa <= np.sqrt(0.5))))


def max_range_range(distribution: Distribution, levels: Levels) -> tuple[float, float]:
    """Return what codes reach of the largest magnitude (one-sided codes: of the maximum)."""
    return _code_range(_largest(distribution, levels), levels)


def power2_range_range(distribution: Distribution, levels: Levels) -> tuple[float, float]:
    """Return what codes reach of the power of two nearest to that: the scale is one, too."""
    return _code_range(nearest_power_of_two(_largest(distribution, levels)), levels)


def _largest(distribution: Distribution, levels: Levels) -> float:
    one_sided = levels.scheme is Scheme.ONE_SIDED
    return max(distribution.maximum, 0.0 if one_sided else -distribution.minimum, 0.0)


def _code_range(threshold: float, levels: Levels) -> tuple[float, float]:
    return levels.range_of_threshold(threshold * reach(levels))
