"""Sparse constants: stored numbers, and where they stand in a tensor of zeros.

Source: ``SparsityParameters`` of the TFLite schema. The axes of a tensor, of which some are split
into blocks, are levels in an order of traversal. A dense level has every place, a sparse one lists
those of each place before it (``segments`` and ``indices``, as of a compressed row).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import Unsupported

Integers = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class Level:
    """One level of the traversal.

    Attributes:
        length: Places of a dense level; 0 for a sparse one.
        segments: Where the indices of each place before it begin, and the end; None if dense.
        indices: The places that are there; None if dense.
    """

    length: int
    segments: Integers | None = None
    indices: Integers | None = None


@dataclass(frozen=True, eq=False)
class Sparsity:
    """Where the stored numbers of a tensor stand, unchecked.

    Attributes:
        order: The axis of each level; axes from the tensor's rank on are those inside blocks.
        blocks: The axis of the tensor that each axis inside blocks belongs to.
        levels: By place in the order.
    """

    order: tuple[int, ...]
    blocks: tuple[int, ...]
    levels: tuple[Level, ...]


def positions(sparsity: Sparsity, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Return where each stored number stands in the flat tensor.

    Raises:
        Unsupported: The levels do not fit the shape or each other.
    """
    lengths = _lengths(sparsity, shape)
    rank, size = len(shape), math.prod(shape)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(rank)]
    inner = {rank + k: lengths[rank + k] for k in range(len(sparsity.blocks))}
    steps = [
        stride * math.prod(inner[rank + k] for k, own in enumerate(sparsity.blocks) if own == axis)
        for axis, stride in enumerate(strides)
    ]
    steps += [strides[axis] for axis in sparsity.blocks]
    places = np.zeros(1, np.int64)
    flat = np.zeros(1, np.int64)
    for axis, level in zip(sparsity.order, sparsity.levels, strict=True):
        if level.segments is None or level.indices is None:
            if level.length != lengths[axis] or len(places) * level.length > size:
                raise _odd(f"axis {axis} has {level.length} places")
            every = np.arange(level.length)
            flat = (flat[:, None] + every * steps[axis]).reshape(-1)
            places = (places[:, None] * level.length + every).reshape(-1)
            continue
        begins, counts = _segments(level.segments, len(places), len(level.indices))
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        places = np.repeat(begins, counts) + within
        chosen = level.indices.astype(np.int64)[places]
        if ((chosen < 0) | (chosen >= lengths[axis])).any() or len(places) > size:
            raise _odd(f"an index of axis {axis} lies outside it")
        flat = np.repeat(flat, counts) + chosen * steps[axis]
    return flat


def _segments(
    segments: Integers, places: int, indices: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where the indices of each place begin, and how many there are."""
    bounds = segments.astype(np.int64)
    counts = np.diff(bounds)
    if places != len(counts) or (counts < 0).any() or bounds[0] != 0 or bounds[-1] != indices:
        raise _odd("its segments do not fit its indices")
    return bounds[:-1], counts


def _lengths(sparsity: Sparsity, shape: tuple[int, ...]) -> dict[int, int]:
    """Return the length of each axis, those of blocks included."""
    rank, blocks = len(shape), sparsity.blocks
    count = rank + len(blocks)
    if sorted(sparsity.order) != list(range(count)) or len(sparsity.levels) != count:
        raise _odd(f"its order of axes is {list(sparsity.order)}")
    if len(set(blocks)) != len(blocks) or not set(blocks) <= set(range(rank)):
        raise _odd(f"its blocks lie along {list(blocks)}")
    lengths = dict(enumerate(shape))
    by_axis = dict(zip(sparsity.order, sparsity.levels, strict=True))
    for number, axis in enumerate(blocks):
        length = by_axis[rank + number].length
        if length < 1 or shape[axis] % length:
            raise _odd(f"blocks of {length} along axis {axis} of shape {list(shape)}")
        lengths[rank + number] = length
        lengths[axis] = shape[axis] // length
    return lengths


def _odd(reason: str) -> Unsupported:
    return Unsupported(f"a sparse tensor: {reason}")
