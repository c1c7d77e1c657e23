"""The threshold of least divergence, every bin tried: as ncnn's and Tengine's tools search it.

It differs from :mod:`intact.numerics.threshold_kl` in what it measures. The histogram has a fixed
number of bins of ``absmax / (bins - 1)``; the first one is left out, with exact zeros and all that
is near them; groups have fractional edges, and a bin that an edge cuts belongs to both in shares;
what is kept is not normalized again; a bin that the quantized distribution leaves empty costs 1.

Source: Tengine 1.5, ``tools/quantize`` (``threshold_distribution``): 2048 bins, 128 groups at
8 bits, threshold ``(bin + 0.5) * absmax / 2048``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from intact.errors import CalibrationError
from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels, Scheme

_BINS_A_GROUP = 16
"""2048 for 128: with fewer bins a group there is little to choose from."""
_MOST_GROUPS = 1024
"""Beyond 11 bits the tries, whose number grows with its square, would take minutes; clipping gains
nothing there."""
_EMPTY_BIN = 1.0
"""What a bin costs that the quantized distribution leaves empty: as much as leaving all out."""


def kl_stepwise_range(
    distribution: Distribution, levels: Levels, *, bins: float
) -> tuple[float, float]:
    """Return the threshold of the number of kept bins that diverges least; ties keep fewer.

    Counts come from the histogram over the floats' bits, spread evenly: a bin is off by the counts
    of the intervals that its ends cut.

    Args:
        distribution: What was observed.
        levels: Symmetric or one-sided codes. With more than 1024 magnitudes nothing is clipped.
        bins: Number of bins, a whole number; raised to 16 a group.

    Raises:
        CalibrationError: If ``bins`` is not a positive whole number.
    """
    if bins < 1 or bins != int(bins):
        raise CalibrationError(
            f"kl_stepwise over {bins} bins", remedy="use a positive whole number"
        )
    folded = distribution.absolute() if levels.scheme is Scheme.SYMMETRIC else distribution
    magnitudes = folded.positive()
    if not magnitudes.total:
        return 0.0, 0.0
    absmax, groups = float(magnitudes.high[-1]), levels.quant_max + 1
    if groups > _MOST_GROUPS:
        return levels.range_of_threshold(absmax)
    number = max(int(bins), _BINS_A_GROUP * groups)
    mass = magnitudes.linear_bins(number, absmax * (number / (number - 1)))
    mass[0] = 0.0
    total = mass.sum()
    if total == 0.0:
        return levels.range_of_threshold(absmax)
    kept = int(least_divergent(mass / total, groups))
    return levels.range_of_threshold((kept + 0.5) * (absmax / number))


@njit(cache=True, nogil=True)
def least_divergent(shares: Any, groups: int) -> int:
    """Return how many bins, at least ``groups`` and not all, are best kept.

    Where each try costs an empty bin, as for a tensor of one value, they tell nothing apart (the
    tools keep the fewest then, and clip all there is): as many as can be are kept.

    Args:
        shares: float64 ``[bins]``, of sum 1 or 0.
        groups: Number of magnitude codes.
    """
    best, least = groups, np.inf
    # Summed from the end: nothing beyond is exactly nothing, and costs no empty bin.
    beyond = np.cumsum(shares[::-1])[::-1]
    for kept in range(groups, shares.shape[0]):
        divergence = _divergence(shares, groups, kept, beyond[kept])
        if divergence < least:
            best, least = kept, divergence
    return best if least < _EMPTY_BIN else shares.shape[0] - 1


@njit(cache=True, nogil=True)
def _divergence(shares: Any, groups: int, kept: int, beyond: float) -> float:
    """Return ``sum(P log(P / Q))`` over the kept bins."""
    width = kept / groups
    quantized = np.zeros(kept)
    for group in range(groups):
        start, stop = group * width, min((group + 1) * width, float(kept))
        first, last = int(np.floor(start)), min(int(np.ceil(stop)), kept)
        mass, filled = 0.0, 0.0
        for bin_ in range(first, last):
            if shares[bin_] != 0.0:
                overlap = min(stop, bin_ + 1.0) - max(start, float(bin_))
                mass += shares[bin_] * overlap
                filled += overlap
        if filled > 0.0:
            for bin_ in range(first, last):
                if shares[bin_] != 0.0:
                    overlap = min(stop, bin_ + 1.0) - max(start, float(bin_))
                    quantized[bin_] += mass / filled * overlap
    result = 0.0
    for bin_ in range(kept):
        reference = shares[bin_] + (beyond if bin_ == kept - 1 else 0.0)
        if reference > 0.0:
            if quantized[bin_] == 0.0:
                result += _EMPTY_BIN
            else:
                result += reference * np.log(reference / quantized[bin_])
    return result
