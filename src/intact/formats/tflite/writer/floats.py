"""Writes nodes of the float model for which TFLite has operators.

Attention masks are made by them: a comparison, a Cast, a choice; maps of classes by ArgMax. What
has an operator with the same operands is a row of `_OPERATORS`; `NODE_WRITERS` has what takes more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tflite.spellings import NODES, PRODUCT, SELECTIONS, rows_by_ours
from intact.formats.tflite.writer.builder import (
    WRITERS,
    FileBuilder,
    Options,
    add_cast,
    type_of,
)
from intact.formats.tflite.writer.moves import add_reshape, add_transpose
from intact.graph import constant_array, is_constant
from intact.ops.operators import LRN, CumSum, GatherND, Mod, Reduce, ScatterND
from intact.program import Array, Shape, Step, Tensor
from intact.program.forms import moved_last, plain_type, shape_of
from intact.program.handlers import NamedHandlers
from intact.program.lower.attributes import axis_of, constant_input
from intact.program.lower.windows import axes_of
from intact.program.operations import FloatNodes

_SELECTIONS = rows_by_ours(SELECTIONS)
_OPERATORS = rows_by_ours(NODES)
"""Their operands are the same, in the same order."""

_TYPES = ("bool", "float32", "int32", "int64")
"""What these operators take."""

_CAST_TYPES = (*_TYPES, "int8", "int16", "uint8")
"""The same for Cast: images are often fed as uint8."""


@dataclass(frozen=True)
class _Node:
    """A node on its way into a file.

    Attributes:
        node: The node.
        operands: What it reads, by slot; None where nothing is.
        results: What it makes, by slot; None for what nobody reads.
        builder: Takes its operators.
    """

    node: ir.Node
    operands: Sequence[Tensor | None]
    results: Sequence[Tensor | None]
    builder: FileBuilder

    @property
    def data(self) -> Tensor:
        """The first operand."""
        return self.operand(0)

    @property
    def result(self) -> Tensor:
        """The first result."""
        result = self.results[0]
        if result is None:
            raise Unsupported("nobody reads its first result")
        return result

    def operand(self, slot: int) -> Tensor:
        """Return an operand that must be there."""
        tensor = self.operands[slot] if slot < len(self.operands) else None
        if tensor is None:
            raise Unsupported(f"its input {slot} is absent")
        return tensor

    def constant(self, slot: int) -> Array:
        """Return an operand that must be a constant."""
        array = constant_input(self.node, slot)
        if array is None:
            raise Unsupported(f"its input {slot} is absent")
        return array

    def part(self, shape: Shape, kind: np.dtype[Any] | None = None) -> Tensor:
        """Return a new tensor on the way to the result."""
        like = next(each for each in self.results if each is not None)
        plain = (kind or type_of(self.data)).type
        return self.builder.intermediate(f"{like.name}_part", shape, None, like, plain=plain)

    def between(
        self, code: str, *inputs: Tensor, options: str = "", shape: Shape | None = None
    ) -> Tensor:
        """Add an operator whose result is of its first input's type, and of its shape if none."""
        result = self.part(inputs[0].shape if shape is None else shape, type_of(inputs[0]))
        self.add(code, inputs, result, options=options)
        return result

    def add(
        self,
        code: str,
        inputs: Sequence[Tensor],
        *results: Tensor,
        options: str = "",
        **fields: int | float | bool,
    ) -> None:
        """Add an operator."""
        self.builder.operator(code, inputs, results, Options(options, fields) if options else None)

    def number(self, value: Array | float, kind: Any = np.float32) -> Tensor:
        """Return a new constant."""
        return self.builder.constant(f"{self.node.name}/number", np.asarray(value, kind))

    def last(self, tensor: Tensor, axis: int) -> Tensor:
        """Return a tensor whose axis is exchanged with the last one; itself where it is that."""
        order = _exchanged(len(tensor.shape), axis)
        if order == tuple(range(len(order))):
            return tensor
        result = self.part(tuple(tensor.shape[k] for k in order), type_of(tensor))
        add_transpose(self.builder, tensor, result, order)
        return result


NodeWriter: TypeAlias = Callable[[_Node], None]

NODE_WRITERS: NamedHandlers[NodeWriter] = NamedHandlers("intact writes no {} for TFLite")
"""Writers by operator type of ONNX."""


