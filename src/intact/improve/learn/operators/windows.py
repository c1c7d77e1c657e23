"""Sliding windows over spatial axes: attributes that convolutions and pools share, and pads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from intact.improve.learn.operators.rules import Integers, text
from intact.program.lower.attributes import same_pads
from intact.program.operations import Pads


@dataclass(frozen=True)
class Windows:
    """Attributes of a window; the lists are empty where they have their defaults."""

    auto_pad: str
    pads: Integers
    strides: Integers
    dilations: Integers
    rounds_up: bool

    @classmethod
    def of(cls, node: ir.Node) -> Windows:
        """Read the attributes of a node."""
        read = node.attributes.get_ints
        return cls(
            text(node, "auto_pad", "NOTSET"),
            tuple(read("pads", ()) or ()),
            tuple(read("strides", ()) or ()),
            tuple(read("dilations", ()) or ()),
            bool(node.attributes.get_int("ceil_mode", 0)),
        )

    def steps(self, rank: int) -> tuple[Integers, Integers]:
        """Return strides and dilations by spatial axis."""
        return self.strides or (1,) * rank, self.dilations or (1,) * rank

    def padding(self, sizes: Sequence[int], kernel: Integers) -> Pads:
        """Return the pads by spatial axis, without what rounding up adds.

        Args:
            sizes: Lengths of the spatial axes.
            kernel: Lengths of the window.
        """
        rank = len(kernel)
        if self.auto_pad in {"SAME_UPPER", "SAME_LOWER"}:
            upper = self.auto_pad == "SAME_UPPER"
            return same_pads(tuple(sizes), kernel, *self.steps(rank), upper=upper)
        if self.auto_pad == "VALID" or not self.pads:
            return ((0, 0),) * rank
        return tuple(zip(self.pads[:rank], self.pads[rank:], strict=True))

    def added(self, sizes: Sequence[int], kernel: Integers, pads: Pads) -> Integers:
        """Return by how much rounding up lengthens the pads behind.

        A window that would begin in them is left out.
        """
        if not self.rounds_up:
            return (0,) * len(kernel)
        strides, dilations = self.steps(len(kernel))
        found = []
        for size, width, stride, dilation, (before, behind) in zip(
            sizes, kernel, strides, dilations, pads, strict=True
        ):
            room = size + before + behind - (width - 1) * dilation - 1
            steps = min(-(-room // stride), (size + before - 1) // stride)
            found.append(max(steps * stride - room, 0))
        return tuple(found)


def padded(x: Tensor, pads: Pads, value: float = 0.0) -> Tensor:
    """Pad the last axes with a value; negative pads take elements away."""
    flat = [each for pair in reversed(pads) for each in pair]
    return F.pad(x, flat, value=value) if any(flat) else x


def views(x: Tensor, kernel: Integers, strides: Integers, dilations: Integers) -> Tensor:
    """Return all windows of data ``[N, C, *S]`` as a view ``[N, C, *places, *kernel]``."""
    for k, (width, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        x = x.unfold(2 + k, (width - 1) * dilation + 1, stride)[..., ::dilation]
    return x


def is_even(pads: Pads) -> bool:
    """Tell whether pads are as long behind as before, and take nothing away."""
    return all(before == behind and before >= 0 for before, behind in pads)
