"""Codes as the floats that exact products are made of, and windows of them as rows (im2col).

Floats are used because they are what matrix products are fast in; every one of them is an integer,
and whoever multiplies them proves that no sum leaves the integers that the type holds exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from intact.program import Array
from intact.run.integer.products.windows import Triple, Windows

Floats = npt.NDArray[Any]
"""float32 or float64, whole numbers."""

_UNSIGNED = {np.dtype(np.uint8): np.int8, np.dtype(np.uint16): np.int16}


def offset_of(dtype: np.dtype[Any]) -> int:
    """Return what `signed` takes off codes of a type.

    >>> offset_of(np.dtype(np.uint8)), offset_of(np.dtype(np.int8))
    (128, 0)
    """
    return 1 << (8 * dtype.itemsize - 1) if dtype in _UNSIGNED else 0


def signed(codes: Array) -> Array:
    """Return codes less `offset_of` their type, in one contiguous piece.

    Codes around zero have the smallest products: with zero points near an end of the range, only
    half as large as those of ``code - zero_point``.
    """
    codes = np.ascontiguousarray(codes)
    kind = _UNSIGNED.get(codes.dtype)
    if kind is None:
        return codes
    flipped: Array = (codes ^ codes.dtype.type(offset_of(codes.dtype))).view(kind)
    return flipped


def padded(
    codes: Array, windows: Windows, pad: int, dtype: np.dtype[Any], multiple: int = 1
) -> Floats:
    """Return signed codes ``[N, D, H, W, C]`` as floats with pads around the spatial axes.

    W is filled up to a multiple of ``multiple``.
    """
    pairs = list(zip(windows.begins, windows.ends, strict=True))
    sizes = codes.shape[1:4]
    lengths = [max(sum(pair) + size, 0) for pair, size in zip(pairs, sizes, strict=True)]
    lengths[2] += -lengths[2] % multiple
    if not any((*windows.begins, *windows.ends)) and lengths[2] == sizes[2]:
        return codes.astype(dtype)
    # A negative pad cuts off; what is left goes to where it lies in the result.
    outer = [
        slice(max(-b, 0), max(n - max(-e, 0), 0)) for (b, e), n in zip(pairs, sizes, strict=True)
    ]
    inner = [
        slice(max(begin, 0), max(begin, 0) + max(cut.stop - cut.start, 0))
        for (begin, _), cut in zip(pairs, outer, strict=True)
    ]
    floats = np.empty((codes.shape[0], *lengths, codes.shape[4]), dtype)
    for axis, cut in enumerate(inner, start=1):
        before = (slice(None),) * axis
        floats[(*before, slice(cut.start))] = pad
        floats[(*before, slice(cut.stop, None))] = pad
    floats[:, inner[0], inner[1], inner[2]] = codes[:, outer[0], outer[1], outer[2]]
    return floats


def window_view(floats: Floats, windows: Windows, outputs: Triple, groups: int) -> Floats:
    """Return all windows of padded data, without a copy.

    Args:
        floats: Contiguous ``[N, D, H, W, C]``.
        windows: Their kernel, strides and dilations.
        outputs: How many there are by axis.
        groups: Of channels.

    Returns:
        ``[groups, N, *outputs, *kernel, C / groups]``, to be read only.
    """
    channels = floats.shape[4] // groups
    steps = floats.strides
    strides = tuple(step * by for step, by in zip(steps[1:4], windows.strides, strict=True))
    dilations = tuple(step * by for step, by in zip(steps[1:4], windows.dilations, strict=True))
    return np.lib.stride_tricks.as_strided(
        floats,
        (groups, floats.shape[0], *outputs, *windows.kernel, channels),
        (channels * steps[4], steps[0], *strides, *dilations, steps[4]),
        writeable=False,
    )


def phases_of(floats: Floats, stride: int) -> Floats:
    """Return padded data ``[N, D, H, W, C]`` as ``[stride, N, D, H, W / stride * C]``.

    W is a multiple of the stride. The elements of a line that windows meet at one tap lie
    ``stride`` apart; here they touch.
    """
    if stride == 1:
        return floats.reshape(1, *floats.shape[:3], -1)
    split = floats.reshape(*floats.shape[:3], -1, stride, floats.shape[4])
    moved = np.ascontiguousarray(split.transpose(4, 0, 1, 2, 3, 5))
    return moved.reshape(stride, *floats.shape[:3], -1)
