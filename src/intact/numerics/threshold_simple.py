"""Ranges read off the distribution: min-max, average range and percentile."""

from __future__ import annotations

from intact.errors import CalibrationError
from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels, Scheme


def fit_scheme(low: float, high: float, levels: Levels) -> tuple[float, float]:
    """Return the smallest range of the scheme that holds 0 and, as far as it can, ``low..high``."""
    low, high = min(low, 0.0), max(high, 0.0)
    if levels.scheme is Scheme.ASYMMETRIC:
        return low, high
    if levels.scheme is Scheme.ONE_SIDED:
        return 0.0, high
    return levels.range_of_threshold(max(-low, high))


def minmax_range(distribution: Distribution, levels: Levels) -> tuple[float, float]:
    """Return the exact extremes: nothing is clipped."""
    return fit_scheme(distribution.minimum, distribution.maximum, levels)


def average_range(distribution: Distribution, levels: Levels) -> tuple[float, float]:
    """Return the averages over the samples of each sample's minimum and maximum.

    HAGO's default ("average range"), per tensor: rare extremes of single samples count little.
    """
    return fit_scheme(distribution.mean_minimum, distribution.mean_maximum, levels)


def percentile_range(
    distribution: Distribution, levels: Levels, *, percentile: float
) -> tuple[float, float]:
    """Return the range that holds the given percentage of the values.

    Symmetric: of the absolute values. One-sided: of the values, the negative ones among them.
    Asymmetric: half of the rest is cut off at either end. Exact to the width of a histogram bin
    (2**-7 of the value); 100 gives the exact extremes.

    Raises:
        CalibrationError: If the percentile is not above 0 and at most 100.
    """
    if not 0.0 < percentile <= 100.0:
        raise CalibrationError(
            f"a percentile of {percentile}", remedy="use a number above 0, at most 100"
        )
    kept = percentile / 100.0
    if levels.scheme is Scheme.SYMMETRIC:
        return levels.range_of_threshold(distribution.absolute().quantile(kept))
    if levels.scheme is Scheme.ONE_SIDED:
        return fit_scheme(0.0, distribution.quantile(kept), levels)
    rest = 0.5 - 0.5 * kept
    return fit_scheme(distribution.quantile(rest), distribution.quantile(1.0 - rest), levels)