def has_no_operator(node: ir.Node) -> bool:
    """Tell whether intact writes no operator of TFLite for a node of the float model."""
    return node.domain != "" or (
        node.op_type not in _OPERATORS and node.op_type not in NODE_WRITERS
    )


@WRITERS.register(FloatNodes)
def _write_nodes(operation: FloatNodes, step: Step, builder: FileBuilder) -> None:
    """Write the nodes of a step one by one."""
    known = dict(zip(operation.inputs, step.inputs, strict=True))
    results = dict(zip(operation.outputs, step.outputs, strict=True))
    for node in operation.nodes:
        try:
            _write_node(node, known, results, step, builder)
        except Unsupported as reason:  # the step has the name of the first
            reason.node = reason.node or str(node.name)
            raise


def _write_node(
    node: ir.Node,
    known: dict[ir.Value, Tensor | None],
    results: Mapping[ir.Value, Tensor],
    step: Step,
    builder: FileBuilder,
) -> None:
    """Write a node; add its results to what is known."""
    is_row = node.op_type not in NODE_WRITERS
    slots = range(len(node.inputs))
    # Operators of a row have no optional operands: `_operand` refuses what is absent.
    operands = [
        None if not is_row and node.inputs[slot] is None
        else _operand(node, slot, known, builder)
        for slot in slots
    ]  # fmt: skip
    # What lies between shares the batch of one of them.
    like = next(each for each in (*operands, *step.outputs) if each is not None)
    made = [
        # ONNX leaves out the name of a result that nobody reads.
        (results.get(value) or _between(value, like, builder)) if value.name else None
        for value in node.outputs
    ]
    known.update(zip(node.outputs, made, strict=True))
    types = _CAST_TYPES if node.op_type == "Cast" else _TYPES
    for tensor in (*operands, *made):
        if tensor is not None and type_of(tensor).name not in types:
            raise Unsupported(f"{tensor.name!r} is {type_of(tensor)}, not for {node.op_type}")
    if is_row:
        _write_row(_Node(node, operands, made, builder))
    else:
        NODE_WRITERS[node.op_type](_Node(node, operands, made, builder))


def _write_row(node: _Node) -> None:
    spelling = _OPERATORS[node.node.op_type]
    if node.node.op_type == "Cast":
        _refuse_cast(type_of(node.data), type_of(node.result))
        add_cast(node.builder, node.data, node.result)
        return
    options = Options(spelling.table)
    node.builder.operator(spelling.code, node.operands, (node.result,), options)


def _operand(
    node: ir.Node, slot: int, known: dict[ir.Value, Tensor | None], builder: FileBuilder
) -> Tensor:
    value = node.inputs[slot]
    tensor = None if value is None else known.get(value)
    if tensor is not None:
        return tensor
    array = constant_array(value)
    if value is None or array is None or not is_constant(value):
        raise Unsupported(f"input {slot} of {node.op_type} is neither computed nor a constant")
    return builder.constant(str(value.name), array)


def _between(value: ir.Value, like: Tensor, builder: FileBuilder) -> Tensor:
    kind = plain_type(value).type
    return builder.intermediate(str(value.name), shape_of(value), None, like, plain=kind)


def _refuse_cast(before: np.dtype[Any], after: np.dtype[Any]) -> None:
    """Refuse a Cast between types that runtimes do not convert alike.

    Floats are cut off towards 0, and large integers to their low bits; what a float too large
    becomes ONNX leaves open for 32 and 64 bits as well.

    Raises:
        Unsupported: It makes few bits of floats: what is too large becomes another number.
    """
    if before.kind == "f" and after.kind in "iu" and after.itemsize < np.dtype(np.int32).itemsize:
        raise Unsupported(f"it casts {before} to {after}")


# ---- elements at computed places -----------------------------------------------------------------


def _places(node: _Node, slot: int, lengths: Sequence[int | None]) -> Tensor:
    """Return indices that count from the beginning: negative ones count from the end in ONNX.

    Args:
        node: The node.
        slot: Where it reads the indices.
        lengths: How long the axis of each index is, or of all.
    """
    if None in lengths:
        raise Unsupported("it takes elements of an axis of unknown length")
    indices = node.operand(slot)
    sizes = np.array(lengths, type_of(indices))
    if indices.data is not None:
        # NumPy's remainder has the divisor's sign, so that -1 becomes the last place.
        return node.number(np.mod(indices.data, sizes), np.int32)
    sizes_of = node.number(sizes if sizes.size > 1 else sizes.reshape(()), type_of(indices))
    row = _OPERATORS["Mod"]
    return node.between(row.code, indices, sizes_of, options=row.table)


