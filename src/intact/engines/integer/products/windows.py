"""Computes where the windows of a convolution lie, for one, two or three axes alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.errors import DataError
from intact.program import Array, Step
from intact.program.operations import Convolution, TransposedConvolution

Triple: TypeAlias = tuple[int, int, int]

_SPATIAL = 3


@dataclass(frozen=True)
class Windows:
    """Geometry with three spatial axes; those that the operation lacks have length one.

    Attributes:
        kernel: Taps by axis.
        strides: Steps between windows.
        dilations: Steps between taps.
        begins: Pads before the first element.
        ends: Pads after the last one.
        output_padding: What a transposed convolution adds behind its result.
    """

    kernel: Triple
    strides: Triple
    dilations: Triple
    begins: Triple
    ends: Triple
    output_padding: Triple = (0, 0, 0)

    @classmethod
    def from_operation(
        cls, operation: Convolution | TransposedConvolution, kernel: tuple[int, ...]
    ) -> Windows:
        """Return the geometry of an operation whose weight has these spatial lengths."""
        padding = operation.output_padding if isinstance(operation, TransposedConvolution) else ()
        return cls(
            kernel=_triple(kernel, 1),
            strides=_triple(operation.strides, 1),
            dilations=_triple(operation.dilations, 1),
            begins=_triple(tuple(begin for begin, _ in operation.pads), 0),
            ends=_triple(tuple(end for _, end in operation.pads), 0),
            output_padding=_triple(padding, 0),
        )

    @property
    def taps(self) -> int:
        """Elements of the kernel."""
        return self.kernel[0] * self.kernel[1] * self.kernel[2]

    @property
    def is_pointwise(self) -> bool:
        """Whether every window is one element, and every element a window."""
        return self.taps == 1 and set(self.strides) == {1} and {*self.begins, *self.ends} == {0}

    def output_of(self, sizes: Triple) -> Triple:
        """Return how many windows there are by axis; none where the kernel does not fit."""
        lengths = []
        for axis, size in enumerate(sizes):
            room = size + self.begins[axis] + self.ends[axis] - self.reach(axis)
            lengths.append(max(room // self.strides[axis] + 1, 0))
        return lengths[0], lengths[1], lengths[2]

    def transposed_output_of(self, sizes: Triple) -> Triple:
        """Return the lengths of a transposed convolution's result."""
        lengths = []
        for axis, size in enumerate(sizes):
            full = (size - 1) * self.strides[axis] + self.reach(axis) + self.output_padding[axis]
            lengths.append(max(full - self.begins[axis] - self.ends[axis], 0) if size else 0)
        return lengths[0], lengths[1], lengths[2]

    def reach(self, axis: int) -> int:
        """Return how many elements a window spans."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1


def spatial_lengths(step: Step, shape: tuple[int, ...], axes: int, channels: int) -> Triple:
    """Return the three spatial lengths of data ``[N, *S, C]``.

    Args:
        step: Whose data it is, for the message.
        shape: The shape of the data.
        axes: Spatial axes that the weight has.
        channels: The channels that it takes.

    Raises:
        DataError: The data has other axes or channels.
    """
    if len(shape) != axes + 2 or shape[-1] != channels:
        raise DataError(
            f"step {step.name!r} takes {axes} spatial axes and {channels} channels, "
            f"not data of shape {list(shape)}",
            remedy="feed data of the model's shape",
        )
    return _triple(shape[1:-1], 1)


def _triple(lengths: tuple[int, ...], filler: int) -> Triple:
    # In front: the last axis stays the one along which elements touch, and windows overlap.
    filled = (filler,) * (_SPATIAL - len(lengths)) + tuple(lengths)
    return filled[0], filled[1], filled[2]


Floats = npt.NDArray[Any]

"""float32 or float64, whole numbers."""

_UNSIGNED = {np.dtype(np.uint8): np.int8, np.dtype(np.uint16): np.int16}


def offset_of(dtype: np.dtype[Any]) -> int:
    """Return the offset that `signed` subtracts from codes of a type.

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
    # The highest bit turned is 128 less, read as a signed code: no wider type on the way.
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
    # Only the margins are filled: filling all would write the data's part twice.
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
        groups: How many groups of channels there are.

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
