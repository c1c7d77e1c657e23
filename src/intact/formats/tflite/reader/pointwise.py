"""Reads TFLite's element-wise operators, its softmax and normalizations, its reductions."""

from __future__ import annotations

import math

import onnx
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.base.foreign import axis_in, refuse_mixed_batch, slot
from intact.formats.tflite.reader.builder import DATA_TYPES, ModelBuilder
from intact.formats.tflite.reader.common import (
    READERS,
    add_activation,
    cast,
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
    CAST,
    COMPARISONS,
    ELEMENTWISE,
    FUNCTIONS,
    PAIRS,
    PRODUCT,
    REDUCTIONS,
    rows_by_code,
)
from intact.ops import functions
from intact.ops.operators import (
    Add,
    Clip,
    Less,
    LogSoftmax,
    LpNormalization,
    Mod,
    Mul,
    Not,
    PRelu,
    Softmax,
    Sub,
    Where,
)

_FUNCTIONS, _PAIRS = rows_by_code(FUNCTIONS), rows_by_code(PAIRS)
_COMPARISONS, _ELEMENTWISE = rows_by_code(COMPARISONS), rows_by_code(ELEMENTWISE)
_REDUCTIONS = {each.code: each.onnx for each in (*REDUCTIONS, PRODUCT)}
_LARGEST_OPTION = 1e30


def _operands(
    builder: ModelBuilder, op: Operator, count: int = 2
) -> tuple[ChannelLayout, list[Operand]]:
    """Return operands that broadcast to the output, in one layout."""
    indices = [slot(op.inputs, number) for number in range(count)]
    require_broadcast(builder, op, *(builder.tensor(index).shape for index in indices))
    rank = builder.tensor(op.outputs[0]).rank
    computed = [index for index in indices if not builder.is_constant(index)]
    if not computed:
        if any(builder.parameters(index) for index in indices):
            raise Unsupported("all its inputs are constants of codes")
        # Whether there is a first turn, of a loop that counts from a constant.
        refuse_mixed_batch(builder, True)
        return ChannelLayout.FILE, [builder.constant(index) for index in indices]
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


@READERS.register(*_COMPARISONS, "NOT_EQUAL")
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
    value = builder.node(_COMPARISONS[code].onnx, operands)
    value.type = ir.TensorType(ir.DataType.BOOL)
    if op.name == "NOT_EQUAL":
        value = builder.node(Not, [value])
    builder.write(op.outputs[0], value, layout)


_PLAIN = {Element.FLOAT32, Element.INT32, Element.INT64, Element.BOOL}


@READERS.register(CAST.code)
def read_cast(builder: ModelBuilder, op: Operator) -> None:
    """Read CAST between floats, indices and truth values."""
    layout, source = _source(builder, op)
    given, wanted = (builder.tensor(index).element for index in (slot(op.inputs, 0), op.outputs[0]))
    if not {given, wanted} <= _PLAIN:
        raise Unsupported(f"it makes {wanted.name.lower()} of {given.name.lower()}")
    builder.write(op.outputs[0], cast(builder, source, DATA_TYPES[wanted]), layout)


@READERS.register(*_ELEMENTWISE)
def elementwise(builder: ModelBuilder, op: Operator) -> None:
    """Read what ONNX has an operator with the same operands for; of codes what only moves them."""
    row = _ELEMENTWISE[op.name]
    if not row.integer:
        _refuse_codes(builder, op)
    schema = onnx.defs.get_schema(row.onnx)
    _require_types(builder, op, schema)
    if schema.min_input == 1:
        layout, source = _source(builder, op)
        operands = [source]
    else:
        layout, operands = _operands(builder, op, schema.min_input)
    kind = _type_of(builder, op.outputs[0])
    is_remainder = row.onnx == Mod.name and kind is ir.DataType.FLOAT
    value = _remainder(builder, *operands) if is_remainder else builder.node(row.onnx, operands)
    value.type = ir.TensorType(kind)
    builder.write(op.outputs[0], value, layout)


