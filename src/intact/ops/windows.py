"""Windows that slide over spatial axes: the options that convolutions and pools share, and pads.

Source: the ONNX operator specification (AveragePool: output shapes, ``auto_pad``, ``ceil_mode``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from intact.ops.declaration import Operator

Integers: TypeAlias = tuple[int, ...]
"""A list of integers as an option: empty where it is absent."""

Pads: TypeAlias = tuple[tuple[int, int], ...]
"""Elements before and behind, by axis."""


class Window(Operator, abstract=True):
    """What convolutions and pools share; data is ``[N, C, *S]``.

    Lists have one entry for each spatial axis, ``pads`` two.
    """

    kernel_shape: Integers = ()
    strides: Integers = ()
    dilations: Integers = ()
    pads: Integers = ()
    auto_pad: str = "NOTSET"

    def steps(self, rank: int) -> tuple[Integers, Integers]:
        """Return strides and dilations by spatial axis."""
        return self.strides or (1,) * rank, self.dilations or (1,) * rank

    @property
    def pads_to_same(self) -> bool:
        """Whether the pads follow from the lengths of the axes."""
        return self.auto_pad in ("SAME_UPPER", "SAME_LOWER")

    def padding(self, sizes: Sequence[int], kernel: Integers) -> Pads:
        """Return the pads by spatial axis, without what rounding up adds.

        Args:
            sizes: Lengths of the spatial axes; read only where the pads follow from them.
            kernel: Lengths of the window.
        """
        rank = len(kernel)
        if self.pads_to_same:
            upper = self.auto_pad == "SAME_UPPER"
            return same_pads(sizes, kernel, *self.steps(rank), upper=upper)
        if self.auto_pad == "VALID" or not self.pads:
            return ((0, 0),) * rank
        return tuple(zip(self.pads[:rank], self.pads[rank:], strict=True))


class Pool(Window, abstract=True):
    """What pools share: their lengths may be rounded up."""

    ceil_mode: int = 0

    def added(self, sizes: Sequence[int], kernel: Integers, pads: Pads) -> Integers:
        """Return by how much rounding up lengthens the pads behind."""
        if not self.ceil_mode:
            return (0,) * len(kernel)
        found = []
        axes = zip(sizes, kernel, *self.steps(len(kernel)), pads, strict=True)
        for size, width, stride, dilation, (before, behind) in axes:
            span = (width - 1) * dilation + 1
            steps = steps_rounded_up(size, span, stride, before, behind)
            found.append(max(steps * stride + span - size - before - behind, 0))
        return tuple(found)


def steps_rounded_up(size: int, span: int, stride: int, before: int, behind: int) -> int:
    """Return how many steps a window makes of which the last may end behind the pads.

    One that would begin in the pads behind is left out.

    Args:
        size: Length of the axis.
        span: How far the window reaches.
        stride: Length of a step.
        before: Pads before the data.
        behind: Pads behind it.
    """
    room = size + before + behind - span
    return min(-(-room // stride), (size + before - 1) // stride)


def lacking_for_same(size: int, span: int, stride: int) -> int:
    """Return the pads of an axis for one window at each stride; negative where data is left over.

    Arguments as of `steps_rounded_up`.
    """
    return (-(-size // stride) - 1) * stride + span - size


def same_pads(
    sizes: Sequence[int],
    kernel: Integers,
    strides: Integers,
    dilations: Integers,
    *,
    upper: bool,
) -> Pads:
    """Return pads that make as many windows as strides fit into an axis.

    Args:
        sizes: Lengths of the axes.
        kernel: Lengths of the window.
        strides: Steps of the window.
        dilations: Steps within the window.
        upper: An odd pad is longer behind, else before.
    """
    pads = []
    for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max(lacking_for_same(size, (width - 1) * dilation + 1, stride), 0)
        less = total // 2
        pads.append((less, total - less) if upper else (total - less, less))
    return tuple(pads)
