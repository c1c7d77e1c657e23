"""Where the windows of a convolution lie, for one, two or three spatial axes alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from intact.errors import DataError
from intact.program import Step
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
    def of(cls, operation: Convolution | TransposedConvolution, kernel: tuple[int, ...]) -> Windows:
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
        shape: Of the data.
        axes: Spatial axes that the weight has.
        channels: Those that it takes.

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
    filled = (filler,) * (_SPATIAL - len(lengths)) + tuple(lengths)
    return filled[0], filled[1], filled[2]
