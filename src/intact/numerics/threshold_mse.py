"""The range of least expected squared error, computed from the histogram in closed form."""

from __future__ import annotations

import numpy as np

from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels, Scheme


def mse_range(distribution: Distribution, levels: Levels) -> tuple[float, float]:
    """Return the range whose codes lose least, rounding and clipping together.

    The error of a candidate is the integral of the squared distance to the nearest code over each
    bin, which is a piecewise cubic (:mod:`intact.numerics.threshold_mse_kernel`). Thresholds are
    searched on a grid over 16 octaves that is refined twice around the best; for an asymmetric
    scheme both ends shrink together first, then each in turn, the zero point rounded as deployed.
    """
    from intact.numerics.threshold_mse_kernel import search_range, search_threshold

    low, high = distribution.low, distribution.high
    count = distribution.count.astype(np.float64)
    if levels.scheme is Scheme.ASYMMETRIC:
        ends = np.empty(2, dtype=np.float64)
        search_range(low, high, count, levels.quant_min, levels.quant_max, ends)
        return float(ends[0]), float(ends[1])
    # One-sided codes cannot hold negative values: no threshold changes what they lose.
    largest = distribution.maximum
    if levels.scheme is Scheme.SYMMETRIC:
        largest = max(-distribution.minimum, largest)
    if largest <= 0.0:
        return 0.0, 0.0
    threshold = search_threshold(
        low, high, count, levels.quant_min, levels.quant_max, levels.steps, largest
    )
    return levels.range_of_threshold(float(threshold))
