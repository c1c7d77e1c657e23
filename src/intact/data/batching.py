"""Cutting, joining and padding batches."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Batch = dict[str, npt.NDArray[Any]]
"""Arrays by name, samples along axis 0."""

Key = TypeVar("Key", bound=Hashable)

_PIECE = 64
"""Samples of a piece, at most."""
_PIECE_ELEMENTS = 1 << 22
"""Elements of a piece of more than one sample: 16 MiB as float32."""


def pieces(batch: Batch) -> Iterator[Batch]:
    """Cut a large array into small pieces, so that only these become float32 at a time."""
    lengths = [len(array) if np.ndim(array) else 0 for array in batch.values()]
    longest = max(lengths, default=0)
    elements = sum(array.size for array in batch.values()) // max(longest, 1)
    piece = max(1, min(_PIECE, _PIECE_ELEMENTS // max(elements, 1)))
    if len(set(lengths)) > 1 or longest <= piece:
        yield batch  # unequal lengths are for the checks to name
        return
    for start in range(0, longest, piece):
        yield {name: array[start : start + piece] for name, array in batch.items()}


def joined(batches: list[Batch]) -> Batch:
    """Return several batches as one."""
    if len(batches) == 1:
        return batches[0]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def padded(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Return an array with its last sample repeated up to a size."""
    return np.concatenate([array, np.repeat(array[-1:], size - len(array), axis=0)])


def real_samples(
    arrays: Mapping[Key, npt.NDArray[Any]], size: int, count: int
) -> dict[Key, npt.NDArray[Any]]:
    """Return the first ``count`` of ``size`` samples; what has no sample axis stays whole.

    >>> found = real_samples({"x": np.arange(4), "y": np.arange(3)}, size=4, count=2)
    >>> [array.tolist() for array in found.values()]
    [[0, 1], [0, 1, 2]]
    """
    return {
        name: array[:count] if array.ndim and len(array) == size else array
        for name, array in arrays.items()
    }


def owned(batch: Batch, source: Batch) -> Batch:
    """Return a batch that shares no memory with arrays that their owner may fill anew."""
    return {
        name: array.copy() if name in source and np.may_share_memory(array, source[name]) else array
        for name, array in batch.items()
    }