def _require_types(builder: ModelBuilder, op: Operator, schema: onnx.defs.OpSchema) -> None:
    """Check operands against ONNX's declaration; those of the result's type share its scale."""
    (result,), output = schema.outputs, op.outputs[0]
    fits = _name_of(builder, output) in result.types
    for number, declared in enumerate(schema.inputs):
        index = slot(op.inputs, number)
        fits &= _name_of(builder, index) in declared.types
        if declared.type_str == result.type_str:
            fits &= builder.tensor(index).element is builder.tensor(output).element
            require_same_scale(builder, index, output)
    if not fits:
        takes = ", ".join(builder.tensor(index).element.name.lower() for index in op.inputs)
        gives = builder.tensor(output).element.name.lower()
        raise Unsupported(f"it takes {takes} and gives {gives}")


def _type_of(builder: ModelBuilder, index: int) -> ir.DataType:
    return DATA_TYPES.get(builder.tensor(index).element, ir.DataType.FLOAT)


def _name_of(builder: ModelBuilder, index: int) -> str:
    """Return what ONNX's declarations call the type of a tensor."""
    return f"tensor({_type_of(builder, index).name.lower()})"


def _refuse_codes(builder: ModelBuilder, op: Operator) -> None:
    """Refuse an operator that is read of floats and whole numbers only."""
    if any(builder.parameters(index) for index in (*op.inputs, *op.outputs)):
        raise Unsupported("it computes with codes, which is not read")


def _remainder(builder: ModelBuilder, data: Operand, divisor: Operand) -> ir.Value:
    """Return a remainder with the divisor's sign; ONNX's Mod of floats has the dividend's."""
    rest = builder.node(Mod, [data, divisor], {"fmod": 1})
    signs = [builder.node(functions.sign, [each]) for each in (rest, divisor)]
    is_other = builder.node(Less, [builder.node(Mul, signs), builder.number(0)])
    is_other.type = ir.TensorType(ir.DataType.BOOL)
    return builder.node(Where, [is_other, builder.node(Add, [rest, divisor]), rest])


@READERS.register("SQUARED_DIFFERENCE")
def squared_difference(builder: ModelBuilder, op: Operator) -> None:
    """Read SQUARED_DIFFERENCE: Sub, then Mul of that with itself."""
    layout, operands = _operands(builder, op)
    difference = builder.node(Sub, operands)
    builder.write(op.outputs[0], builder.node(Mul, [difference, difference]), layout)


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
    value = builder.node(Clip, [source, builder.number(0), builder.number(1)])
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
    builder.write(op.outputs[0], builder.node(PRelu, [source, slope]), layout)


@READERS.register("RSQRT")
def rsqrt(builder: ModelBuilder, op: Operator) -> None:
    """Read RSQRT: Sqrt, then Reciprocal."""
    layout, source = _source(builder, op)
    value = builder.node(functions.reciprocal, [builder.node(functions.sqrt, [source])])
    builder.write(op.outputs[0], value, layout)


@READERS.register("SQUARE")
def square(builder: ModelBuilder, op: Operator) -> None:
    """Read SQUARE: Mul with itself."""
    layout, source = _source(builder, op)
    builder.write(op.outputs[0], builder.node(Mul, [source, source]), layout)


_ALONG_CHANNELS = {
    "SOFTMAX": Softmax.name,
    "LOG_SOFTMAX": LogSoftmax.name,
    "L2_NORMALIZATION": LpNormalization.name,
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
    """Read MEAN, SUM, REDUCE_MAX, REDUCE_MIN and REDUCE_PROD."""
    index, keep = slot(op.inputs, 0), bool(op.options["keep_dims"])
    shape = builder.tensor(index).shape
    rank = len(shape)
    axes = sorted({axis_in(axis, rank) for axis in builder.list_of(slot(op.inputs, 1))})
    if not axes:
        raise Unsupported("it reduces no axis")
    refuse_mixed_batch(builder, 0 in axes)
    if op.name == PRODUCT.code:
        _refuse_codes(builder, op)
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
    value = builder.node(_REDUCTIONS[op.name], inputs, {"keepdims": int(keep)})
    builder.write(op.outputs[0], value, output)
