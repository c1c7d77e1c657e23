"""Operators that compute each element on its own."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.file import FileNode
from intact.formats.tengine.tmfile.operators import Activation, Eltwise
from intact.formats.tengine.tmfile.readers.builder import Draft, Read, Shape, slot

_FUNCTIONS = {
    "Sigmoid": "Sigmoid",
    "Logistic": "Sigmoid",
    "Tanh": "Tanh",
    "Mish": "Mish",
    "Softplus": "Softplus",
    "HardSwish": "HardSwish",
    "Dropout": "Identity",
    "Noop": "Identity",
}
"""Operators without options that Tengine computes as ONNX does.

HardSwish has options, which Tengine's kernels leave aside.
"""

_PAIRS = {
    Eltwise.PROD: "Mul",
    Eltwise.SUM: "Add",
    Eltwise.SUB: "Sub",
    Eltwise.MAX: "Max",
    Eltwise.DIV: "Div",
}
_COMMUTE = (Eltwise.PROD, Eltwise.SUM, Eltwise.MAX)
_SINGLE = {Eltwise.EXP: "Exp", Eltwise.SQRT: "Sqrt"}


def activated(draft: Draft, node: FileNode, value: ir.Value, activation: int) -> None:
    """Add what a node applies to its result."""
    shape, output = draft.shapes[value], node.outputs[0]
    if activation == Activation.RELU:
        draft.add(node, "Relu", [value], shape, part="relu", output=output)
    elif activation == Activation.RELU6:
        inputs = [value, draft.number(0), draft.number(6)]
        draft.add(node, "Clip", inputs, shape, part="clip", output=output)
    else:
        raise Unsupported(f"its activation is {activation}")


def relu(draft: Draft, node: FileNode) -> None:
    """ReLu, perhaps with a slope for negative numbers."""
    slope = node.options["negative_slope"]
    value = draft.activation(slot(node, 0))
    attributes = {"alpha": slope} if slope else None
    kind = "LeakyRelu" if slope else "Relu"
    draft.add(node, kind, [value], draft.shapes[value], attributes, output=node.outputs[0])


def relu6(draft: Draft, node: FileNode) -> None:
    """ReLu6."""
    _clip(draft, node, 0, 6)


def clip(draft: Draft, node: FileNode) -> None:
    """Clip."""
    _clip(draft, node, node.options["min"], node.options["max"])


def _clip(draft: Draft, node: FileNode, low: float, high: float) -> None:
    if not low <= high:
        raise Unsupported(f"it clips to {low} .. {high}")
    value = draft.activation(slot(node, 0))
    inputs = [value, draft.number(low), draft.number(high)]
    draft.add(node, "Clip", inputs, draft.shapes[value], output=node.outputs[0])


def prelu(draft: Draft, node: FileNode) -> None:
    """PReLU: a slope for each channel, or one."""
    value = draft.activation(slot(node, 0))
    shape = draft.shapes[value]
    count = draft.numbers(slot(node, 1)).size
    if len(shape) < 2 or count not in (1, shape[1]):
        raise Unsupported(f"{count} slopes for {list(shape)}")
    slopes = draft.constant(slot(node, 1), (count, *(1,) * (len(shape) - 2)))
    draft.add(node, "PRelu", [value, slopes], shape, output=node.outputs[0])


def function(draft: Draft, node: FileNode) -> None:
    """An operator that ONNX has, too."""
    value = draft.activation(slot(node, 0))
    kind = _FUNCTIONS[node.operator]
    draft.add(node, kind, [value], draft.shapes[value], output=node.outputs[0])


def elu(draft: Draft, node: FileNode) -> None:
    """Elu."""
    value = draft.activation(slot(node, 0))
    attributes = {"alpha": node.options["alpha"]}
    draft.add(node, "Elu", [value], draft.shapes[value], attributes, output=node.outputs[0])


def hard_sigmoid(draft: Draft, node: FileNode) -> None:
    """HardSigmoid."""
    value = draft.activation(slot(node, 0))
    attributes = {"alpha": node.options["alpha"], "beta": node.options["beta"]}
    shape = draft.shapes[value]
    draft.add(node, "HardSigmoid", [value], shape, attributes, output=node.outputs[0])


def softmax(draft: Draft, node: FileNode) -> None:
    """Softmax."""
    value = draft.activation(slot(node, 0))
    shape = draft.shapes[value]
    axis = node.options["axis"]
    if not -len(shape) <= axis < len(shape):
        raise Unsupported(f"it has no axis {axis} of {len(shape)}")
    axis %= len(shape)
    draft.mixes(axis == 0)
    draft.add(node, "Softmax", [value], shape, {"axis": axis}, output=node.outputs[0])


def eltwise(draft: Draft, node: FileNode) -> None:
    """Eltwise of one or two inputs."""
    kind = node.options["type"]
    if kind in _SINGLE and len(node.inputs) == 1:
        value = draft.activation(slot(node, 0))
        shape = draft.shapes[value]
        draft.add(node, _SINGLE[Eltwise(kind)], [value], shape, output=node.outputs[0])
        return
    if kind not in _PAIRS or len(node.inputs) != 2:
        raise Unsupported(f"it is of type {kind} with {len(node.inputs)} inputs")
    first, second = node.inputs
    if draft.is_constant(first) and kind in _COMMUTE:
        first, second = second, first
    _pair(draft, node, _PAIRS[Eltwise(kind)], first, second, swaps=kind in _COMMUTE)


def extreme(draft: Draft, node: FileNode) -> None:
    """Maximum and Minimum of two inputs of one shape."""
    kind = "Max" if node.operator == "Maximum" else "Min"
    shapes = {draft.shape(index) for index in node.inputs}
    if len(node.inputs) != 2 or len(shapes) != 1:
        raise Unsupported(f"it takes {len(node.inputs)} inputs of shapes {sorted(shapes)[:4]}")
    _pair(draft, node, kind, *node.inputs, swaps=True)


def _pair(
    draft: Draft, node: FileNode, op_type: str, first: int, second: int, *, swaps: bool
) -> None:
    """Add an operator of two inputs, the smaller of which is spread as Tengine's kernels do."""
    left = draft.activation(first)
    shape = draft.shapes[left]
    if draft.is_constant(second):
        right = draft.constant(second, _spread(draft.tensor(second).shape, shape))
    else:
        right = draft.activation(second)
        other = draft.shapes[right]
        if swaps and math.prod(other) > math.prod(shape):
            left, right, shape, other = right, left, other, shape
        if _spread(other, shape) != other:
            raise Unsupported(f"it joins {list(shape)} and {list(other)}")
    draft.add(node, op_type, [left, right], shape, output=node.outputs[0])


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


TABLE: Mapping[str, Read] = {
    "ReLu": relu,
    "ReLu6": relu6,
    "Clip": clip,
    "PReLU": prelu,
    "Elu": elu,
    "HardSigmoid": hard_sigmoid,
    "Softmax": softmax,
    "Eltwise": eltwise,
    "Maximum": extreme,
    "Minimum": extreme,
    **dict.fromkeys(_FUNCTIONS, function),
}
"""Read functions by operator."""
