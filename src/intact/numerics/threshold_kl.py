"""Finds the threshold of least Kullback-Leibler divergence, in two ways.

`kl_range`: S. Migacz, "8-bit Inference with TensorRT", GTC 2017; HAGO [tvm] uses the same idea on
8001 bins.

`kl_stepwise_range`: every bin tried, as the tools of ncnn and Tengine do (Tengine 1.5,
``tools/quantize``, ``threshold_distribution`` [tengine]: 2048 bins, 128 groups at 8 bits, threshold
``(bin + 0.5) * absmax / 2048``). It measures differently. The histogram has a fixed number of bins
of ``absmax / (bins - 1)``; the first one is left out, with exact zeros and values near them; groups
have fractional edges, and a bin that an edge cuts belongs to both in shares; the kept part is not
normalized again; a bin that is empty in the quantized distribution costs 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intact.errors import CalibrationError
from intact.numerics.distribution import Bins, Distribution
from intact.numerics.levels import Levels, Scheme
from intact.numerics.native import Kernels

_KERNELS = Kernels(__name__)

_COARSE = 144
"""Candidates spread evenly in the logarithm, 3 % apart for 8 bits: few enough for 0.7 ms."""
_FINE = 24
"""Candidates between the neighbours of the best coarse one."""
_BINS_A_GROUP = 16
"""2048 for 128: with fewer bins a group there is little to choose from."""
_MOST_GROUPS = 1024
"""Beyond 11 bits the tries, whose number grows with its square, would take minutes; clipping gains
nothing there."""
_EMPTY_BIN = 1.0
"""What a bin costs that the quantized distribution leaves empty: as much as leaving all out."""


def kl_range(distribution: Distribution, levels: Levels, *, bins: float) -> tuple[float, float]:
    """Return the threshold whose quantized distribution diverges least from the original.

    The magnitudes are brought into linear bins over ``0..maximum``. For a candidate that keeps
    the first ``i`` bins, the reference is those bins with everything beyond added to the last;
    the quantized one merges the ``i`` bins (without what lies beyond) into as many groups as there
    are magnitude codes and spreads each group over its non-empty bins.

    There must be more bins than groups: with as many, every group is one bin, nothing diverges at
    the maximum and the method is min-max in disguise. At least 16 bins a group are used.

    Exact zeros are left out: code 0 holds them without error at every threshold, and after a ReLU
    they would otherwise decide alone.

    At least half of the values are kept. Where none are near 0 (pooled features), a threshold at
    the smallest of them would leave one bin for everything, in which nothing diverges.

    Args:
        distribution: What was observed.
        levels: Symmetric or one-sided codes.
        bins: Number of linear bins, a whole number; raised to 16 a group.

    Raises:
        CalibrationError: If ``bins`` is not a positive whole number.
    """
    if bins < 1 or bins != int(bins):
        raise CalibrationError(f"kl over {bins} bins", remedy="use a positive whole number")
    folded = distribution.absolute() if levels.scheme is Scheme.SYMMETRIC else distribution
    magnitudes = folded.positive()
    if not magnitudes.total:
        return 0.0, 0.0
    groups = levels.quant_max + 1
    number = max(int(bins), 16 * groups)
    threshold = _least_divergence(magnitudes, groups, number)
    return levels.range_of_threshold(threshold)


def kl_loss(
    distribution: Distribution, levels: Levels, ends: tuple[float, float], *, bins: float
) -> float:
    """Return the divergence of a threshold; infinity where it keeps less than half of the values.

    The bins span the threshold, doubled until it holds all: thresholds that are powers of two apart
    are compared on the same bins.
    """
    folded = distribution.absolute() if levels.scheme is Scheme.SYMMETRIC else distribution
    magnitudes, groups = folded.positive(), levels.quant_max + 1
    mass, kept = _bins_around(magnitudes, ends[1], max(int(bins), _BINS_A_GROUP * groups))
    if kept < groups or mass[:kept].sum() < mass.sum() / 2:
        return np.inf
    return float(divergences(mass, groups, np.array([kept]))[0])


def _bins_around(
    magnitudes: Bins, threshold: float, number: int
) -> tuple[npt.NDArray[np.float64], int]:
    """Return linear bins over all magnitudes, and how many of them a threshold keeps."""
    octaves = 0
    while threshold * 2.0**octaves < magnitudes.high[-1]:
        octaves += 1
    # Rounded up, so that there are at least as many bins over all octaves as were asked for.
    kept = -(-number // (1 << octaves))
    return magnitudes.linear_bins(kept << octaves, threshold * 2.0**octaves), kept


def _least_divergence(magnitudes: Bins, groups: int, number: int) -> float:
    maximum = float(magnitudes.high[-1])
    mass = magnitudes.linear_bins(number, maximum)
    coarse = np.unique(np.geomspace(groups, number, _COARSE).round().astype(np.int64))
    sums = _PrefixSums.over(mass)
    # Fewer bins would keep less than half of the values, where the divergence says nothing.
    fewest = int(np.searchsorted(sums.mass, sums.mass[-1] / 2))
    coarse = coarse[coarse >= fewest]
    # The divergence is not convex, but smooth over some 3 %: the neighbours of the best coarse
    # candidate enclose a minimum that is near the least.
    best = int(np.argmin(_divergences(mass, sums, groups, coarse)))
    start, stop = coarse[max(best - 1, 0)], coarse[min(best + 1, coarse.size - 1)]
    fine = np.unique(np.linspace(max(start, fewest), stop, _FINE).round().astype(np.int64))
    kept = int(fine[np.argmin(_divergences(mass, sums, groups, fine))])
    return maximum * (kept / number)


def divergences(
    mass: npt.NDArray[np.float64], groups: int, kept: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return the divergence, in nats, of each candidate number of kept bins.

    With P the reference, Q the quantized distribution, S and n the mass and number of non-empty
    bins of a group, sum(P log P) is a prefix sum over the bins and sum(P log Q) a sum over the
    groups, since Q is constant (S / n) inside one: the cost is ``groups`` logarithms a candidate.

    Args:
        mass: float64 ``[bins]``, not negative.
        groups: Number of magnitude codes.
        kept: int64 ``[candidates]``, each at least ``groups`` and at most ``bins``.
    """
    return _divergences(mass, _PrefixSums.over(mass), groups, kept)


