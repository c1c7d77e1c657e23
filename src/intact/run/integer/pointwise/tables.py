"""Results for every code there is, looked up: exact by construction, and one read an element."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from intact.program import Array, Encoding

_UNSIGNED = {1: np.uint8, 2: np.uint16}


def table_bits(encoding: Encoding | None) -> int:
    """Return how many bits the codes of a tensor take that has one scale; else 0.

    Floats, codes by channel and codes of more than 16 bits have no table.
    """
    if encoding is None or encoding.axis is not None or encoding.dtype.itemsize > 2:
        return 0
    return 8 * encoding.dtype.itemsize


def every_code(encoding: Encoding) -> Array:
    """Return every value of the codes' type in the order of its unsigned pattern.

    ``[256]`` or ``[65536]``; also values beyond ``quant_min`` and ``quant_max``, since an input
    may be fed with them.
    """
    patterns = np.arange(1 << table_bits(encoding), dtype=_UNSIGNED[encoding.dtype.itemsize])
    codes: Array = patterns.view(encoding.dtype)
    return codes


def look_up(table: Array, codes: Array) -> Array:
    """Return ``table[pattern of code]`` for codes of any shape; see `every_code`."""
    results = np.empty(codes.shape, table.dtype)
    _look_up(table, _patterns(codes), results.reshape(-1))
    return results


def look_up_pairs(table: Array, first: Array, second: Array) -> Array:
    """Return ``table[pattern of first, pattern of second]`` for operands that broadcast.

    Args:
        table: ``[256, 256]``.
        first: 8-bit codes.
        second: Likewise.
    """
    shape = np.broadcast_shapes(first.shape, second.shape)
    results = np.empty(shape, table.dtype)
    flat = results.reshape(-1)
    if second.size == 1:
        _look_up(
            np.ascontiguousarray(table[:, int(_patterns(second)[0])]), _full(first, shape), flat
        )
    elif first.size == 1:
        _look_up(np.ascontiguousarray(table[int(_patterns(first)[0])]), _full(second, shape), flat)
    else:
        _look_up_pairs(table, _full(first, shape), _full(second, shape), flat)
    return results


def _full(codes: Array, shape: tuple[int, ...]) -> Array:
    return _patterns(np.broadcast_to(codes, shape))


def _patterns(codes: Array) -> Array:
    """Return codes as unsigned indices ``[elements]``."""
    flat = np.ascontiguousarray(codes).reshape(-1)
    patterns: Array = flat.view(_UNSIGNED[codes.dtype.itemsize])
    return patterns


@njit(cache=True, nogil=True)
def _look_up(table: Any, patterns: Any, results: Any) -> None:
    for index in range(patterns.shape[0]):
        results[index] = table[patterns[index]]


@njit(cache=True, nogil=True)
def _look_up_pairs(table: Any, first: Any, second: Any, results: Any) -> None:
    for index in range(first.shape[0]):
        results[index] = table[first[index], second[index]]
