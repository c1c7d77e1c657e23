"""The compiled loops of :mod:`intact.numerics.histogram`. Importing it compiles or loads them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, types

TABLES = 4
"""Consecutive elements count in different tables: equal neighbours (the zeros after a ReLU) would
otherwise wait for the previous store to the same counter."""
_LANES = 128
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

_Floats = types.Array(types.float32, 1, "C", readonly=True)
_Bits = types.Array(types.int32, 1, "C", readonly=True)
_Sums = types.float64[::1]
_Tables = types.uint32[:, ::1]


# Explicit signatures: one specialisation is compiled, for any array that the callers may pass,
# and the cache on disk holds one entry. Without them a read-only weight would compile it again.
@njit(types.void(_Bits, _Tables), cache=True, nogil=True)
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


@njit(types.void(_Bits, types.int32[::1]), cache=True, nogil=True)
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


@njit(types.void(_Floats, _Sums, _Sums), cache=True, nogil=True)
def _add_lanes(
    values: npt.NDArray[np.float32],
    total: npt.NDArray[np.float64],
    squares: npt.NDArray[np.float64],
) -> None:
    """Add up to ``_LANES`` values, each to its own partial sums."""
    for lane in range(values.shape[0]):
        value = values[lane]
        exact = np.float64(value if abs(value) <= _LARGEST else _ZERO)
        total[lane] += exact
        squares[lane] += exact * exact


@njit(types.float64(_Sums), cache=True, nogil=True)
def _sum_lanes(lanes: npt.NDArray[np.float64]) -> float:
    """Add the partial sums pairwise, in a fixed order; the array is overwritten."""
    width = _LANES // 2
    while width > 0:
        for lane in range(width):
            lanes[lane] += lanes[lane + width]
        width //= 2
    return float(lanes[0])


@njit(types.void(_Tables, types.int64[::1], types.int64, types.int64), cache=True, nogil=True)
def _flush(
    tables: npt.NDArray[np.uint32], counts: npt.NDArray[np.int64], start: int, stop: int
) -> None:
    """Move the bins ``start..stop - 1`` of the tables to the counts."""
    for table in range(TABLES):
        row = tables[table]
        for index in range(start, stop):
            counts[index] += np.int64(row[index])
            row[index] = 0


@njit(types.float32(types.int32), cache=True, nogil=True)
def _value_of_key(key: int) -> np.float32:
    pattern = np.empty(1, dtype=np.int32)
    pattern[0] = key if key >= 0 else np.int32(key ^ _SIGNLESS)
    return np.float32(pattern.view(np.float32)[0] + _ZERO)  # -0 + 0 is +0


_Rows = types.Array(types.float32, 2, "C", readonly=True)
_RowBits = types.Array(types.int32, 2, "C", readonly=True)


@njit(
    types.void(
        _Rows,
        _RowBits,
        _Tables,
        types.int32[::1],
        types.float32[:, ::1],
        types.float64[:, ::1],
        types.int64[::1],
    ),
    cache=True,
    nogil=True,
)
def _count_rows(
    rows: npt.NDArray[np.float32],
    bits: npt.NDArray[np.int32],
    tables: npt.NDArray[np.uint32],
    touched: npt.NDArray[np.int32],
    extremes: npt.NDArray[np.float32],
    sums: npt.NDArray[np.float64],
    zeros: npt.NDArray[np.int64],
) -> None:
    """Count ``rows`` into ``tables`` and fill the per-sample results.

    ``touched`` int32 ``[2]`` holds the least and greatest magnitude pattern beyond the zero bins
    that the tables have seen; it is widened.
    """
    samples, elements = rows.shape
    found = np.empty(5, dtype=np.int32)
    found[3], found[4] = touched[0], touched[1]
    total = np.empty(_LANES, dtype=np.float64)
    squares = np.empty(_LANES, dtype=np.float64)
    for sample in range(samples):
        found[0], found[1] = _INFINITE, _NEGATIVE_INFINITE
        total[:] = 0.0
        squares[:] = 0.0
        zeros[sample] = 0
        for start in range(0, elements, _BLOCK):
            stop = min(start + _BLOCK, elements)
            _count(bits[sample, start:stop], tables)
            _measure(bits[sample, start:stop], found)
            zeros[sample] += found[2]
            for lanes in range(start, stop, _LANES):
                _add_lanes(rows[sample, lanes : min(lanes + _LANES, stop)], total, squares)
        extremes[0, sample] = _value_of_key(found[0])
        extremes[1, sample] = _value_of_key(found[1])
        sums[0, sample] = _sum_lanes(total)
        sums[1, sample] = _sum_lanes(squares)
    touched[0], touched[1] = found[3], found[4]


@njit(types.void(_Tables, types.int64[::1], types.int32[::1]), cache=True, nogil=True)
def _flush_touched(
    tables: npt.NDArray[np.uint32], counts: npt.NDArray[np.int64], touched: npt.NDArray[np.int32]
) -> None:
    """Move what the tables hold to the counts.

    Only the touched part: moving all of it would cost more than counting small samples.
    """
    low = max(touched[0] >> 16, 1)
    high = (touched[1] >> 16) + 1
    _flush(tables, counts, 0, 1)
    _flush(tables, counts, 0x8000, 0x8001)
    _flush(tables, counts, low, high)
    _flush(tables, counts, 0x8000 + low, 0x8000 + high)
    touched[0], touched[1] = _SIGNLESS, 0


@njit(
    types.void(
        _Rows,
        _RowBits,
        types.int64[::1],
        _Tables,
        types.float32[:, ::1],
        types.float64[:, ::1],
        types.int64[::1],
    ),
    cache=True,
    nogil=True,
)
def accumulate_rows(
    rows: npt.NDArray[np.float32],
    bits: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int64],
    tables: npt.NDArray[np.uint32],
    extremes: npt.NDArray[np.float32],
    sums: npt.NDArray[np.float64],
    zeros: npt.NDArray[np.int64],
) -> None:
    """Count ``rows`` into ``counts`` and fill the per-sample results.

    Args:
        rows: float32 ``[samples, elements]``.
        bits: The same memory as int32.
        counts: int64 ``[65536]``, added to.
        tables: uint32 ``[TABLES, 65536]``, all zero before and after.
        extremes: float32 ``[2, samples]``; minimum and maximum are written.
        sums: float64 ``[2, samples]``; sums and sums of squares are written.
        zeros: int64 ``[samples]``, written.
    """
    touched = np.empty(2, dtype=np.int32)
    touched[0], touched[1] = _SIGNLESS, 0
    _count_rows(rows, bits, tables, touched, extremes, sums, zeros)
    _flush_touched(tables, counts, touched)


@njit(
    types.void(
        types.float32[::1],
        types.int32[::1],
        types.int64[::1],
        types.int64[::1],
        types.uint32[:, :, ::1],
        types.int32[:, ::1],
        types.float32[:, :, ::1],
        types.float64[:, :, ::1],
        types.int64[:, ::1],
    ),
    cache=True,
    nogil=True,
)
def count_tensors(
    values: npt.NDArray[np.float32],
    bits: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    elements: npt.NDArray[np.int64],
    tables: npt.NDArray[np.uint32],
    touched: npt.NDArray[np.int32],
    extremes: npt.NDArray[np.float32],
    sums: npt.NDArray[np.float64],
    zeros: npt.NDArray[np.int64],
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
        touched: int32 ``[tensors, 2]``, widened; see ``_count_rows``.
        extremes: float32 ``[tensors, 2, samples]``, written.
        sums: float64 ``[tensors, 2, samples]``, written.
        zeros: int64 ``[tensors, samples]``, written.
    """
    samples = zeros.shape[1]
    for tensor in range(starts.shape[0]):
        shape = (samples, elements[tensor])
        stop = starts[tensor] + samples * elements[tensor]
        _count_rows(
            values[starts[tensor] : stop].reshape(shape),
            bits[starts[tensor] : stop].reshape(shape),
            tables[tensor],
            touched[tensor],
            extremes[tensor],
            sums[tensor],
            zeros[tensor],
        )


@njit(
    types.void(types.uint32[:, :, ::1], types.int64[:, ::1], types.int32[:, ::1]),
    cache=True,
    nogil=True,
)
def flush_tensors(
    tables: npt.NDArray[np.uint32], counts: npt.NDArray[np.int64], touched: npt.NDArray[np.int32]
) -> None:
    """Move the tables of all tensors to their counts, int64 ``[tensors, 65536]``."""
    for tensor in range(counts.shape[0]):
        _flush_touched(tables[tensor], counts[tensor], touched[tensor])
