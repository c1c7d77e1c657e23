"""Operators that compute each element on its own."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tengine.tmfile.layout import Element
from intact.formats.tengine.tmfile.operators import Eltwise
from intact.formats.tengine.tmfile.writing.common import (
    Write,
    activation,
    attribute,
    given,
    image_shape,
    refuse_integers,
    refuse_rescaling,
    scalar,
)
from intact.formats.tengine.tmfile.writing.shapes import Shape
from intact.formats.tengine.tmfile.writing.sheet import Sheet

_LARGEST = float(np.finfo(np.float32).max)
_WITHOUT_KERNEL: Mapping[str, tuple[Element, ...]] = {
    "Sigmoid": (),
    "Tanh": (Element.INT8,),
    "Mish": (Element.INT8,),
    "Softplus": (Element.INT8, Element.UINT8),
}
"""Functions that have the same name in Tengine, and the codes for which it has no kernel."""

_OF_ONE_IMAGE = ("Mish", "Softplus")
"""Kernels that take the lengths of one image, whatever the tensor has."""

_PAIRS = {
    "Add": Eltwise.SUM,
    "Mul": Eltwise.PROD,
    "Sub": Eltwise.SUB,
    "Div": Eltwise.DIV,
    "Max": Eltwise.MAX,
}
_COMMUTE = ("Add", "Mul", "Max")
_FULL_CODE = 127.5
"""From here on rounding leaves int8."""


def relu(sheet: Sheet, node: ir.Node) -> None:
    """Relu."""
    sheet.add(node, "ReLu", [activation(sheet, node)], {"negative_slope": 0.0})


def leaky_relu(sheet: Sheet, node: ir.Node) -> None:
    """LeakyRelu."""
    options = {"negative_slope": attribute(node, "alpha", 0.01)}
    sheet.add(node, "ReLu", [activation(sheet, node)], options)


def clip(sheet: Sheet, node: ir.Node) -> None:
    """Clip."""
    if "min" in node.attributes or "max" in node.attributes:
        low, high = attribute(node, "min", -_LARGEST), attribute(node, "max", _LARGEST)
    else:
        low, high = scalar(sheet, node, 1, -_LARGEST), scalar(sheet, node, 2, _LARGEST)
    if not low <= high:
        raise Unsupported(f"it clips to {low} .. {high}")
    _refuse_wrapping(sheet, node, low, high)
    sheet.add(node, "Clip", [activation(sheet, node)], {"min": low, "max": high})


def _refuse_wrapping(sheet: Sheet, node: ir.Node, low: float, high: float) -> None:
    """Refuse a Clip whose codes may leave int8: Tengine's kernel lets them wrap around."""
    _, before = sheet.form.activation(given(node, 0))
    _, after = sheet.form.activation(node.outputs[0])
    if before is None or after is None or sheet.form.element is not Element.INT8:
        return
    reach = 127 * float(before.scale[0])
    largest = max(min(reach, abs(low)), min(reach, abs(high)))
    if largest / float(after.scale[0]) >= _FULL_CODE:
        raise Unsupported("its output has a smaller range, at which Tengine's int8 wraps around")


def prelu(sheet: Sheet, node: ir.Node) -> None:
    """PRelu with a slope for each channel; Tengine's uint8 reads slopes in float16."""
    shape = sheet.shape(activation(sheet, node))
    refuse_integers(sheet, Element.UINT8)
    if len(shape) not in ((4,) if sheet.form.element is Element.INT8 else (2, 4)):
        raise Unsupported(f"its input has {len(shape)} dimensions, for which Tengine has no loop")
    stored = sheet.form.constant(node, 1)
    slopes = stored.array
    per_channel = slopes.shape == (shape[1], *(1,) * (len(shape) - 2)) if len(shape) > 1 else False
    if not per_channel and slopes.size != 1:
        raise Unsupported(f"its slopes have the shape {list(slopes.shape)}")
    if slopes.size == 1 and sheet.form.element is Element.INT8 and shape[1] > 1:
        raise Unsupported("Tengine's int8 has a slope for each channel, not one")
    flat = type(stored)(slopes.reshape(-1), stored.element, stored.quantization)
    sheet.add(node, "PReLU", [given(node, 0), sheet.constant(given(node, 1), flat)])


def function(sheet: Sheet, node: ir.Node) -> None:
    """An operator that has no options."""
    value = activation(sheet, node)
    refuse_integers(sheet, *_WITHOUT_KERNEL[node.op_type])
    if node.op_type in _OF_ONE_IMAGE:
        shape = image_shape(sheet, node)
        if shape[0] != 1:
            raise Unsupported(f"Tengine computes it for one image, not for {shape[0]}")
    sheet.add(node, node.op_type, [value])


