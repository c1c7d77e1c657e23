"""Where the windows of a pool lie, without padding anything: what lies outside is left out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from intact.program import Array
from intact.program.operations import Pool

Slices: TypeAlias = tuple[slice, ...]


def pooled_lengths(shape: tuple[int, ...], operation: Pool) -> tuple[int, ...]:
    """Return the output's spatial lengths for data ``[N, *S, C]``."""
    return tuple(
        max((length + sum(pads) - size) // stride + 1, 0)
        for length, pads, size, stride in zip(
            shape[1:-1], operation.pads, operation.kernel, operation.strides, strict=True
        )
    )


def is_global(shape: tuple[int, ...], operation: Pool) -> bool:
    """Tell whether the only window is the whole input, without pads."""
    return operation.kernel == shape[1:-1] and not any(map(any, operation.pads))


def reduce_windows(array: Array, operation: Pool, combine: np.ufunc) -> Array:
    """Reduce each window ``[N, *S, C]`` with a function of two arrays, one axis after the other.

    Args:
        array: Integers; the result has their dtype.
        operation: Which windows.
        combine: ``np.add`` or ``np.maximum``. A window without elements has 0 or the lowest
            number.
    """
    start = 0 if combine is np.add else np.iinfo(array.dtype).min
    for axis, length in enumerate(pooled_lengths(array.shape, operation), 1):
        shape = (*array.shape[:axis], length, *array.shape[axis + 1 :])
        result = np.full(shape, start, array.dtype)
        for outputs, inputs in _axis_taps(array.shape[axis], length, operation, axis - 1):
            ahead = (slice(None),) * axis
            target = result[(*ahead, outputs)]
            combine(target, array[(*ahead, inputs)], out=target)
        array = result
    return array


def each_tap(shape: tuple[int, ...], operation: Pool) -> Iterator[tuple[Slices, Slices]]:
    """Yield for each element of the window, row by row, the outputs that have it and where it is.

    The slices are for arrays ``[N, *S, C]``.
    """
    lengths = pooled_lengths(shape, operation)
    axes = [
        list(_axis_taps(shape[axis], length, operation, axis - 1))
        for axis, length in enumerate(lengths, 1)
    ]
    for taps in itertools.product(*axes):
        outputs, inputs = zip(*taps, strict=True)
        yield (slice(None), *outputs), (slice(None), *inputs)


def window_counts(
    shape: tuple[int, ...], operation: Pool, *, with_pads: bool
) -> npt.NDArray[np.int64]:
    """Return how many elements each window has, ``[*S of the output]``, pads included or not."""
    lengths = pooled_lengths(shape, operation)
    counts = np.ones(lengths, np.int64)
    for axis, length in enumerate(lengths):
        along = np.zeros(length, np.int64)
        if with_pads:
            along += operation.kernel[axis]
        else:
            for outputs, _ in _axis_taps(shape[axis + 1], length, operation, axis):
                along[outputs] += 1
        counts *= along.reshape([-1 if at == axis else 1 for at in range(len(lengths))])
    return counts


def divisors(shape: tuple[int, ...], operation: Pool) -> npt.NDArray[np.int64]:
    """Return what the sum of each window is divided by for its mean; at least one."""
    return np.maximum(window_counts(shape, operation, with_pads=operation.count_pads), 1)


def _axis_taps(
    length: int, outputs: int, operation: Pool, axis: int
) -> Iterator[tuple[slice, slice]]:
    """Yield for each tap along a spatial axis the outputs that have it, and the inputs it reads."""
    stride, (before, _) = operation.strides[axis], operation.pads[axis]
    for tap in range(operation.kernel[axis]):
        first = max(-((tap - before) // stride), 0)  # of the outputs whose tap is not in front
        last = min((length - 1 + before - tap) // stride, outputs - 1)
        if first > last:
            continue
        start = first * stride + tap - before
        yield slice(first, last + 1), slice(start, start + (last - first) * stride + 1, stride)
