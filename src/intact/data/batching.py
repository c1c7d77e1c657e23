"""Splits, joins and pads batches, and groups what is held at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Batch = dict[str, npt.NDArray[Any]]
"""Arrays by name, samples along axis 0."""

Shapes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""Those of one sample's arrays, with their names."""

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")

_PIECE = 64
"""Maximum number of samples of a piece."""
_PIECE_ELEMENTS = 1 << 22
"""Maximum number of elements of a piece of several samples: 16 MiB as float32."""


def pieces(batch: Batch) -> Iterator[Batch]:
    """Split a batch into small pieces, which limits the memory for conversion to float32."""
    lengths = [len(array) if np.ndim(array) else 0 for array in batch.values()]
    longest = max(lengths, default=0)
    # Elements of one sample over all inputs: large samples are converted one at a time.
    elements = sum(array.size for array in batch.values()) // max(longest, 1)
    piece = max(1, min(_PIECE, _PIECE_ELEMENTS // max(elements, 1)))
    if len(set(lengths)) > 1 or longest <= piece:
        yield batch  # unequal lengths are reported by later checks
        return
    for start in range(0, longest, piece):
        yield {name: array[start : start + piece] for name, array in batch.items()}


def cut(batch: Mapping[str, npt.NDArray[Any]], size: int) -> Iterator[Batch]:
    """Cut a batch into parts of so many samples, the last of what is left; one feed stays whole.

    >>> [part["x"].tolist() for part in cut({"x": np.arange(5)}, 2)]
    [[0, 1], [2, 3], [4]]
    """
    count = sample_count(batch)
    if size >= count:
        yield dict(batch)
        return
    for start in range(0, count, size):
        yield {name: array[start : start + size] for name, array in batch.items()}


def shapes_of(batch: Mapping[str, npt.NDArray[Any]]) -> Shapes:
    """Return the shapes of one sample: batches that have the same can be joined.

    >>> shapes_of({"x": np.zeros((4, 2)), "rate": np.array(1)})
    (('rate', ()), ('x', (2,)))
    """
    return tuple((name, batch[name].shape[1:]) for name in sorted(batch))


def joined(batches: Sequence[dict[Key, npt.NDArray[Any]]]) -> dict[Key, npt.NDArray[Any]]:
    """Concatenate batches; of an array without axes the last one stays.

    >>> joined([{"x": np.arange(2), "y": np.array(1)}, {"x": np.arange(1), "y": np.array(2)}])
    {'x': array([0, 1, 0]), 'y': array(2)}
    """
    if len(batches) == 1:
        return batches[0]
    return {
        name: np.concatenate([batch[name] for batch in batches]) if array.ndim else array
        for name, array in batches[-1].items()
    }


def within(size: int, room: int, each: int) -> int:
    """Return how many samples run at once where each takes some of the room there is.

    >>> within(16, 100, 30), within(16, 100, 1), within(16, 100, 1000)
    (3, 16, 1)
    """
    return max(1, min(size, room // max(1, each)))


def padded(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Pad an array to a size by repeating its last sample."""
    # A real sample and no zeros, which may drive a model out of its range.
    return np.concatenate([array, np.repeat(array[-1:], size - len(array), axis=0)])


def real_samples(
    arrays: Mapping[Key, npt.NDArray[Any]], size: int, count: int
) -> dict[Key, npt.NDArray[Any]]:
    """Return the first ``count`` of ``size`` samples; an array without sample axis is not changed.

    >>> found = real_samples({"x": np.arange(4), "y": np.arange(3)}, size=4, count=2)
    >>> [array.tolist() for array in found.values()]
    [[0, 1], [0, 1, 2]]
    """
    return {
        name: array[:count] if array.ndim and len(array) == size else array
        for name, array in arrays.items()
    }


def sample_count(batch: Mapping[Key, npt.NDArray[Any]]) -> int:
    """Count the samples along axis 0; a batch whose arrays do not agree on that is one feed.

    >>> sample_count({"x": np.zeros((4, 2)), "y": np.zeros(4)})
    4
    >>> sample_count({"x": np.zeros((1, 2)), "state": np.zeros((2, 1, 8)), "rate": np.zeros(())})
    1
    """
    lengths = {len(array) if array.ndim else None for array in batch.values()}
    # A scalar has no length and makes the set larger, as another length does.
    (length,) = lengths if len(lengths) == 1 else (1,)
    return 1 if length is None else length


def owned(batch: Batch, source: Batch) -> Batch:
    """Copy the arrays of a batch that share memory with those of the source."""
    return {
        name: array.copy() if name in source and np.may_share_memory(array, source[name]) else array
        for name, array in batch.items()
    }


def groups_within(
    items: Iterable[Item], bytes_of: Callable[[Item], int], most: int
) -> Iterator[list[Item]]:
    """Yield items in groups that can be held at once, in their order.

    Args:
        items: Any.
        bytes_of: What one takes.
        most: Bytes of a group; an item of more is one by itself.
    """
    group: list[Item] = []
    held = 0
    for each in items:
        size = bytes_of(each)
        if group and held + size > most:
            yield group
            group, held = [], 0
        group.append(each)
        held += size
    if group:
        yield group
