"""Collects the numbers that a fake quantizer gives, from its inputs or attributes."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import ModelError
from intact.graph import constant_array, input_value
from intact.targets import full_range

_SPELLINGS = {"ch_axis": ("ch_axis", "axis")}
"""Names of attributes that mean the same."""
_WITHOUT_AXIS = 5
"""Inputs of a quantizer by channel that gives its range and no axis: MQBench reads the last two."""


class Grid(msgspec.Struct, frozen=True, eq=False):
    """What a quantizer says of codes and numbers.

    Attributes:
        scale: float32, of any shape that broadcasts, or ``[channels]``.
        zero_point: int64, of one element or as many as ``scale``.
        quant_min: Smallest code.
        quant_max: Largest code.
        axis: The channel axis as given; None where the operator does not say.
        changes: What was made another number than the file's, in words.
        holds_fewer: Fewer than 8 bits may be stored as these 8, with a part of the codes unused.
    """

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    quant_min: int
    quant_max: int
    axis: int | None = None
    changes: tuple[str, ...] = ()
    holds_fewer: bool = False

    def narrowed(self, codes: npt.NDArray[np.int64]) -> Grid:
        """Return the grid with the range of the narrowest width for its codes and zero points."""
        if not self.holds_fewer or self.quant_max - self.quant_min != 255 or not codes.any():
            return self
        signed = self.quant_min < 0
        least = min(int(codes.min()), int(self.zero_point.min()))
        most = max(int(codes.max()), int(self.zero_point.max()))
        # The narrowest, because the tool that stored fewer bits as 8 kept no trace of the width but
        # the codes.
        for bits in range(2, 8):
            low, high = full_range(bits, signed=signed, narrow=False)
            if low <= least and most <= high:
                return msgspec.structs.replace(self, quant_min=low, quant_max=high)
        return self


class Operator(msgspec.Struct, frozen=True):
    """One row of the table.

    Attributes:
        inputs: Names of the inputs behind the tensor.
        learned: The scale was trained, and is never less than float32's epsilon.
        power_of_two: The scale is rounded up to a power of two.
    """

    inputs: tuple[str, ...]
    learned: bool = False
    power_of_two: bool = False


class GivenNumbers(msgspec.Struct, frozen=True):
    """The numbers that a node gives, by the names of its row."""

    node: ir.Node
    operator: Operator

    def optional(self, name: str) -> npt.NDArray[np.float64] | None:
        """Return numbers, from an input or else an attribute; None where they are missing.

        Raises:
            ModelError: The model computes them.
        """
        names = self.operator.inputs
        if len(self.node.inputs) == _WITHOUT_AXIS:
            names = tuple(each for each in names if each != "ch_axis")
        slot = names.index(name) + 1 if name in names else -1
        value = input_value(self.node, slot)
        if value is not None:
            found = constant_array(value)
            if found is None:
                raise unreadable_quantizer(
                    self.node,
                    f"its {name} {value.name!r} is computed by the model",
                    "export the model with the scales frozen, in evaluation mode",
                )
            return _numbers(self.node, name, found)
        for spelling in _SPELLINGS.get(name, (name,)):
            if (attribute := self.node.attributes.get(spelling)) is not None:
                return _numbers(self.node, name, attribute.value)
        return None

    def array(self, name: str, default: float | None = None) -> npt.NDArray[np.float64]:
        """Return numbers that have to be there unless there is a default.

        Raises:
            ModelError: They are missing, or the model computes them.
        """
        found = self.optional(name)
        if found is None and default is None:
            raise unreadable_quantizer(self.node, f"it has no {name}")
        return np.asarray(default) if found is None else found

    def whole(self, name: str, default: int | None = None) -> int:
        """Return one whole number.

        Raises:
            ModelError: It is none.
        """
        found = self.array(name, default)
        if found.size != 1 or not float(found.item()).is_integer():
            raise unreadable_quantizer(self.node, f"its {name} is {found.tolist()}")
        return int(found.item())

    def text(self, name: str, default: str) -> str:
        """Return a text attribute."""
        attribute = self.node.attributes.get(name)
        if attribute is None or attribute.type is not ir.AttributeType.STRING:
            return default
        return attribute.as_string()


def quantizer_name(node: ir.Node) -> str:
    """Return the operator's name; exports to ATen hide it in an attribute."""
    if node.op_type == "ATen" and "operator" in node.attributes:
        return str(node.attributes["operator"].value)
    return node.op_type


def unreadable_quantizer(
    node: ir.Node, reason: str, remedy: str = "quantize the float model"
) -> ModelError:
    """Return the error that names a node, its operator and domain."""
    name = f"{node.domain}::{quantizer_name(node)}" if node.domain else quantizer_name(node)
    return ModelError(f"node {node.name!r} ({name}): {reason}", remedy=remedy)


def broadcast_axis(node: ir.Node, shape: tuple[int, ...]) -> int | None:
    """Return the channel axis of parameters that broadcast to the tensor; None for one scale.

    Raises:
        ModelError: They broadcast along several axes, or along none of the tensor's.
    """
    long = [axis for axis, length in enumerate(shape) if length != 1]
    if not long:
        return None
    value = node.inputs[0]
    of_value = None if value is None else value.shape
    # Parameters broadcast from the right, so that their axes are counted from the tensor's end.
    rank = len(shape) if of_value is None else len(of_value)
    if len(long) > 1 or len(shape) > rank:
        raise unreadable_quantizer(node, f"its scales have shape {list(shape)}")
    return fitting_axis(node, long[0] + rank - len(shape), shape[long[0]])


def fitting_axis(node: ir.Node, axis: int, count: int) -> int:
    """Return a channel axis counted from 0, as far as the shape of the tensor is known.

    Raises:
        ModelError: The tensor has no such axis, or another number of channels along it.
    """
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    if shape is None:
        if axis < 0:
            raise unreadable_quantizer(node, f"axis {axis} of a tensor of unknown rank")
        return axis
    if not -len(shape) <= axis < len(shape):
        raise unreadable_quantizer(node, f"axis {axis} of a tensor of {len(shape)} dimension(s)")
    if shape[axis] != count and not shape.is_unknown_dim(axis):
        raise unreadable_quantizer(node, f"it has {count} scales along axis {axis} of {shape}")
    return axis % len(shape)


def _numbers(node: ir.Node, name: str, found: object) -> npt.NDArray[np.float64]:
    try:
        # In float64, where integers of 32 bits and float32 are exact.
        return np.asarray(found).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise unreadable_quantizer(node, f"its {name} is no number") from error
