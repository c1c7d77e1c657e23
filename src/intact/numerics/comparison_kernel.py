"""Compares two tensors in compiled loops: sums of squares by channel, counts in bins."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intact.numerics.native import Kernels

KERNELS = Kernels(__name__)

LANES = 64
"""Partial sums of a channel. A fixed number gives the same bits on every machine."""
SUMS = 4
"""Squares of the reference, squares of the other, products, squared differences."""


@KERNELS.inner
def _add_block(
    first: npt.NDArray[np.float32], second: npt.NDArray[np.float32], lanes: npt.NDArray[np.float64]
) -> None:
    """Add up to ``LANES`` pairs, each to its own partial sums."""
    squares, others, products, differences = lanes[0], lanes[1], lanes[2], lanes[3]
    for lane in range(first.shape[0]):
        one, other = np.float64(first[lane]), np.float64(second[lane])
        difference = one - other
        squares[lane] += one * one
        others[lane] += other * other
        products[lane] += one * other
        differences[lane] += difference * difference


@KERNELS.inner
def _add_row(
    first: npt.NDArray[np.float32],
    second: npt.NDArray[np.float32],
    lanes: npt.NDArray[np.float64],
    sums: npt.NDArray[np.float64],
) -> None:
    """Add the pairs of one channel that follow each other."""
    # Short rows (a 7 x 7 map has 49 elements) would spend their time on lanes that stay 0.
    used = min(LANES, first.shape[0])
    for kind in range(SUMS):
        for lane in range(used):
            lanes[kind, lane] = 0.0
    for start in range(0, first.shape[0], LANES):
        stop = min(start + LANES, first.shape[0])
        _add_block(first[start:stop], second[start:stop], lanes)
    for kind in range(SUMS):
        total = 0.0
        for lane in range(used):
            total += lanes[kind, lane]
        sums[kind] += total


@KERNELS.entry("void(float32[:,:,:], float32[:,:,:], float64[:,:], float64[:,:])")
def add_channels(
    first: npt.NDArray[np.float32],
    second: npt.NDArray[np.float32],
    lanes: npt.NDArray[np.float64],
    sums: npt.NDArray[np.float64],
) -> None:
    """Add two tensors to the sums of their channels, in float64.

    Args:
        first: The reference, ``[outer, channels, inner]``.
        second: The other, of that shape.
        lanes: ``[SUMS, LANES]``, overwritten.
        sums: ``[channels, SUMS]``, added to.
    """
    for outer in range(first.shape[0]):
        for channel in range(first.shape[1]):
            _add_row(first[outer, channel], second[outer, channel], lanes, sums[channel])


@KERNELS.entry("void(float32[:], int64, float32, float32, int64[:])")
def count(
    values: npt.NDArray[np.float32],
    step: int,
    low: float,
    per_bin: float,
    counts: npt.NDArray[np.int64],
) -> None:
    """Count every ``step``-th value in equal bins; NaN and infinity are left out.

    Args:
        values: float32, flat.
        step: 1 at least.
        low: Lower end of the first bin, which counts what is below as well.
        per_bin: Width of a bin.
        counts: By bin, added to; the last one counts what is above as well.
    """
    last = np.float32(counts.shape[0] - 1)
    for position in range((values.shape[0] + step - 1) // step):
        value = values[position * step]
        if np.isfinite(value):
            place = (value - np.float32(low)) / np.float32(per_bin)
            counts[np.int64(min(max(place, np.float32(0.0)), last))] += 1
