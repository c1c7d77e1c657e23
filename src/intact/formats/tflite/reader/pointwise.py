"""Reads TFLite's element-wise operators, its softmax and normalizations, its reductions."""

from __future__ import annotations

import math

import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.base.foreign import axis_in, refuse_mixed_batch, slot
from intact.formats.tflite.reader.builder import DATA_TYPES, ModelBuilder
from intact.formats.tflite.reader.common import (
    READERS,
    add_activation,
    finish,
    require_broadcast,
    require_same_scale,
    require_shape,
)
from intact.formats.tflite.reader.file import Operator
from intact.formats.tflite.reader.schema import Element, Fused
from intact.formats.tflite.reader.tensors import (
    ChannelLayout,
    Input,
    Operand,
    arranged,
    channels_first,
)
from intact.formats.tflite.spellings import (
    APPROXIMATION,
    FUNCTIONS,
    NODES,
    PAIRS,
    POSITIONS,
    REDUCTIONS,
    rows_by_code,
)

_FUNCTIONS, _NODES, _PAIRS = rows_by_code(FUNCTIONS), rows_by_code(NODES), rows_by_code(PAIRS)
_POSITIONS, _REDUCTIONS = rows_by_code(POSITIONS), rows_by_code(REDUCTIONS)
_LARGEST_OPTION = 1e30


def _operands(builder: ModelBuilder, op: Operator) -> tuple[ChannelLayout, list[Operand]]:
    """Return two operands that broadcast to the output, in one layout."""
    indices = [slot(op.inputs, 0), slot(op.inputs, 1)]
    require_broadcast(builder, op, *(builder.tensor(index).shape for index in indices))
    rank = builder.tensor(op.outputs[0]).rank
    computed = [index for index in indices if not builder.is_constant(index)]
    if not computed:
        raise Unsupported("all its inputs are constants")
    # An operand of fewer axes would meet the open batch with an axis that is none.
    same = all(builder.tensor(index).rank == rank for index in computed)
    refuse_mixed_batch(builder, not same)
    layout = builder.layout_of(*computed) if same else ChannelLayout.FILE
    return layout, [
        builder.operand(index, layout)
        if index in computed
        else builder.constant(index, layout, rank)
        for index in indices
    ]


@READERS.register(*_PAIRS)
def binary(builder: ModelBuilder, op: Operator) -> None:
    """Read operators on two operands; the kernels of MAXIMUM and MINIMUM compare codes."""
    if op.name in {"MAXIMUM", "MINIMUM"}:
        for index in op.inputs:
            require_same_scale(builder, index, op.outputs[0])
    if op.options.get("pot_scale_int16"):
        _needs_other_scales(builder, op)
    layout, operands = _operands(builder, op)
    finish(builder, op, builder.node(_PAIRS[op.name].onnx, operands), layout)


def _needs_other_scales(builder: ModelBuilder, op: Operator) -> None:
    """Check that int16 operands do not all have powers of two as scales, which kernels shift."""
    found = [builder.parameters(index) for index in (*op.inputs, *op.outputs)]
    wide = [float(each.scale) for each in found if each and each.bits > 8 and each.axis is None]
    # A mantissa of exactly 1/2 is a power of two.
    if wide and all(math.frexp(scale)[0] == 0.5 for scale in wide):
        raise Unsupported("it shifts int16 codes, as all scales are powers of two")


@READERS.register("EQUAL", "NOT_EQUAL", "GREATER", "LESS")
def comparison(builder: ModelBuilder, op: Operator) -> None:
    """Read comparisons, of codes only where they are of one scale: the kernels round other ones."""
    first, second = (builder.parameters(slot(op.inputs, number)) for number in (0, 1))
    if (first is None) != (second is None) or (first is not None and not first.equals(second)):
        raise Unsupported("it compares integers of different scales")
    if builder.tensor(op.outputs[0]).element is not Element.BOOL:
        raise Unsupported("its output is not bool")
    layout, operands = _operands(builder, op)
    # ONNX has no operator for it.
    code = "EQUAL" if op.name == "NOT_EQUAL" else op.name
    value = builder.node(_NODES[code].onnx, operands)
    value.type = ir.TensorType(ir.DataType.BOOL)
    if op.name == "NOT_EQUAL":
        value = builder.node("Not", [value])
    builder.write(op.outputs[0], value, layout)


