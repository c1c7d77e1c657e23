"""Moments of a normal variable between bounds.

Source: [dfq], appendix C: the mean of a normal variable after Relu and Clip. The second moment
follows in the same way, by parts.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

_ERF = np.frompyfunc(math.erf, 1, 1)


def clipped_moments(
    mean: Doubles, variance: Doubles, low: float = -math.inf, high: float = math.inf
) -> tuple[Doubles, Doubles]:
    """Return mean and variance of ``clip(x, low, high)`` for normal x.

    Args:
        mean: The mean of x, any shape.
        variance: The variance of x, at least 0.
        low: Lower bound, or minus infinity.
        high: Upper bound, or infinity; at least ``low``.
    """
    mean, variance = (np.asarray(each, np.float64) for each in (mean, variance))
    deviation = np.sqrt(variance)
    # A channel of constant value has no density: its moments are those of one point, set at the
    # end.
    certain = deviation == 0
    divisor = np.where(certain, 1.0, deviation)
    below, above = ((bound - mean) / divisor for bound in (low, high))
    under, over = _cumulative(below), _cumulative(-above)
    inside = 1.0 - under - over
    left, right = _density(below), _density(above)
    first = mean * inside + deviation * (left - right)
    second = (mean**2 + variance) * inside + deviation * (
        _times(low + mean, left) - _times(high + mean, right)
    )
    for bound, share in ((low, under), (high, over)):
        if math.isfinite(bound):
            first = first + bound * share
            second = second + bound**2 * share
    settled = np.clip(mean, low, high)
    first = np.where(certain, settled, first)
    # The difference of two near numbers may come out below 0, and its root is taken by the caller.
    spread = np.where(certain, 0.0, np.maximum(second - first**2, 0.0))
    return first, spread


def _cumulative(x: Doubles) -> Doubles:
    return np.asarray(0.5 * (1.0 + np.asarray(_ERF(x / math.sqrt(2.0)), np.float64)), np.float64)


def _density(x: Doubles) -> Doubles:
    return np.asarray(np.exp(-np.square(x) / 2.0) / math.sqrt(2.0 * math.pi), np.float64)


def _times(factor: Doubles, density: Doubles) -> Doubles:
    """Return a product that is 0 where the density is, also for infinite factors."""
    return np.where(density > 0, np.where(np.isfinite(factor), factor, 0.0) * density, 0.0)
