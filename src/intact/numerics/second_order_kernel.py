"""Compiled loops of `intact.numerics.second_order`: some columns of weights at a time.

All arrays are float64 in C order: weights ``[groups, outputs, inputs]``, scales and zero points
``[groups, outputs, blocks]``, second moments and triangles ``[groups, inputs, inputs]``; but for
``blocks``, int64 ``[groups, inputs]``, which says to which block a column belongs. A row at a time,
with the columns in the inner loop, so that what a row needs stays in the fastest cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from intact.numerics.loop_cache import CACHED

_Read = types.Array(types.float64, 3, "C", readonly=True)
_Block = types.Array(types.int64, 2, "C", readonly=True)
_Write = types.Array(types.float64, 3, "C")
_Turn = types.void(
    _Write,
    _Write,
    _Write,
    _Read,
    _Read,
    _Read,
    _Block,
    types.float64,
    types.float64,
    types.int64,
    types.int64,
)
_Descend = types.int64(
    _Write,
    _Write,
    _Read,
    _Read,
    _Read,
    _Block,
    types.float64,
    types.float64,
    types.int64,
    types.int64,
)


@njit(cache=CACHED, nogil=True, error_model="numpy", inline="always")
def _nearest(value: Any, scale: Any, zero: Any, low: Any, high: Any) -> Any:
    code = np.rint(value / scale) + zero
    code = low if code < low else code
    code = high if code > high else code
    return (code - zero) * scale


@njit(_Turn, cache=CACHED, nogil=True, error_model="numpy")
def round_columns(
    weight: Any,
    rounded: Any,
    errors: Any,
    upper: Any,
    scale: Any,
    zero: Any,
    blocks: Any,
    low: Any,
    high: Any,
    start: Any,
    end: Any,
) -> None:
    """Round columns ``start`` to ``end`` one after another, in place.

    Each passes its error on to those behind it up to ``end``; ``errors``, ``[groups, outputs,
    columns]``, takes what is to be passed on to the others.
    """
    for group in range(weight.shape[0]):
        for row in range(weight.shape[1]):
            for column in range(start, end):
                block = blocks[group, column]
                step, offset = scale[group, row, block], zero[group, row, block]
                now = weight[group, row, column]
                near = _nearest(now, step, offset, low, high)
                rounded[group, row, column] = near
                error = (now - near) / upper[group, column, column]
                errors[group, row, column - start] = error
                for other in range(column + 1, end):
                    weight[group, row, other] -= error * upper[group, column, other]


@njit(_Descend, cache=CACHED, nogil=True, error_model="numpy")
def descend_columns(
    found: Any,
    rest: Any,
    moments: Any,
    scale: Any,
    zero: Any,
    blocks: Any,
    low: Any,
    high: Any,
    start: Any,
    end: Any,
) -> int:
    """Move columns ``start`` to ``end`` to their best levels, in place; count those that moved.

    ``rest``, ``[groups, outputs, columns]``, is what is missing of the wanted products there; it
    follows.
    """
    moved = 0
    for group in range(found.shape[0]):
        for row in range(found.shape[1]):
            for column in range(start, end):
                block = blocks[group, column]
                step, offset = scale[group, row, block], zero[group, row, block]
                now = found[group, row, column]
                aim = now + rest[group, row, column - start] / moments[group, column, column]
                change = _nearest(aim, step, offset, low, high) - now
                if change != 0:
                    moved += 1
                    found[group, row, column] = now + change
                    for other in range(start, end):
                        rest[group, row, other - start] -= change * moments[group, column, other]
    return moved
