"""Finds the KL threshold as Tengine's tool does: its histogram, its float32 search.

Tengine 1.5, ``tools/quantize``: ``histCount``, ``threshold_distribution`` [tengine]. `kl_stepwise`
of `threshold_kl` searches alike, in exact shares of a histogram that one pass over the
samples leaves. Here a second pass counts, which knows the largest magnitude, and all numbers are
float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from intact.numerics.distribution import Distribution
from intact.numerics.levels import Levels
from intact.numerics.native import Kernels
from intact.numerics.threshold_kl import kl_stepwise_range

if TYPE_CHECKING:
    from collections.abc import Sequence

_KERNELS = Kernels(__name__)

_BINS = 2048
_BINS_A_GROUP = 16
"""With fewer bins a group there is little to choose from."""
_LARGEST = np.float32(np.finfo(np.float32).max)
_ZERO, _ONE = np.float32(0), np.float32(1)


def kl_counted_range(distribution: Distribution, levels: Levels) -> tuple[float, float]:
    """Return the threshold ``(kept + 0.5) * largest / bins`` that the tool chooses.

    Where no second pass has counted, or not in so many bins as the codes need, it is that of
    `kl_stepwise`.

    Args:
        distribution: What was observed, with ``magnitudes``.
        levels: Symmetric codes.
    """
    counts, groups = distribution.magnitudes, levels.quant_max + 1
    if counts is None or counts.size < _BINS_A_GROUP * groups:
        return kl_stepwise_range(distribution, levels, bins=_BINS)
    largest = np.float32(max(distribution.maximum, -distribution.minimum))
    if not largest > 0:
        return 0.0, 0.0
    step = largest / np.float32(counts.size)
    # In the order of the tool's float32 operations, each rounded; another order differs in the last
    # bit.
    threshold = step * (np.float32(bins_to_keep(counts, groups)) + np.float32(0.5))
    return levels.range_of_threshold(float(threshold))


def bins_to_keep(counts: npt.NDArray[np.int64], groups: int) -> int:
    """Return how many bins the tool keeps: the fewest that diverge least.

    Where each number costs an empty bin, as for a tensor of one value, it is ``groups``.

    Args:
        counts: int64 ``[bins]``; the first one is left out.
        groups: Number of magnitude codes, a power of two, so that edges of groups are exact.
    """
    shares, spread = np.empty(counts.size, np.float32), np.empty(counts.size, np.float32)
    return int(_search(np.ascontiguousarray(counts, np.int64), groups, shares, spread))


def count_magnitudes(
    values: npt.NDArray[np.float32],
    starts: npt.NDArray[np.int64],
    elements: npt.NDArray[np.int64],
    samples: int,
    widths: npt.NDArray[np.float32],
    counts: npt.NDArray[np.int64],
) -> None:
    """Count the magnitudes of some tensors in equal bins; releases the GIL.

    Zeros and what is not finite are left out. What lies beyond the last bin is counted in it.

    Args:
        values: float32, flat; tensor ``t`` has ``samples * elements[t]`` from ``starts[t]``.
        starts: int64 ``[tensors]``.
        elements: int64 ``[tensors]``.
        samples: Samples of each tensor.
        widths: Width of the bins of each tensor, float32 ``[tensors]``; 0 leaves one out.
        counts: int64 ``[tensors, bins]``, added to in place.

    Raises:
        ValueError: A tensor leaves ``values``, or the arrays have other sizes.
    """
    inside = (starts >= 0) & (elements >= 0) & (starts + samples * elements <= values.size)
    if not inside.all() or not len(starts) == len(elements) == len(widths) == len(counts):
        raise ValueError("the tensors are not those of the values")
    _count(values, starts, elements, samples, widths, counts)


def bin_widths(largest: Sequence[float], bins: int) -> npt.NDArray[np.float32]:
    """Return the width of the bins of tensors with these largest magnitudes, float32.

    The largest magnitude begins the last bin; it lies in the one before if its quotient is rounded
    down.
    """
    return np.asarray(largest, np.float32) / np.float32(bins - 1)


@_KERNELS.entry("void(float32[:], int64[:], int64[:], int64, float32[:], int64[:, :])")
def _count(
    values: npt.NDArray[np.float32],
    starts: npt.NDArray[np.int64],
    elements: npt.NDArray[np.int64],
    samples: int,
    widths: npt.NDArray[np.float32],
    counts: npt.NDArray[np.int64],
) -> None:
    last = counts.shape[1] - 1
    for tensor in range(starts.shape[0]):
        width = widths[tensor]
        # A tensor that is always 0, or one without any number: its width is NaN, which `<=` would
        # let pass.
        if not width > _ZERO:
            continue
        start = starts[tensor]
        for index in range(start, start + samples * elements[tensor]):
            magnitude = abs(values[index])
            if magnitude > _ZERO and magnitude <= _LARGEST:
                quotient = magnitude / width
                # Compared as a float: an infinite quotient has no integer.
                counts[tensor, last if quotient >= last else np.int64(quotient)] += 1


@_KERNELS.inner
def _spread_groups(
    shares: npt.NDArray[np.float32],
    groups: int,
    kept: int,
    spread: npt.NDArray[np.float32],
) -> None:
    """Merge the kept bins into groups, and spread each over its bins that are not empty."""
    for bin_ in range(kept):
        spread[bin_] = _ZERO
    width = np.float32(kept) / np.float32(groups)
    for group in range(groups):
        # Cases: (1) a bin that the start of the group cuts, (2) one that its end cuts, (3) the
        # whole bins between. The tool adds them in this order, and float32 sums depend on it.
        start = np.float32(group) * width
        stop = np.float32(start + width)
        first, last = np.int64(np.ceil(start)), np.int64(np.floor(stop))
        before = np.float32(np.float32(first) - start)  # the share of a bin that the start cuts
        behind = np.float32(stop - np.float32(last))
        mass, filled = _ZERO, _ZERO
        if before > _ZERO and shares[first - 1] != _ZERO:
            mass = np.float32(mass + np.float32(before * shares[first - 1]))
            filled = np.float32(filled + before)
        if behind > _ZERO and shares[last] != _ZERO:
            mass = np.float32(mass + np.float32(behind * shares[last]))
            filled = np.float32(filled + behind)
        for bin_ in range(first, last):
            if shares[bin_] != _ZERO:
                mass = np.float32(mass + shares[bin_])
                filled = np.float32(filled + _ONE)
        if not filled > _ZERO:
            continue
        each = np.float32(mass / filled)
        if before > _ZERO and shares[first - 1] != _ZERO:
            spread[first - 1] = np.float32(spread[first - 1] + np.float32(each * before))
        if behind > _ZERO and shares[last] != _ZERO:
            spread[last] = np.float32(spread[last] + np.float32(each * behind))
        for bin_ in range(first, last):
            if shares[bin_] != _ZERO:
                spread[bin_] = np.float32(spread[bin_] + each)


@_KERNELS.entry("int64(int64[:], int64, float32[:], float32[:])")
def _search(
    counts: npt.NDArray[np.int64],
    groups: int,
    shares: npt.NDArray[np.float32],
    spread: npt.NDArray[np.float32],
) -> int:
    """Try each number of kept bins; ``shares`` and ``spread`` are scratch."""
    bins = counts.shape[0]
    total, beyond = _ZERO, _ZERO
    for bin_ in range(1, bins):
        total = np.float32(total + np.float32(counts[bin_]))
    shares[0] = _ZERO
    for bin_ in range(1, bins):
        shares[bin_] = np.float32(np.float32(counts[bin_]) / total)
    for bin_ in range(groups, bins):
        beyond = np.float32(beyond + shares[bin_])
    best, least = groups, _LARGEST
    for kept in range(groups, bins):
        _spread_groups(shares, groups, kept, spread)
        result = _ZERO
        for bin_ in range(kept):
            reference = shares[bin_]
            if bin_ == kept - 1:
                reference = np.float32(reference + beyond)
            if reference != _ZERO:
                if spread[bin_] == _ZERO:
                    result = np.float32(result + _ONE)
                else:
                    # C's log takes a double: the float32 quotient is widened, and the sum rounded
                    # once to float32.
                    ratio = np.float64(np.float32(reference / spread[bin_]))
                    result = np.float32(np.float64(result) + np.float64(reference) * np.log(ratio))
        # As the tool does it, which subtracts what it has passed. In float32 this may leave a
        # little more or less than nothing.
        beyond = np.float32(beyond - shares[kept])
        if result < least:  # never, where subtracting left less than nothing
            best, least = kept, result
    return best