class _PrefixSums(NamedTuple):
    """Sums over the bins before each edge, float64 ``[bins + 1]``, shared by all candidates."""

    mass: npt.NDArray[np.float64]
    filled: npt.NDArray[np.float64]
    entropy: npt.NDArray[np.float64]

    @classmethod
    def over(cls, mass: npt.NDArray[np.float64]) -> _PrefixSums:
        filled = (mass > 0).astype(np.float64)
        return cls(_prefix(mass), _prefix(filled), _prefix(_x_log_x(mass)))


def _divergences(
    mass: npt.NDArray[np.float64],
    sums: _PrefixSums,
    groups: int,
    kept: npt.NDArray[np.int64],
) -> npt.NDArray[np.float64]:
    total = float(mass.sum())
    # Whole bins: where the number does not divide, groups differ by one bin.
    edges = kept[:, None] * np.arange(groups + 1) // groups
    group_mass = np.diff(sums.mass[edges], axis=1)
    group_filled = np.diff(sums.filled[edges], axis=1)
    last_bin = mass[kept - 1]
    kept_mass = sums.mass[kept]
    beyond = np.maximum(total - kept_mass, 0.0)
    beyond[kept == mass.size] = 0.0  # not the rounding error of the sums
    # What lies beyond makes the last bin of the reference non-empty.
    group_filled[:, -1] += (last_bin == 0.0) & (beyond > 0.0)

    with np.errstate(divide="ignore", invalid="ignore"):
        log_quantized = np.log(group_mass / group_filled)
        inner = np.where(group_mass > 0.0, group_mass * log_quantized, 0.0).sum(axis=1)
        outer = np.where(beyond > 0.0, beyond * log_quantized[:, -1], 0.0)
        reference = sums.entropy[kept] - _x_log_x(last_bin) + _x_log_x(last_bin + beyond)
        result = (reference - inner - outer) / total - np.log(total) + np.log(kept_mass)
    # Nothing kept, or mass where the quantized distribution has none: infinitely far.
    return np.where(np.isfinite(result), result, np.inf)


