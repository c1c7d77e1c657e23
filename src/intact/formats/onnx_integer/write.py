"""Writes a graph of integer operations as ONNX: ConvInteger, MatMulInteger and plain ones.

Needs opset 18, IR 10. Every value has its type and shape; an open batch stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.errors import ExportError
from intact.formats.base.maker import PRODUCER
from intact.graph.builder import Attribute, GraphBuilder, typed_value
from intact.graph.files.save import LARGEST_FILE
from intact.ops import functions
from intact.ops.operators import (
    Add,
    And,
    Cast,
    Clip,
    Concat,
    ConvInteger,
    Div,
    Equal,
    Expand,
    Gather,
    Greater,
    Identity,
    Less,
    MatMulInteger,
    Max,
    MaxPool,
    Min,
    Mul,
    Named,
    Pad,
    ReduceMax,
    ReduceMin,
    ReduceSum,
    Reshape,
    Slice,
    Sub,
    Tile,
    Transpose,
    Where,
    type_of,
)
from intact.program import Program, Tensor
from intact.program.handlers import NamedHandlers
from intact.program.realize import IntegerGraph, Node, Op, Value, Window, realize

_INT64_MAX = int(np.iinfo(np.int64).max)


class OnnxBuilder(GraphBuilder):
    """The ONNX graph of a graph of integer operations, under construction."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, ir.Value] = {}
        self._count = 0

    def input_of(self, value: Value) -> ir.Value:
        """Add an input."""
        dtype = ir.DataType.from_numpy(value.dtype)
        self._values[value.name] = self.input(value.name, dtype, value.shape)
        return self._values[value.name]

    def value(self, value: Value) -> ir.Value:
        """Return the ONNX value of one of the graph; a fixed one is an initializer."""
        if value.data is None:
            return self._values[value.name]
        # Stored at its first reader and shared by the others.
        if value.name not in self.initializers:
            self.constant(value.name, value.data)
        return self.initializers[value.name]

    def constant_of(self, data: npt.ArrayLike, dtype: npt.DTypeLike, of: str) -> ir.Value:
        """Add a constant in a type, named after the value that reads it."""
        self._count += 1
        return self.constant(f"{of}/constant_{self._count}", np.asarray(data, dtype))

    def result(
        self,
        operator: Named,
        inputs: Sequence[ir.Value | None],
        result: Value,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> ir.Value:
        """Add the node that computes a value of the graph."""
        op_type = type_of(operator)
        made = self._node(op_type, inputs, result.name, result.dtype, result, attributes)
        self._values[result.name] = made
        return made

    def step(
        self,
        operator: Named,
        inputs: Sequence[ir.Value | None],
        result: Value,
        dtype: npt.DTypeLike | None = None,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> ir.Value:
        """Add a node on the way to a value, of its shape, and return its output."""
        op_type = type_of(operator)
        self._count += 1
        name = f"{result.name}/{op_type}_{self._count}"
        kind = result.dtype if dtype is None else dtype
        return self._node(op_type, inputs, name, kind, result, attributes)

    def _node(
        self,
        operator: Named,
        inputs: Sequence[ir.Value | None],
        name: str,
        dtype: npt.DTypeLike,
        like: Value,
        attributes: Mapping[str, Attribute] | None,
    ) -> ir.Value:
        op_type = type_of(operator)
        made = typed_value(name, ir.DataType.from_numpy(np.dtype(dtype)), like.shape)
        self.add(op_type, inputs, [made], attributes, name=name)
        return made


_Writer: TypeAlias = Callable[[OnnxBuilder, Node], None]

_WRITERS: NamedHandlers[_Writer] = NamedHandlers("intact writes no {} as ONNX")


def write_node(builder: OnnxBuilder, node: Node) -> None:
    """Add one node of the graph."""
    _WRITERS[node.op](builder, node)


def _inputs(builder: OnnxBuilder, node: Node) -> list[ir.Value | None]:
    return [builder.value(value) for value in node.inputs]


def _plain(kind: str) -> _Writer:
    """Make the writer of an operator that takes the operands as they are."""

    def write(builder: OnnxBuilder, node: Node) -> None:
        builder.result(kind, _inputs(builder, node), node.output)

    return write


@_WRITERS.register(Op.CAST)
def _cast(builder: OnnxBuilder, node: Node) -> None:
    to = ir.DataType.from_numpy(node.output.dtype)
    builder.result(Cast, _inputs(builder, node), node.output, {"to": int(to)})


@_WRITERS.register(Op.FLOOR_DIV)
def _floor_div(builder: OnnxBuilder, node: Node) -> None:
    """Write a floored quotient: ONNX divides towards 0, which is the same from 0 on.

    A multiple of the divisor lifts what may be negative, and is taken off the quotient; where there
    is no room for that, ``floor(x / d)`` below 0 is ``trunc((x + 1) / d) - 1``.
    """
    value, divisor = node.inputs
    held, by = _inputs(builder, node)
    result, dtype = node.output, node.output.dtype
    # Bounds of every value are known, so that most quotients need no correction.
    if value.low >= 0:
        builder.result(Div, [held, by], result)
        return
    if divisor.data is not None:
        # In Python's integers: the lift may leave 64 bits before it is compared with the room.
        steps = [-(value.low // int(each)) for each in divisor.data.reshape(-1)]
        lifts = [turns * int(each) for turns, each in zip(steps, divisor.data.flat, strict=True)]
        if value.high + max(lifts) <= np.iinfo(dtype).max:
            shape = divisor.data.shape
            lift = builder.constant_of(np.reshape(lifts, shape), dtype, result.name)
            turns = builder.constant_of(np.reshape(steps, shape), dtype, result.name)
            lifted = builder.step(Add, [held, lift], result)
            quotient = builder.step(Div, [lifted, by], result)
            builder.result(Sub, [quotient, turns], result)
            return
    zero = builder.constant_of(0, dtype, result.name)
    below = builder.step(Less, [held, zero], result, np.bool_)
    to = {"to": int(ir.DataType.from_numpy(dtype))}
    one = builder.step(Cast, [below], result, attributes=to)
    quotient = builder.step(Div, [builder.step(Add, [held, one], result), by], result)
    builder.result(Sub, [quotient, one], result)


@_WRITERS.register(Op.CLIP)
def _clip(builder: OnnxBuilder, node: Node) -> None:
    dtype, name = node.output.dtype, node.output.name
    low, high = (builder.constant_of(node.options[each], dtype, name) for each in ("low", "high"))
    (value,) = _inputs(builder, node)
    if not _is_wide(*node.inputs):
        builder.result(Clip, [value, low, high], node.output)
        return
    # Comparison and choice instead of Clip, which compares halves (`_is_wide`).
    above = builder.step(Greater, [value, high], node.output, np.bool_)
    capped = builder.step(Where, [above, high, value], node.output, dtype)
    below = builder.step(Less, [capped, low], node.output, np.bool_)
    builder.result(Where, [below, low, capped], node.output)


def _is_wide(*values: Value) -> bool:
    """Check whether some value leaves 32 bits.

    ONNX Runtime (1.31.1) has Clip, Min and Max of int64 compare the lower halves of two numbers as
    signed ones where the upper halves are equal, so that 2**31 is not above 127. Less and Greater
    are right.
    """
    info = np.iinfo(np.int32)
    return any(value.low < info.min or value.high > info.max for value in values)


def _extreme(operator: str, comparison: str) -> _Writer:
    """Make the writer of the smaller or the larger of two."""

    def write(builder: OnnxBuilder, node: Node) -> None:
        first, second = _inputs(builder, node)
        if not _is_wide(*node.inputs):
            builder.result(operator, [first, second], node.output)
            return
        chosen = builder.step(comparison, [first, second], node.output, np.bool_)
        builder.result(Where, [chosen, first, second], node.output)

    return write


@_WRITERS.register(Op.IS_NEGATIVE)
def _is_negative(builder: OnnxBuilder, node: Node) -> None:
    zero = builder.constant_of(0, node.inputs[0].dtype, node.output.name)
    below = builder.step(Less, [*_inputs(builder, node), zero], node.output, np.bool_)
    builder.result(Cast, [below], node.output, {"to": int(ir.DataType.INT32)})


@_WRITERS.register(Op.TAKE)
def _take(builder: OnnxBuilder, node: Node) -> None:
    builder.result(Gather, _inputs(builder, node), node.output, {"axis": node.options["axis"]})


def _with_zeros(builder: OnnxBuilder, node: Node) -> list[ir.Value | None]:
    """Return operands and their zero points, which are left out where both are 0."""
    zeros = (node.options["zero"], node.options["weight_zero"])
    values = _inputs(builder, node)
    if zeros == (0, 0):
        return values
    for number, operand in zip(zeros, node.inputs, strict=True):
        values.append(builder.constant_of(number, operand.dtype, node.output.name))
    return values


@_WRITERS.register(Op.CONVOLVE)
def _convolve(builder: OnnxBuilder, node: Node) -> None:
    window: Window = node.options["window"]
    attributes: dict[str, Attribute] = {
        **_window(window),
        "dilations": window.dilations,
        "group": window.groups,
    }
    builder.result(ConvInteger, _with_zeros(builder, node), node.output, attributes)


def _window(window: Window) -> dict[str, tuple[int, ...]]:
    before, after = zip(*window.pads, strict=True)
    return {
        "kernel_shape": window.kernel,
        "strides": window.strides,
        "pads": (*before, *after),
    }


@_WRITERS.register(Op.MULTIPLY)
def _multiply(builder: OnnxBuilder, node: Node) -> None:
    builder.result(MatMulInteger, _with_zeros(builder, node), node.output)


@_WRITERS.register(Op.MAX_POOL)
def _max_pool(builder: OnnxBuilder, node: Node) -> None:
    window = _window(node.options["window"])
    builder.result(MaxPool, _inputs(builder, node), node.output, window)


def _reduction(kind: str) -> _Writer:
    def write(builder: OnnxBuilder, node: Node) -> None:
        axes = builder.constant_of(node.options["axes"], np.int64, node.output.name)
        keep = {"keepdims": int(node.options["keep"])}
        builder.result(kind, [*_inputs(builder, node), axes], node.output, keep)

    return write


def _with_numbers(kind: str, option: str) -> _Writer:
    """Make the writer of an operator that takes an option as a constant of int64."""

    def write(builder: OnnxBuilder, node: Node) -> None:
        numbers = builder.constant_of(node.options[option], np.int64, node.output.name)
        builder.result(kind, [*_inputs(builder, node), numbers], node.output)

    return write


@_WRITERS.register(Op.TRANSPOSE)
def _transpose(builder: OnnxBuilder, node: Node) -> None:
    permutation = {"perm": node.options["permutation"]}
    builder.result(Transpose, _inputs(builder, node), node.output, permutation)


@_WRITERS.register(Op.SLICE)
def _slice(builder: OnnxBuilder, node: Node) -> None:
    options = node.options
    parts = list(zip(options["starts"], options["stops"], options["steps"], strict=True))
    axes = [axis for axis, part in enumerate(parts) if part != (None, None, 1)]
    starts, stops, steps = [], [], []
    for axis in axes:
        start, stop, step = parts[axis]
        # ONNX has no other word for the end: -1 is the last element, also backwards.
        far = _INT64_MAX if step > 0 else -_INT64_MAX
        starts.append((0 if step > 0 else _INT64_MAX) if start is None else start)
        stops.append(far if stop is None else stop)
        steps.append(step)
    numbers = [
        builder.constant_of(each, np.int64, node.output.name)
        for each in (starts, stops, axes, steps)
    ]
    builder.result(Slice, [*_inputs(builder, node), *numbers], node.output)


@_WRITERS.register(Op.PAD)
def _pad(builder: OnnxBuilder, node: Node) -> None:
    before, after = zip(*node.options["pads"], strict=True)
    name, dtype = node.output.name, node.output.dtype
    pads = builder.constant_of((*before, *after), np.int64, name)
    (data,) = _inputs(builder, node)
    if dtype.itemsize != 2:
        builder.result(
            Pad,
            [data, pads, builder.constant_of(node.options["number"], dtype, name)],
            node.output,
        )
        return
    # ONNX Runtime pads no 16-bit integers.
    wide = builder.step(Cast, [data], node.inputs[0], np.int32, {"to": int(ir.DataType.INT32)})
    number = builder.constant_of(node.options["number"], np.int32, name)
    padded = builder.step(Pad, [wide, pads, number], node.output, np.int32)
    to = ir.DataType.from_numpy(dtype)
    builder.result(Cast, [padded], node.output, {"to": int(to)})


@_WRITERS.register(Op.CONCAT)
def _concat(builder: OnnxBuilder, node: Node) -> None:
    builder.result(Concat, _inputs(builder, node), node.output, {"axis": node.options["axis"]})


_PLAIN = {
    Op.ADD: Add.name,
    Op.SUB: Sub.name,
    Op.MUL: Mul.name,
    Op.COPY: Identity.name,
    Op.DIVIDE: Div.name,
    Op.ROUND: functions.round_half_even.name,
    Op.CEIL: functions.ceil.name,
    Op.EQUAL: Equal.name,
    Op.GREATER: Greater.name,
    Op.LESS: Less.name,
    Op.BOTH: And.name,
    Op.CHOOSE: Where.name,
}
"""Operators that take the operands as they are."""

for _op, _op_type in _PLAIN.items():
    _WRITERS.register(_op)(_plain(_op_type))
_WRITERS.register(Op.MINIMUM)(_extreme(Min.name, Less.name))
_WRITERS.register(Op.MAXIMUM)(_extreme(Max.name, Greater.name))
_WRITERS.register(Op.SUM)(_reduction(ReduceSum.name))
_WRITERS.register(Op.LARGEST)(_reduction(ReduceMax.name))
_WRITERS.register(Op.SMALLEST)(_reduction(ReduceMin.name))
_WRITERS.register(Op.RESHAPE)(_with_numbers(Reshape.name, "lengths"))
_WRITERS.register(Op.EXPAND)(_with_numbers(Expand.name, "lengths"))
_WRITERS.register(Op.TILE)(_with_numbers(Tile.name, "repeats"))


# All reductions take their axes as inputs from opset 18 on.
OPSET, IR_VERSION = 18, 10


def write_onnx_integer(program: Program, maker: Mapping[str, str] = {}) -> bytes:
    """Return a program as an ONNX model.

    Args:
        program: Floats stand at its ends alone, or nowhere.
        maker: What the file says of who made it.

    Raises:
        ExportError: Some steps cannot be written with integers; all of them are listed.
    """
    return integer_model(realize(program), program, maker=maker)


def integer_model(
    graph: IntegerGraph,
    program: Program,
    shown: tuple[str, ...] = (),
    maker: Mapping[str, str] = {},
) -> bytes:
    """Return a graph as an ONNX model.

    Args:
        graph: What `realize` made of the program.
        program: Named in the metadata: what codes at the ends stand for.
        shown: Names of values that are given too, behind the outputs.
        maker: What the file says of who made it.
    """
    builder = OnnxBuilder()
    for value in graph.inputs:
        builder.input_of(value)
    for node in graph.nodes:
        write_node(builder, node)
    made = {str(value.name): value for node in builder.nodes for value in node.outputs}
    outputs = [made[name] for name in (*(value.name for value in graph.outputs), *shown)]
    whole = builder.graph(outputs, opset=OPSET, name="integer")
    model = ir.Model(whole, ir_version=IR_VERSION, producer_name=PRODUCER)
    model.metadata_props.update(maker)
    ends = {**program.inputs, **program.outputs}
    model.metadata_props.update({f"quantization.{n}": _text(t) for n, t in ends.items()})
    # One file: a program of integers is deployed whole.
    proto = ir.to_proto(model)
    if proto.ByteSize() > LARGEST_FILE:
        raise ExportError("the model takes more than 2 GiB", remedy="cut it in parts")
    # Maps of a message have no order of their own otherwise.
    return bytes(proto.SerializeToString(deterministic=True))


def _text(tensor: Tensor) -> str:
    """Describe the codes of an input or output; its type where it has none."""
    encoding = tensor.encoding
    if encoding is None:
        return str(tensor.dtype)
    scale, zero = encoding.scale.reshape(-1), encoding.zero_point.reshape(-1)
    return (
        f"{encoding.dtype} scale={scale.tolist()} zero_point={zero.tolist()} "
        f"min={encoding.quant_min} max={encoding.quant_max}"
    )