_PLAIN = {Element.FLOAT32, Element.INT32, Element.INT64, Element.BOOL}


@READERS.register("CAST")
def cast(builder: ModelBuilder, op: Operator) -> None:
    """Read CAST between floats, indices and truth values."""
    layout, source = _source(builder, op)
    given, wanted = (builder.tensor(index).element for index in (slot(op.inputs, 0), op.outputs[0]))
    if not {given, wanted} <= _PLAIN:
        raise Unsupported(f"it makes {wanted.name.lower()} of {given.name.lower()}")
    kind = DATA_TYPES[wanted]
    value = builder.node("Cast", [source], {"to": int(kind)})
    value.type = ir.TensorType(kind)
    builder.write(op.outputs[0], value, layout)


@READERS.register("SQUARED_DIFFERENCE")
def squared_difference(builder: ModelBuilder, op: Operator) -> None:
    """Read SQUARED_DIFFERENCE: Sub, then Mul of that with itself."""
    layout, operands = _operands(builder, op)
    difference = builder.node("Sub", operands)
    builder.write(op.outputs[0], builder.node("Mul", [difference, difference]), layout)


def _source(builder: ModelBuilder, op: Operator) -> tuple[ChannelLayout, Operand]:
    """Return the one operand in the layout that it has, whose shape is the output's."""
    index = slot(op.inputs, 0)
    require_shape(builder, op.outputs[0], builder.tensor(index).shape)
    layout = builder.layout_of(index)
    return layout, builder.operand(index, layout)


@READERS.register(*_FUNCTIONS)
def unary(builder: ModelBuilder, op: Operator) -> None:
    """Read functions of one operand."""
    spelling = _FUNCTIONS[op.name]
    attributes: dict[str, float | str] = {}
    for theirs, ours in spelling.options.items():
        value, default = op.options[theirs], spelling.ours.defaults[ours]
        if isinstance(default, str):
            attributes[ours] = APPROXIMATION if value else default
        # Infinite or huge options overflow in float32, and calibration with them.
        elif abs(value) < _LARGEST_OPTION:
            attributes[ours] = float(value)
        else:
            raise Unsupported(f"its {theirs} is {value}")
    builder.opset = max(builder.opset, spelling.ours.since)
    layout, source = _source(builder, op)
    result = builder.node(spelling.onnx, [source], attributes or None)
    builder.write(op.outputs[0], result, layout)


@READERS.register("RELU", "RELU6", "RELU_N1_TO_1")
def clamp(builder: ModelBuilder, op: Operator) -> None:
    """Read RELU, RELU6 and RELU_N1_TO_1 as operators of their own."""
    layout, source = _source(builder, op)
    builder.write(op.outputs[0], add_activation(builder, source, Fused[op.name]), layout)


@READERS.register("RELU_0_TO_1")
def relu_0_to_1(builder: ModelBuilder, op: Operator) -> None:
    """Read RELU_0_TO_1."""
    layout, source = _source(builder, op)
    value = builder.node("Clip", [source, builder.number(0), builder.number(1)])
    builder.write(op.outputs[0], value, layout)


@READERS.register("PRELU")
def prelu(builder: ModelBuilder, op: Operator) -> None:
    """Read PRELU with a stored slope."""
    layout, source = _source(builder, op)
    index = slot(op.inputs, 1)
    if not builder.is_constant(index):
        raise Unsupported("its slope is computed")
    require_broadcast(
        builder, op, builder.tensor(slot(op.inputs, 0)).shape, builder.tensor(index).shape
    )
    parameters = builder.parameters(index)
    if parameters is not None and parameters.bits > 8:
        raise Unsupported("its slopes are int16, which the kernel reads as int8")
    slope = builder.constant(index, layout, len(source.shape))
    builder.write(op.outputs[0], builder.node("PRelu", [source, slope]), layout)


@READERS.register("RSQRT")
def rsqrt(builder: ModelBuilder, op: Operator) -> None:
    """Read RSQRT: Sqrt, then Reciprocal."""
    layout, source = _source(builder, op)
    value = builder.node("Reciprocal", [builder.node("Sqrt", [source])])
    builder.write(op.outputs[0], value, layout)