def _prefix(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.concatenate([[0.0], np.cumsum(values)])


def _x_log_x(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return values * np.log(np.where(values > 0.0, values, 1.0))


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


def kl_stepwise_loss(
    distribution: Distribution, levels: Levels, ends: tuple[float, float], *, bins: float
) -> float:
    """Return the divergence of a threshold, on bins as in `kl_loss`."""
    folded = distribution.absolute() if levels.scheme is Scheme.SYMMETRIC else distribution
    magnitudes, groups = folded.positive(), levels.quant_max + 1
    if groups > _MOST_GROUPS:
        return ends[1] if ends[1] >= magnitudes.high[-1] else np.inf
    mass, kept = _bins_around(magnitudes, ends[1], max(int(bins), _BINS_A_GROUP * groups))
    mass[0] = 0.0
    total = mass.sum()
    if kept < groups or total == 0.0:
        return ends[1] if ends[1] >= magnitudes.high[-1] else np.inf
    shares = mass / total
    beyond = float(shares[kept:].sum())
    return float(stepwise_divergence(shares, groups, kept, beyond, np.empty(shares.size)))


def least_divergent(shares: npt.NDArray[np.float64], groups: int) -> int:
    """Return how many bins, at least ``groups`` and not all, are best kept.

    Where each try costs an empty bin, as for a tensor of one value, they are all equal (the
    tools keep the fewest then, and clip all there is): as many as can be are kept.

    Args:
        shares: float64 ``[bins]``, of sum 1 or 0.
        groups: Number of magnitude codes.
    """
    # Summed from the end: nothing beyond is exactly nothing, and costs no empty bin.
    beyond = np.cumsum(shares[::-1])[::-1].copy()
    return int(_search_stepwise(shares, beyond, groups, np.empty(shares.size)))


@_KERNELS.inner
def _stepwise_divergence(
    shares: npt.NDArray[np.float64],
    groups: int,
    kept: int,
    beyond: float,
    quantized: npt.NDArray[np.float64],
) -> float:
    """Return ``sum(P log(P / Q))`` over the kept bins."""
    width = kept / groups
    for bin_ in range(kept):
        quantized[bin_] = 0.0
    for group in range(groups):
        # The product may be rounded above the last bin.
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


@_KERNELS.entry("float64(float64[:], int64, int64, float64, float64[:])")
def stepwise_divergence(
    shares: npt.NDArray[np.float64],
    groups: int,
    kept: int,
    beyond: float,
    quantized: npt.NDArray[np.float64],
) -> float:
    """Return ``sum(P log(P / Q))`` over the kept bins.

    Args:
        shares: float64 ``[bins]``, of sum 1.
        groups: Number of magnitude codes.
        kept: How many bins are kept, at least ``groups``.
        beyond: What lies beyond them; it is added to the last one of P.
        quantized: Q as float64 ``[bins]``, scratch.
    """
    return float(_stepwise_divergence(shares, groups, kept, beyond, quantized))


@_KERNELS.entry("int64(float64[:], float64[:], int64, float64[:])")
def _search_stepwise(
    shares: npt.NDArray[np.float64],
    beyond: npt.NDArray[np.float64],
    groups: int,
    quantized: npt.NDArray[np.float64],
) -> int:
    """Try each number of kept bins; see `least_divergent`. ``quantized`` is scratch."""
    best, least = groups, np.inf
    for kept in range(groups, shares.shape[0]):
        divergence = _stepwise_divergence(shares, groups, kept, beyond[kept], quantized)
        # The first of equals is kept: the tools' loops go upwards as well.
        if divergence < least:
            best, least = kept, divergence
    return best if least < _EMPTY_BIN else shares.shape[0] - 1