@NODE_WRITERS.register("GatherND")
def _gather_nd(node: _Node) -> None:
    """Write GatherND: GATHER_ND, or GATHER where samples have indices of their own."""
    shared, count = GatherND.of(node.node).batch_dims, node.operand(1).shape[-1]
    if shared and count != 1:
        raise Unsupported("it gathers by sample along several axes")
    if shared:
        places = _places(node, 1, node.data.shape[shared : shared + 1])
        rows = node.part(places.shape[:-1], type_of(places))
        add_reshape(node.builder, places, rows)
        fields = {"axis": shared, "batchDims": shared}
        node.add("GATHER", (node.data, rows), node.result, options="GatherOptions", **fields)
        return
    places = _places(node, 1, node.data.shape[:count])
    row = _SELECTIONS[node.node.op_type]
    node.add(row.code, (node.data, places), node.result, options=row.table)


@NODE_WRITERS.register("GatherElements")
def _gather_elements(node: _Node) -> None:
    """Write GatherElements: GATHER along the last axis, each row with its own indices."""
    data, indices = node.data, node.operand(1)
    rank = len(data.shape)
    axis = axis_of(node.node, rank)
    others = [k for k in range(rank) if k != axis]
    if any(data.shape[k] != indices.shape[k] for k in others):
        raise Unsupported("its data has more rows than its indices")
    places = node.last(_places(node, 1, data.shape[axis : axis + 1]), axis)
    rows = node.last(data, axis)
    gathered = node.part(places.shape, type_of(data))
    # GATHER takes rows with indices of their own only where all axes in front are a batch.
    fields = {"axis": rank - 1, "batchDims": rank - 1}
    node.add("GATHER", (rows, places), gathered, options="GatherOptions", **fields)
    _back(node, gathered, node.result, axis)


@NODE_WRITERS.register("ScatterND")
def _scatter_nd(node: _Node) -> None:
    """Write ScatterND at constant places: SCATTER_ND into zeros, chosen from where it writes."""
    data, updates, result = node.data, node.operand(2), node.result
    reduction = ScatterND.of(node.node).reduction
    if reduction not in ("none", "add"):
        raise Unsupported(f"its reduction is {reduction}")
    if None in data.shape:
        raise Unsupported("its data has an axis of unknown length")
    lengths = np.array(data.shape, np.int64)
    indices = node.constant(1)
    places = np.mod(indices, lengths[: indices.shape[-1]])
    written = np.zeros(tuple(lengths), np.int64)
    np.add.at(written, tuple(np.moveaxis(places, -1, 0)), 1)
    # SCATTER_ND adds up what is written to one place; without a reduction the last one stays.
    if reduction == "none" and written.max(initial=0) > 1:
        raise Unsupported("it writes some places twice")
    inputs = (node.number(places, np.int32), updates, node.number(lengths, np.int32))
    scattered = node.part(data.shape, type_of(data))
    row = _SELECTIONS[node.node.op_type]
    node.add(row.code, inputs, scattered, options=row.table)
    if reduction == "add":
        node.add("ADD", (data, scattered), result, options="AddOptions")
        return
    mask = node.number(written > 0, np.bool_)
    # Chosen and not added, since what is replaced may be infinite.
    choice = _OPERATORS["Where"]
    node.add(choice.code, (mask, scattered, data), result, options=choice.table)


def _back(node: _Node, tensor: Tensor, result: Tensor, axis: int) -> None:
    """Make a tensor whose axis was brought to the end the result."""
    order = _exchanged(len(tensor.shape), axis)
    add_transpose(node.builder, tensor, result, order)


def _exchanged(rank: int, axis: int) -> tuple[int, ...]:
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return tuple(order)


# ---- along axes ----------------------------------------------------------------------------------


@NODE_WRITERS.register("IsNaN")
def _is_nan(node: _Node) -> None:
    """Write IsNaN: only NaN is not equal to itself."""
    node.add("NOT_EQUAL", (node.data, node.data), node.result, options="NotEqualOptions")