def identity(sheet: Sheet, node: ir.Node) -> None:
    """Identity."""
    refuse_rescaling(sheet, node)
    sheet.add(node, "Dropout", [activation(sheet, node)])


def elu(sheet: Sheet, node: ir.Node) -> None:
    """Elu."""
    refuse_integers(sheet, Element.INT8)
    sheet.add(node, "Elu", [activation(sheet, node)], {"alpha": attribute(node, "alpha", 1.0)})


def hard_sigmoid(sheet: Sheet, node: ir.Node) -> None:
    """HardSigmoid."""
    refuse_integers(sheet, Element.INT8)
    options = {"alpha": attribute(node, "alpha", 0.2), "beta": attribute(node, "beta", 0.5)}
    sheet.add(node, "HardSigmoid", [activation(sheet, node)], options)


def hard_swish(sheet: Sheet, node: ir.Node) -> None:
    """HardSwish."""
    refuse_integers(sheet, Element.INT8)
    options = {"alpha": 1 / 6, "beta": 0.5}
    sheet.add(node, "HardSwish", [activation(sheet, node)], options)


def softmax(sheet: Sheet, node: ir.Node) -> None:
    """Softmax along one axis; before opset 13 it is taken over all axes from one on."""
    rank = len(sheet.shape(activation(sheet, node)))
    axis = attribute(node, "axis", -1 if sheet.graph.opset >= 13 else 1) % rank
    if sheet.graph.opset < 13 and axis != rank - 1:
        raise Unsupported("it is taken over several axes, as before opset 13")
    sheet.add(node, "Softmax", [given(node, 0)], {"axis": axis})


def eltwise(sheet: Sheet, node: ir.Node) -> None:
    """Add, Mul, Sub, Div and Max of two inputs."""
    if len(node.inputs) != 2:
        raise Unsupported(f"it has {len(node.inputs)} inputs; Tengine's has 2")
    shapes = [sheet.shape(value) for value in node.inputs]
    is_constant = [sheet.graph.constant(value) is not None for value in node.inputs]
    first, second = 0, 1
    smaller = is_constant[0] or math.prod(shapes[0]) < math.prod(shapes[1])
    if smaller and node.op_type in _COMMUTE and not is_constant[1]:
        first, second = 1, 0
    if is_constant[first]:
        raise Unsupported(f"its input {node.inputs[first].name!r} is a constant")  # type: ignore[union-attr]
    if len(shapes[first]) not in (3, 4):
        raise Unsupported(f"it joins tensors of {len(shapes[first])} dimensions; Tengine's 3, 4")
    _refuse_spread(sheet, node, shapes[second], shapes[first])
    inputs: list[ir.Value | int] = [given(node, first), given(node, second)]
    if is_constant[second]:
        stored = sheet.form.constant(node, second)
        inputs[1] = sheet.constant(given(node, second), stored)
    options = {
        "type": _PAIRS[node.op_type],
        "caffe_flavor": 0,
        "shift": 0.0,
        "power": 0.0,
        "scale": 0.0,
    }
    sheet.add(node, "Eltwise", inputs, options)


def _refuse_spread(sheet: Sheet, node: ir.Node, shape: Shape, over: Shape) -> None:
    """Refuse shapes that Tengine's kernels join in another way than ONNX, or not at all."""
    if shape == over:
        return
    if node.op_type == "Max":
        raise Unsupported(f"it joins {list(over)} and {list(shape)}, which Tengine does not")
    if math.prod(shape) == 1:
        return
    if node.op_type == "Div":
        refuse_integers(sheet, Element.INT8, Element.UINT8)
    channels = (1, over[1], *(1,) * (len(over) - 2))
    spread = (*(1,) * (len(over) - len(shape)), *shape)
    if spread != channels or over[0] != 1:
        raise Unsupported(f"it joins {list(over)} and {list(shape)}")


TABLE: Mapping[str, Write] = {
    "Relu": relu,
    "LeakyRelu": leaky_relu,
    "Clip": clip,
    "PRelu": prelu,
    "Elu": elu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "Softmax": softmax,
    "Identity": identity,
    **dict.fromkeys(_WITHOUT_KERNEL, function),
    **dict.fromkeys(_PAIRS, eltwise),
}
"""Write functions by operator of ONNX."""
