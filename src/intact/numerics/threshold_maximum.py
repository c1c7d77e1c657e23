"""The largest magnitude as threshold, as [tvm] has it: scale = threshold / 2^(bits - sign_bit).

The codes reach to 2^(bits - sign_bit) - 1, so the threshold itself is one step beyond them and
saturates. ``minmax`` divides by that number of steps instead, and holds every value.
"""

from __future__ import annotations

import numpy as np

from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels, Scheme


def reach(levels: Levels) -> float:
    """Return the part of a threshold that the codes reach to: 127/128 with 8 bits and a sign.

    >>> reach(Levels(-127, 127, Scheme.SYMMETRIC)) == 127 / 128
    True
    """
    return levels.steps / float(1 << levels.steps.bit_length())


def nearest_power_of_two(threshold: float) -> float:
    """Return the power of two that is nearest in log2; 0 stays 0.

    >>> [nearest_power_of_two(each) for each in (4.1757, 5.6, 5.7, 0.0)]
    [4.0, 4.0, 8.0, 0.0]
    """
    if not threshold > 0.0:
        return 0.0
    mantissa, exponent = np.frexp(threshold)  # exact, as log2 and rounding would not be
    return float(np.ldexp(1.0, int(exponent) - int(mantissa <= np.sqrt(0.5))))


def max_range_range(distribution: Distribution, levels: Levels) -> tuple[float, float]:
    """Return what codes reach of the largest magnitude (one-sided codes: of the maximum)."""
    return _reached(_largest(distribution, levels), levels)


def power2_range_range(distribution: Distribution, levels: Levels) -> tuple[float, float]:
    """Return what codes reach of the power of two nearest to that: the scale is one, too."""
    return _reached(nearest_power_of_two(_largest(distribution, levels)), levels)


def _largest(distribution: Distribution, levels: Levels) -> float:
    one_sided = levels.scheme is Scheme.ONE_SIDED
    return max(distribution.maximum, 0.0 if one_sided else -distribution.minimum, 0.0)


def _reached(threshold: float, levels: Levels) -> tuple[float, float]:
    return levels.range_of_threshold(threshold * reach(levels))