@READERS.register("SQUARE")
def square(builder: ModelBuilder, op: Operator) -> None:
    """Read SQUARE: Mul with itself."""
    layout, source = _source(builder, op)
    builder.write(op.outputs[0], builder.node("Mul", [source, source]), layout)


_ALONG_CHANNELS = {
    "SOFTMAX": "Softmax",
    "LOG_SOFTMAX": "LogSoftmax",
    "L2_NORMALIZATION": "LpNormalization",
}


@READERS.register(*_ALONG_CHANNELS)
def along_channels(builder: ModelBuilder, op: Operator) -> None:
    """Read operators along the last axis of the file."""
    if op.options.get("beta", 1.0) != 1.0:
        raise Unsupported(f"its beta is {op.options['beta']:g}")
    rank = builder.tensor(slot(op.inputs, 0)).rank
    # Asked for its refusal only: a tensor without axes has no last one.
    axis_in(-1, rank)
    refuse_mixed_batch(builder, rank == 1)
    layout, source = _source(builder, op)
    attributes = {"axis": 1 if layout is ChannelLayout.FIRST else rank - 1}
    if op.name == "L2_NORMALIZATION":
        attributes["p"] = 2
    finish(builder, op, builder.node(_ALONG_CHANNELS[op.name], [source], attributes), layout)


@READERS.register(*_REDUCTIONS)
def reduction(builder: ModelBuilder, op: Operator) -> None:
    """Read MEAN, SUM, REDUCE_MAX and REDUCE_MIN."""
    index, keep = slot(op.inputs, 0), bool(op.options["keep_dims"])
    shape = builder.tensor(index).shape
    rank = len(shape)
    axes = sorted({axis_in(axis, rank) for axis in builder.list_of(slot(op.inputs, 1))})
    if not axes:
        raise Unsupported("it reduces no axis")
    refuse_mixed_batch(builder, 0 in axes)
    if op.name in {"REDUCE_MAX", "REDUCE_MIN"}:
        require_same_scale(builder, index, op.outputs[0])
    kept = [axis for axis in range(rank) if axis not in axes]
    result = [1 if axis in axes else n for axis, n in enumerate(shape)]
    require_shape(builder, op.outputs[0], result if keep else [shape[axis] for axis in kept])
    layout = builder.layout_of(index)
    order = channels_first(rank)
    output = layout
    if layout is ChannelLayout.FIRST and not keep:
        # What is left has to be in the order of one of the layouts, or the file's is reduced.
        left = [axis for axis in order if axis not in axes]
        if left == kept:
            output = ChannelLayout.FILE
        elif left != list(arranged(kept, ChannelLayout.FIRST)):
            layout = output = ChannelLayout.FILE
    places = sorted(order.index(axis) for axis in axes) if layout is ChannelLayout.FIRST else axes
    inputs: list[Input] = [builder.operand(index, layout), builder.integers(*places)]
    value = builder.node(_REDUCTIONS[op.name].onnx, inputs, {"keepdims": int(keep)})
    builder.write(op.outputs[0], value, output)


@READERS.register(*_POSITIONS)
def position(builder: ModelBuilder, op: Operator) -> None:
    """Read ARG_MAX and ARG_MIN: the position of the first of equal elements."""
    index, output = slot(op.inputs, 0), builder.tensor(op.outputs[0])
    shape = builder.tensor(index).shape
    axes = builder.list_of(slot(op.inputs, 1))
    if len(axes) != 1:
        raise Unsupported(f"its axes are {list(axes)}")
    axis = axis_in(axes[0], len(shape))
    refuse_mixed_batch(builder, axis == 0)
    require_shape(builder, op.outputs[0], shape[:axis] + shape[axis + 1 :])
    kind = DATA_TYPES[output.element]
    attributes = {"axis": axis, "keepdims": 0}
    value = builder.node(_POSITIONS[op.name].onnx, [builder.operand(index)], attributes)
    value.type = ir.TensorType(ir.DataType.INT64)
    if kind is not ir.DataType.INT64:
        value = builder.node("Cast", [value], {"to": int(kind)})
        value.type = ir.TensorType(kind)
    builder.write(op.outputs[0], value)
