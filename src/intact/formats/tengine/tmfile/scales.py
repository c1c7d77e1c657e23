"""Stores the numbers of a ``.tmfile``: float32, or the codes and scales of a program.

The tool's min-max scale of an output channel whose weights are all 0 is 0, hence also the bias's,
and the codes of both are 0: what the bias adds is lost [tengine]. A plan gives the channel some
scale and keeps its bias, unless its target says ``dead_channels = "zero"``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.file import Element, Quantization
from intact.plan import Note, NoteKind, QuantizedGraph
from intact.plan.dead_channels import nodes_with_dead_channels
from intact.program import Encoding, Program
from intact.targets import DeadChannels


def zero_scales(plan: QuantizedGraph) -> dict[str, npt.NDArray[np.bool_]]:
    """Return the channels whose scales are written as 0, by the name of the node."""
    if plan.target.bias.dead_channels is DeadChannels.KEEP:
        return {}
    return {str(node.name): dead for node, dead in nodes_with_dead_channels(plan)}


def dead_channel_notes(plan: QuantizedGraph) -> Iterator[Note]:
    """Say how many channels have no weights, and what is written of them."""
    found = [(str(node.name), int(dead.sum())) for node, dead in nodes_with_dead_channels(plan)]
    if not found:
        return
    count = sum(number for _, number in found)
    dead = f"{count} output channel(s) of {len(found)} layer(s) have weights of 0 only"
    first = f"(first: {found[0][0]!r})"
    if plan.target.bias.dead_channels is DeadChannels.ZERO:
        message, remedy = f"{dead}: their scales and biases are written as 0 {first}", ""
    else:
        message = (
            f"{dead}: they keep their bias, where Tengine's own tool writes scales and biases of 0 "
            f"{first}"
        )
        remedy = "--target tengine-tool writes what the tool does"
    yield Note(NoteKind.EXPORT, "", message, remedy)


Array = npt.NDArray[Any]

_BITS = 8
"""Width of the codes that Tengine computes with."""
_BIAS_BITS = 32


@dataclass(frozen=True, eq=False)
class Constant:
    """A constant that a step reads.

    Attributes:
        name: What the model's value is called.
        slot: Where the step reads it.
        data: Codes or floats as the program stores them.
        in_model: The same with the axes in the model's order.
        encoding: What codes stand for; None for floats.
        dead: bool, ``[channels]`` or ``[]``: channels of weights 0, whose scale is written as 0;
            None where scales are written as they are.
    """

    name: str
    slot: int
    data: Array
    in_model: Array
    encoding: Encoding | None = None
    dead: npt.NDArray[np.bool_] | None = None


class Scales:
    """The scale of each tensor of a file.

    Args:
        program: What is written.
        quantized: Write codes; otherwise float32.

    Attributes:
        element: Type of activations: INT8 or UINT8 as the first of the program, or FLOAT32.
    """

    def __init__(self, program: Program, *, quantized: bool) -> None:
        self._encodings = _encodings(program)
        first = next((each[0] for each in self._encodings.values()), None)
        # One type for all activations: kernels read and write the same.
        signed = first is None or first.quant_min < 0
        self.element = Element.INT8 if signed else Element.UINT8
        if not quantized:
            self.element = Element.FLOAT32

    def share(self, value: str, other: str) -> None:
        """Give a value without codes those of another one."""
        self._encodings.setdefault(value, self._encodings.get(other, []))

    def of_activation(self, value: str) -> Quantization | None:
        """Return the scale of an activation; None in a float file.

        Raises:
            Unsupported: The plan leaves it float, or quantizes it as Tengine cannot.
        """
        if self.element is Element.FLOAT32:
            return None
        found = [self._scale(each) for each in self._encodings.get(value, ())]
        if not found:
            raise Unsupported(f"{value!r} stays float")
        # A tensor of the file has one scale, whoever reads it.
        if any(not found[0].equals(each) for each in found[1:]):
            raise Unsupported(f"{value!r} is quantized in several ways")
        return found[0]

    def _scale(self, encoding: Encoding) -> Quantization:
        bits = (encoding.quant_max - encoding.quant_min).bit_length()
        if bits != _BITS or encoding.axis is not None:
            raise Unsupported(f"activations of {bits} bits, or with several scales")
        if (encoding.quant_min < 0) is (self.element is Element.UINT8):
            raise Unsupported("its codes and those of other activations are not of one sign")
        zero_point = np.atleast_1d(encoding.zero_point).astype(np.int32)
        if self.element is Element.INT8 and zero_point.any():
            raise Unsupported("activations with a zero point; Tengine's INT8 has none")
        return Quantization(np.atleast_1d(encoding.scale), zero_point)

    def of_constant(
        self, constant: Constant, array: Array, *, by_channel: bool
    ) -> tuple[Element, Quantization | None]:
        """Return type and scales of a constant.

        Args:
            constant: Which.
            array: Its data as Tengine stores it.
            by_channel: It may have a scale for each index of the first axis.

        Raises:
            Unsupported: The plan leaves it float, or quantizes it as Tengine cannot.
        """
        if self.element is Element.FLOAT32:
            return Element.FLOAT32, None
        slot, encoding = constant.slot, constant.encoding
        if encoding is None:
            raise Unsupported(f"its input {slot} stays float")
        bits = 8 * encoding.dtype.itemsize
        element = Element.INT32 if bits == _BIAS_BITS else self.element
        if element is not Element.INT32 and bits > _BITS:
            raise Unsupported(f"input {slot} has {bits} bits")
        if (encoding.quant_min < 0) is (element is Element.UINT8):
            raise Unsupported(f"the codes of input {slot} and of activations are not of one sign")
        if encoding.axis is not None and not (by_channel and encoding.axis == 0):
            raise Unsupported(f"input {slot} has scales along axis {encoding.axis}")
        scale = np.atleast_1d(encoding.scale)
        if by_channel and self.element is Element.INT8:
            # Kernels of int8 read a scale for each channel, even where the plan has one.
            scale = np.broadcast_to(scale, array.shape[:1])
        # After the scales are spread: a dead channel is one of many.
        if constant.dead is not None:
            scale = np.where(constant.dead, np.float32(0), scale)
        zero_point = np.broadcast_to(encoding.zero_point.astype(np.int32), scale.shape)
        # Its kernels read the first scale, for all channels.
        if self.element is Element.UINT8 and scale.size > 1:
            raise Unsupported(f"input {slot} has {scale.size} scales; Tengine's uint8 has one")
        if element is not Element.UINT8 and zero_point.any():
            raise Unsupported(f"input {slot} has a zero point; Tengine's {element.name} has none")
        return element, Quantization(scale, zero_point)


def _encodings(program: Program) -> dict[str, list[Encoding]]:
    """Return what the codes of each value stand for, at the value's quantization points.

    A value without a point of its own has the codes that the operation before it moves.
    """
    at_points: dict[str, list[Encoding]] = {}
    moved: dict[str, list[Encoding]] = {}
    for tensor in program.tensors():
        if tensor.encoding is not None and not tensor.is_constant:
            found = moved if tensor.end is None else at_points
            found.setdefault(tensor.value, []).append(tensor.encoding)
    return {**moved, **at_points}
