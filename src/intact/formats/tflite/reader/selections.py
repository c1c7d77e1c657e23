"""Operators that find, take and put elements, and sums along an axis."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.base.foreign import axis_in, refuse_mixed_batch, require_elements, slot
from intact.formats.tflite.reader.builder import DATA_TYPES, ModelBuilder
from intact.formats.tflite.reader.common import READERS, cast, require_same_scale, require_shape
from intact.formats.tflite.reader.file import Operator
from intact.formats.tflite.reader.schema import Element
from intact.formats.tflite.reader.tensors import Array, ChannelLayout, Input, Operand, arranged
from intact.formats.tflite.spellings import POSITIONS, SELECTIONS, rows_by_code

_POSITIONS, _ROWS = rows_by_code(POSITIONS), rows_by_code(SELECTIONS)
_SINCE_SUMS = 16
"""The opset in which ScatterND adds."""


def _single(builder: ModelBuilder, index: int, what: str) -> int:
    """Return a constant that is one number."""
    found = builder.list_of(index)
    if len(found) != 1:
        raise Unsupported(f"its {what} are {list(found)}")
    return found[0]


def _write_places(
    builder: ModelBuilder, index: int, value: ir.Value, layout: ChannelLayout = ChannelLayout.FILE
) -> None:
    """Make places, which are int64 in ONNX, a tensor of the file."""
    kind = DATA_TYPES[builder.tensor(index).element]
    value.type = ir.TensorType(ir.DataType.INT64)
    if kind is not ir.DataType.INT64:
        value = cast(builder, value, kind)
    builder.write(index, value, layout)


@READERS.register(*_POSITIONS)
def position(builder: ModelBuilder, op: Operator) -> None:
    """Read ARG_MAX and ARG_MIN: the position of the first of equal elements."""
    index = slot(op.inputs, 0)
    shape = builder.tensor(index).shape
    axis = axis_in(_single(builder, slot(op.inputs, 1), "axes"), len(shape))
    refuse_mixed_batch(builder, axis == 0)
    require_shape(builder, op.outputs[0], shape[:axis] + shape[axis + 1 :])
    attributes = {"axis": axis, "keepdims": 0}
    value = builder.node(_POSITIONS[op.name].onnx, [builder.operand(index)], attributes)
    _write_places(builder, op.outputs[0], value)


@READERS.register("TOPK_V2")
def top(builder: ModelBuilder, op: Operator) -> None:
    """Read TOPK_V2: the largest elements along the last axis, and their places."""
    index = slot(op.inputs, 0)
    shape, count = builder.tensor(index).shape, _single(builder, slot(op.inputs, 1), "counts")
    if len(op.outputs) != 2 or not shape or not 0 < count <= shape[-1]:
        raise Unsupported(f"it takes {count} of {list(shape)} and has {len(op.outputs)} outputs")
    for output in op.outputs:
        require_shape(builder, output, (*shape[:-1], count))
    require_same_scale(builder, index, op.outputs[0])
    refuse_mixed_batch(builder, len(shape) == 1)
    layout = builder.layout_of(index)
    axis = arranged(range(len(shape)), layout).index(len(shape) - 1)
    inputs: list[Input] = [builder.operand(index, layout), builder.integers(count)]
    values, places = builder.split(_ROWS[op.name].onnx, inputs, {"axis": axis}, 2)
    builder.write(op.outputs[0], values, layout)
    _write_places(builder, op.outputs[1], places, layout)


@READERS.register("CUMSUM")
def cumulative_sum(builder: ModelBuilder, op: Operator) -> None:
    """Read CUMSUM, of which LiteRT has no kernel for codes."""
    index = slot(op.inputs, 0)
    shape = builder.tensor(index).shape
    if builder.parameters(index) is not None:
        raise Unsupported("it sums codes")
    axis = axis_in(_single(builder, slot(op.inputs, 1), "axes"), len(shape))
    require_shape(builder, op.outputs[0], shape)
    refuse_mixed_batch(builder, axis == 0)
    layout = builder.layout_of(index)
    place = builder.graph.constant(
        builder.graph.names.fresh("axis"),
        np.array(arranged(range(len(shape)), layout).index(axis), np.int64),
    )
    inputs: list[Input] = [builder.operand(index, layout), place]
    attributes = {name: int(op.options[name]) for name in ("exclusive", "reverse")}
    builder.write(op.outputs[0], builder.node(_ROWS[op.name].onnx, inputs, attributes), layout)


def _indices(builder: ModelBuilder, index: int, lengths: tuple[int, ...]) -> Input:
    """Return the indices of elements as int64; stored ones must lie inside."""
    tensor = builder.tensor(index)
    if tensor.element not in (Element.INT32, Element.INT64):
        raise Unsupported(f"its indices are {tensor.element.name.lower()}")
    if builder.is_constant(index):
        found = builder.array(index)
        # A negative index counts from the end in ONNX, and is none in TFLite.
        if ((found < 0) | (found >= np.array(lengths))).any():
            raise Unsupported("an index lies outside its axis")
        return builder.rearranged(index, ("int64",), lambda a: a.astype(np.int64), None)
    value = builder.operand(index)
    if tensor.element is Element.INT64:
        return value
    return cast(builder, value, ir.DataType.INT64)


@READERS.register("GATHER_ND")
def gather_nd(builder: ModelBuilder, op: Operator) -> None:
    """Read GATHER_ND: elements, or slices, at places of several axes."""
    index, chosen = slot(op.inputs, 0), slot(op.inputs, 1)
    shape, indices = builder.tensor(index).shape, builder.tensor(chosen).shape
    count = indices[-1] if indices else 0
    if not 0 < count <= len(shape):
        raise Unsupported(f"its indices {list(indices)} are none of {list(shape)}")
    require_shape(builder, op.outputs[0], (*indices[:-1], *shape[count:]))
    require_same_scale(builder, index, op.outputs[0])
    # The first of a place's numbers chooses a sample.
    refuse_mixed_batch(builder, not builder.is_constant(index) or builder.is_constant(chosen))
    inputs: list[Input] = [builder.operand(index), _indices(builder, chosen, shape[:count])]
    builder.write(op.outputs[0], builder.node(_ROWS[op.name].onnx, inputs))


@READERS.register("SCATTER_ND")
def scatter_nd(builder: ModelBuilder, op: Operator) -> None:
    """Read SCATTER_ND: elements put into zeros; what falls on one place is added up.

    Codes are put among codes of 0, which are another number where the zero point is not 0.
    """
    chosen, index = slot(op.inputs, 0), slot(op.inputs, 1)
    shape = builder.list_of(slot(op.inputs, 2))
    indices, updates = builder.tensor(chosen).shape, builder.tensor(index).shape
    count = indices[-1] if indices else 0
    if not 0 < count <= len(shape) or updates != (*indices[:-1], *shape[count:]):
        raise Unsupported(f"{list(updates)} at {list(indices)} does not fit {list(shape)}")
    require_elements(shape)
    require_shape(builder, op.outputs[0], shape)
    require_same_scale(builder, index, op.outputs[0])
    refuse_mixed_batch(builder, True)
    parameters = builder.parameters(op.outputs[0])
    is_apart = builder.is_constant(chosen) and _are_apart(builder.array(chosen))
    is_number = parameters is None and builder.tensor(index).element is not Element.BOOL
    if not (is_apart or is_number):
        raise Unsupported("it adds codes or conditions, as places are equal or computed")
    builder.charge(int(np.prod(shape)))
    codes: Array = np.zeros(shape, builder.tensor(index).element.name.lower())
    zeros = codes if parameters is None else parameters.numbers(codes)
    ground = builder.graph.constant(builder.graph.names.fresh("zeros"), zeros)
    source: Input = ground if parameters is None else Operand(ground, shape, parameters, codes)
    attributes = None
    if not is_apart:
        builder.opset = max(builder.opset, _SINCE_SUMS)
        attributes = {"reduction": "add"}
    inputs = [source, _indices(builder, chosen, shape[:count]), builder.operand(index)]
    builder.write(op.outputs[0], builder.node(_ROWS[op.name].onnx, inputs, attributes))


def _are_apart(indices: Array) -> bool:
    """Tell whether all places ``[..., axes]`` are different."""
    rows = indices.reshape(-1, indices.shape[-1])
    ordered = rows[np.lexsort(rows.T)]
    return not any((first == second).all() for first, second in pairwise(ordered))
