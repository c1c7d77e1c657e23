"""Counts values in the compiled loops of :mod:`intact.numerics.histogram`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intact.numerics.native import Kernels

KERNELS = Kernels(__name__)

TABLES = 4
"""Consecutive elements count in different tables: equal neighbours (the zeros after a ReLU) would
otherwise wait for the previous store to the same counter."""
LANES = 128
"""Partial sums of one sample. A fixed number gives the same bits on every machine, where letting
the compiler reorder one sum would tie them to the vector width (and cost 0.14 ns less)."""
_BLOCK = 4096
"""Elements between two loops: 16 KiB, so that the later loops read from the L1 cache."""

_LARGEST = np.float32(np.finfo(np.float32).max)
_ZERO = np.float32(0.0)
_SIGNLESS = np.int32(0x7FFFFFFF)
_INFINITE = np.int32(0x7F800000)
_NEGATIVE_INFINITE = np.int32(-0x7F800001)
"""The ordered key of -inf."""
_AFTER_ZERO_BIN = np.int32(0x10000)


@KERNELS.inner
def _count(bits: npt.NDArray[np.int32], tables: npt.NDArray[np.uint32]) -> None:
    """Count one block into the tables."""
    one = np.uint32(1)
    first, second, third, fourth = tables[0], tables[1], tables[2], tables[3]
    quads = bits.shape[0] // 4
    for quad in range(quads):
        start = 4 * quad
        first[(bits[start] >> 16) & 0xFFFF] += one
        second[(bits[start + 1] >> 16) & 0xFFFF] += one
        third[(bits[start + 2] >> 16) & 0xFFFF] += one
        fourth[(bits[start + 3] >> 16) & 0xFFFF] += one
    for index in range(4 * quads, bits.shape[0]):
        first[(bits[index] >> 16) & 0xFFFF] += one


@KERNELS.inner
def _measure(bits: npt.NDArray[np.int32], found: npt.NDArray[np.int32]) -> None:
    """Update least and greatest key, zeros, least and greatest magnitude with one block.

    Integer reductions: unlike those of floats, the compiler turns them into vector code. A key is
    the bit pattern with the magnitude of negative values inverted, which orders like the values.
    Numba widens int32 arithmetic to int64; the casts keep the vectors full.
    """
    least, greatest, zeros, smallest, largest = found[0], found[1], np.int32(0), found[3], found[4]
    for index in range(bits.shape[0]):
        pattern = bits[index]
        magnitude = np.int32(pattern & _SIGNLESS)
        key = np.int32(pattern ^ np.int32(np.int32(pattern >> 31) & _SIGNLESS))
        finite = magnitude < _INFINITE
        least = min(least, key if finite else _INFINITE)
        greatest = max(greatest, key if finite else _NEGATIVE_INFINITE)
        zeros = np.int32(zeros + np.int32(magnitude == 0))
        smallest = min(smallest, magnitude if magnitude >= _AFTER_ZERO_BIN else _SIGNLESS)
        largest = max(largest, magnitude)
    found[0], found[1], found[2], found[3], found[4] = least, greatest, zeros, smallest, largest


@KERNELS.inner
def _add_lanes(
    values: npt.NDArray[np.float32],
    total: npt.NDArray[np.float64],
    squares: npt.NDArray[np.float64],
) -> None:
    """Add up to ``LANES`` values, each to its own partial sums."""
    for lane in range(values.shape[0]):
        value = values[lane]
        # A comparison with NaN is false, so one test leaves out NaN and both infinities.
        exact = np.float64(value if abs(value) <= _LARGEST else _ZERO)
        total[lane] += exact
        squares[lane] += exact * exact


@KERNELS.inner
def _sum_lanes(lanes: npt.NDArray[np.float64]) -> float:
    """Add the partial sums pairwise, in a fixed order; the array is overwritten."""
    width = LANES // 2
    while width > 0:
        for lane in range(width):
            lanes[lane] += lanes[lane + width]
        width //= 2
    return float(lanes[0])


@KERNELS.inner
def _flush(
    tables: npt.NDArray[np.uint32], counts: npt.NDArray[np.int64], start: int, stop: int
) -> None:
    """Move the bins ``start..stop - 1`` of the tables to the counts."""
    for table in range(TABLES):
        row = tables[table]
        for index in range(start, stop):
            counts[index] += np.int64(row[index])
            row[index] = 0


@KERNELS.inner
def _pattern_of_key(key: int) -> np.int32:
    return np.int32(key if key >= 0 else key ^ _SIGNLESS)


@KERNELS.inner
def _count_samples(
    values: npt.NDArray[np.float32],
    bits: npt.NDArray[np.int32],
    elements: int,
    tables: npt.NDArray[np.uint32],
    touched: npt.NDArray[np.int32],
    extremes: npt.NDArray[np.int32],
    sums: npt.NDArray[np.float64],
    zeros: npt.NDArray[np.int64],
    found: npt.NDArray[np.int32],
    lanes: npt.NDArray[np.float64],
) -> None:
    """Count the samples of one tensor into ``tables`` and fill the per-sample results.

    ``touched`` int32 ``[2]`` holds the least and greatest magnitude pattern beyond the zero bins
    in the tables; it is widened. ``found`` and ``lanes`` are scratch.
    """
    found[3], found[4] = touched[0], touched[1]
    for sample in range(zeros.shape[0]):
        found[0], found[1] = _INFINITE, _NEGATIVE_INFINITE
        for lane in range(LANES):
            lanes[0, lane], lanes[1, lane] = 0.0, 0.0
        zeros[sample] = 0
        end = (sample + 1) * elements
        for start in range(sample * elements, end, _BLOCK):
            stop = min(start + _BLOCK, end)
            _count(bits[start:stop], tables)
            _measure(bits[start:stop], found)
            zeros[sample] += found[2]
            for first in range(start, stop, LANES):
                _add_lanes(values[first : min(first + LANES, stop)], lanes[0], lanes[1])
        extremes[0, sample] = _pattern_of_key(found[0])
        extremes[1, sample] = _pattern_of_key(found[1])
        sums[0, sample] = _sum_lanes(lanes[0])
        sums[1, sample] = _sum_lanes(lanes[1])
    touched[0], touched[1] = found[3], found[4]


@KERNELS.inner
def _flush_touched(
    tables: npt.NDArray[np.uint32], counts: npt.NDArray[np.int64], touched: npt.NDArray[np.int32]
) -> None:
    """Move what the tables hold to the counts.

    Only the touched part: moving all of it would cost more than counting small samples.
    """
    # Bin 0 and its negative twin are flushed by themselves below: zeros after a Relu would stretch
    # the touched part over all bins from there on.
    low = max(touched[0] >> 16, 1)
    high = (touched[1] >> 16) + 1
    _flush(tables, counts, 0, 1)
    _flush(tables, counts, 0x8000, 0x8001)
    _flush(tables, counts, low, high)
    _flush(tables, counts, 0x8000 + low, 0x8000 + high)
    touched[0], touched[1] = _SIGNLESS, 0


@KERNELS.entry(
    "void(float32[:], int32[:], int64[:], int64[:], uint32[:,:,:], int32[:,:], int32[:,:,:], "
    "float64[:,:,:], int64[:,:], int32[:], float64[:,:])"
)
def count_tensors(
    values: npt.NDArray[np.float32],
    bits: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    elements: npt.NDArray[np.int64],
    tables: npt.NDArray[np.uint32],
    touched: npt.NDArray[np.int32],
    extremes: npt.NDArray[np.int32],
    sums: npt.NDArray[np.float64],
    zeros: npt.NDArray[np.int64],
    found: npt.NDArray[np.int32],
    lanes: npt.NDArray[np.float64],
) -> None:
    """Count many tensors that lie in one array, each into tables of its own.

    One call for a whole batch, and nothing moved to the counts: small batches, which are still
    in the cache when they are counted, cost no more than large ones.

    Args:
        values: float32, all tensors.
        bits: The same memory as int32.
        starts: int64 ``[tensors]``, where each begins.
        elements: int64 ``[tensors]``, elements of one sample of each.
        tables: uint32 ``[tensors, TABLES, 65536]``, added to.
        touched: int32 ``[tensors, 2]``, widened; see ``_count_samples``.
        extremes: int32 ``[tensors, 2, samples]``, written: bit patterns of float32.
        sums: float64 ``[tensors, 2, samples]``, written.
        zeros: int64 ``[tensors, samples]``, written.
        found: int32 ``[5]``, scratch.
        lanes: float64 ``[2, LANES]``, scratch.
    """
    for tensor in range(starts.shape[0]):
        start = starts[tensor]
        stop = start + zeros.shape[1] * elements[tensor]
        _count_samples(
            values[start:stop],
            bits[start:stop],
            elements[tensor],
            tables[tensor],
            touched[tensor],
            extremes[tensor],
            sums[tensor],
            zeros[tensor],
            found,
            lanes,
        )


@KERNELS.entry("void(uint32[:,:,:], int64[:,:], int32[:,:])")
def flush_tensors(
    tables: npt.NDArray[np.uint32], counts: npt.NDArray[np.int64], touched: npt.NDArray[np.int32]
) -> None:
    """Move the tables of all tensors to their counts, int64 ``[tensors, 65536]``."""
    for tensor in range(counts.shape[0]):
        _flush_touched(tables[tensor], counts[tensor], touched[tensor])
