"""Operators that compute each element on its own."""

from __future__ import annotations

import math

import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.file import FileNode
from intact.formats.tengine.tmfile.operators import Activation, Eltwise
from intact.formats.tengine.tmfile.readers.builder import READERS, OnnxBuilder, Shape, slot
from intact.formats.tengine.tmfile.spellings import READ

_PAIRS = {
    Eltwise.PROD: "Mul",
    Eltwise.SUM: "Add",
    Eltwise.SUB: "Sub",
    Eltwise.MAX: "Max",
    Eltwise.DIV: "Div",
}
_COMMUTE = (Eltwise.PROD, Eltwise.SUM, Eltwise.MAX)
_SINGLE = {Eltwise.EXP: "Exp", Eltwise.SQRT: "Sqrt"}


def activated(builder: OnnxBuilder, node: FileNode, value: ir.Value, activation: int) -> None:
    """Add what a node applies to its result."""
    shape, output = builder.shapes[value], node.outputs[0]
    if activation == Activation.RELU:
        builder.compute(node, "Relu", [value], shape, part="relu", output=output)
    elif activation == Activation.RELU6:
        inputs = [value, builder.number(0), builder.number(6)]
        builder.compute(node, "Clip", inputs, shape, part="clip", output=output)
    else:
        raise Unsupported(f"its activation is {activation}")


@READERS.register("ReLu")
def _relu(builder: OnnxBuilder, node: FileNode) -> None:
    """ReLu, perhaps with a slope for negative numbers."""
    slope = node.options["negative_slope"]
    value = builder.activation(slot(node, 0))
    attributes = {"alpha": slope} if slope else None
    kind = "LeakyRelu" if slope else "Relu"
    builder.compute(node, kind, [value], builder.shapes[value], attributes, output=node.outputs[0])


@READERS.register("ReLu6")
def _relu6(builder: OnnxBuilder, node: FileNode) -> None:
    """ReLu6."""
    _clipped(builder, node, 0, 6)


@READERS.register("Clip")
def _clip(builder: OnnxBuilder, node: FileNode) -> None:
    """Clip."""
    _clipped(builder, node, node.options["min"], node.options["max"])


def _clipped(builder: OnnxBuilder, node: FileNode, low: float, high: float) -> None:
    if not low <= high:
        raise Unsupported(f"it clips to {low} .. {high}")
    value = builder.activation(slot(node, 0))
    inputs = [value, builder.number(low), builder.number(high)]
    builder.compute(node, "Clip", inputs, builder.shapes[value], output=node.outputs[0])


@READERS.register("PReLU")
def _prelu(builder: OnnxBuilder, node: FileNode) -> None:
    """PReLU: a slope for each channel, or one."""
    value = builder.activation(slot(node, 0))
    shape = builder.shapes[value]
    count = builder.numbers(slot(node, 1)).size
    if len(shape) < 2 or count not in (1, shape[1]):
        raise Unsupported(f"{count} slopes for {list(shape)}")
    slopes = builder.stored(slot(node, 1), (count, *(1,) * (len(shape) - 2)))
    builder.compute(node, "PRelu", [value, slopes], shape, output=node.outputs[0])


@READERS.register("Dropout", "Noop")
def _identity(builder: OnnxBuilder, node: FileNode) -> None:
    """Operators that do nothing."""
    value = builder.activation(slot(node, 0))
    builder.compute(node, "Identity", [value], builder.shapes[value], output=node.outputs[0])


@READERS.register(*READ)
def _function(builder: OnnxBuilder, node: FileNode) -> None:
    """A function of one tensor."""
    spelling = READ[node.operator]
    value = builder.activation(slot(node, 0))
    attributes = {ours: node.options[theirs] for theirs, ours in spelling.options.items()}
    shape, output = builder.shapes[value], node.outputs[0]
    kind = spelling.function.name
    builder.compute(node, kind, [value], shape, attributes or None, output=output)


@READERS.register("Softmax")
def _softmax(builder: OnnxBuilder, node: FileNode) -> None:
    """Softmax."""
    value = builder.activation(slot(node, 0))
    shape = builder.shapes[value]
    axis = node.options["axis"]
    if not -len(shape) <= axis < len(shape):
        raise Unsupported(f"it has no axis {axis} of {len(shape)}")
    axis %= len(shape)
    builder.mixes(axis == 0)
    builder.compute(node, "Softmax", [value], shape, {"axis": axis}, output=node.outputs[0])


@READERS.register("Eltwise")
def _eltwise(builder: OnnxBuilder, node: FileNode) -> None:
    """Eltwise of one or two inputs."""
    kind = node.options["type"]
    if kind in _SINGLE and len(node.inputs) == 1:
        value = builder.activation(slot(node, 0))
        shape = builder.shapes[value]
        builder.compute(node, _SINGLE[Eltwise(kind)], [value], shape, output=node.outputs[0])
        return
    if kind not in _PAIRS or len(node.inputs) != 2:
        raise Unsupported(f"it is of type {kind} with {len(node.inputs)} inputs")
    first, second = node.inputs
    if builder.is_constant(first) and kind in _COMMUTE:
        first, second = second, first
    _pair(builder, node, _PAIRS[Eltwise(kind)], first, second, swaps=kind in _COMMUTE)


@READERS.register("Maximum", "Minimum")
def _extreme(builder: OnnxBuilder, node: FileNode) -> None:
    """Maximum and Minimum of two inputs of one shape."""
    kind = "Max" if node.operator == "Maximum" else "Min"
    shapes = {builder.shape(index) for index in node.inputs}
    if len(node.inputs) != 2 or len(shapes) != 1:
        raise Unsupported(f"it takes {len(node.inputs)} inputs of shapes {sorted(shapes)[:4]}")
    _pair(builder, node, kind, *node.inputs, swaps=True)


def _pair(
    builder: OnnxBuilder, node: FileNode, op_type: str, first: int, second: int, *, swaps: bool
) -> None:
    """Add an operator of two inputs, the smaller of which is spread as Tengine's kernels do."""
    left = builder.activation(first)
    shape = builder.shapes[left]
    if builder.is_constant(second):
        right = builder.stored(second, _spread(builder.tensor(second).shape, shape))
    else:
        right = builder.activation(second)
        other = builder.shapes[right]
        if swaps and math.prod(other) > math.prod(shape):
            left, right, shape, other = right, left, other, shape
        if _spread(other, shape) != other:
            raise Unsupported(f"it joins {list(shape)} and {list(other)}")
    builder.compute(node, op_type, [left, right], shape, output=node.outputs[0])


def _spread(shape: Shape, over: Shape) -> Shape:
    """Return a shape with which numbers are spread over a larger tensor.

    One number goes everywhere, as many as there are channels go to those, as many as an image has
    pixels to these.

    Raises:
        Unsupported: The lengths do not fit so.
    """
    size = math.prod(shape)
    if size == math.prod(over):
        if shape != over:
            raise Unsupported(f"it joins {list(over)} and {list(shape)}")
        return shape
    if len(over) in (3, 4) and over[0] == 1:
        ones = (1,) * (len(over) - 2)
        if size == over[1]:
            return (1, over[1], *ones)
    if size == 1:
        return (1,) * len(over)
    if len(over) == 4 and shape[-2:] == over[2:] and size == math.prod(over[2:]):
        return (1, 1, *over[2:])
    raise Unsupported(f"it joins {list(over)} and {list(shape)}")