@NODE_WRITERS.register("CumSum")
def _cumulative_sum(node: _Node) -> None:
    """Write CumSum: CUMSUM."""
    axis = node.builder.integers(f"{node.node.name}/axis", int(node.constant(1).item()))
    options = CumSum.of(node.node)
    fields = {"exclusive": options.exclusive == 1, "reverse": options.reverse == 1}
    row = _SELECTIONS[node.node.op_type]
    node.add(row.code, (node.data, axis), node.result, options=row.table, **fields)


_REDUCTIONS: Mapping[str, tuple[str, str, str]] = {
    "ReduceL1": ("ABS", "SUM", ""),
    "ReduceL2": ("SQUARE", "SUM", "SQRT"),
    "ReduceLogSum": ("", "SUM", "LOG"),
    PRODUCT.ours: ("", PRODUCT.code, ""),
    "ReduceSumSquare": ("SQUARE", "SUM", ""),
}
"""What is done to each element, how they are reduced, and what is done to the result."""

_TABLES = {"ABS": "AbsOptions", "SQUARE": "SquareOptions"}


@NODE_WRITERS.register(*_REDUCTIONS)
def _reduction(node: _Node) -> None:
    """Write reductions of functions of the elements."""
    before, code, after = _REDUCTIONS[node.node.op_type]
    data, result = node.data, node.result
    axes = axes_of(node.node, len(data.shape))
    at = node.builder.integers(f"{node.node.name}/axes", axes)
    if before:
        data = node.between(before, data, options=_TABLES[before])
    reduced = node.part(result.shape, type_of(data)) if after else result
    keeps = Reduce.of(node.node).keepdims == 1
    node.add(code, (data, at), reduced, options="ReducerOptions", keepDims=keeps)
    if after:
        node.add(after, (reduced,), result)


@NODE_WRITERS.register("LRN")
def _local_response_normalization(node: _Node) -> None:
    """Write LRN: the window of channels is a product with a band of ones.

    LOCAL_RESPONSE_NORMALIZATION has no even windows, and LiteRT 2.3.0's reference kernel sums an
    element less than its other one does.
    """
    data, options = node.data, LRN.of(node.node)
    channels = data.shape[1]
    if channels is None:
        raise Unsupported("the number of its channels is not known")
    to, by = np.indices((channels, channels))
    is_near = (by - to >= -((options.size - 1) // 2)) & (by - to <= options.size // 2)
    order = moved_last(len(data.shape))
    inner = node.part(tuple(data.shape[k] for k in order))
    add_transpose(node.builder, data, inner, order)
    squares = node.between("SQUARE", inner, options="SquareOptions")
    sums = node.part(inner.shape)
    # The factor of each square is in the weights, which spares a product.
    band = node.number(np.where(is_near, options.alpha / options.size, 0))
    bias = node.number(np.full(channels, options.bias))
    table = "FullyConnectedOptions"
    node.builder.operator(
        "FULLY_CONNECTED", (squares, band, bias), (sums,), Options(table, {"keepNumDims": True}),
        version=5,
    )  # fmt: skip
    row = _OPERATORS["Pow"]
    power = node.between(row.code, sums, node.number(-options.beta), options=row.table)
    outer = node.between("MUL", inner, power, options="MulOptions")
    add_transpose(node.builder, outer, node.result, tuple(int(k) for k in np.argsort(order)))


# ---- element by element --------------------------------------------------------------------------


@NODE_WRITERS.register("Mod")
def _modulo(node: _Node) -> None:
    """Write Mod: FLOOR_MOD; what has the dividend's sign is that of the magnitudes."""
    data, divisor, row = node.data, node.operand(1), _OPERATORS["Mod"]
    if not Mod.of(node.node).fmod:
        node.add(row.code, (data, divisor), node.result, options=row.table)
        return
    if type_of(data).kind != "f":
        raise Unsupported("its integers keep the dividend's sign")
    sign = node.between("SIGN", data)
    # What is made of a constant alone has no batch, and readers would look for it.
    magnitudes = [
        node.between("ABS", each, options="AbsOptions")
        if each.data is None
        else node.number(np.abs(each.data))
        for each in (data, divisor)
    ]
    shape = node.result.shape
    rest = node.between(row.code, *magnitudes, options=row.table, shape=shape)
    node.add("MUL", (sign, rest), node.result, options="MulOptions")
