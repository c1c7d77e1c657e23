"""Operators that make one element of many along axes."""

from __future__ import annotations

import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tflite.reading.canvas import Input
from intact.formats.tflite.reading.common import (
    Read,
    axis_in,
    keeps_scale,
    mixes_batch,
    needs_shape,
    slot,
)
from intact.formats.tflite.reading.draft import DATA_TYPES, Draft
from intact.formats.tflite.reading.file import Operator
from intact.formats.tflite.reading.layouts import Layout, arranged, channels_first


def _reduction(op_type: str, *, moves: bool = False) -> Read:
    """MEAN, SUM, REDUCE_MAX and REDUCE_MIN."""

    def read(draft: Draft, op: Operator) -> None:
        index, keep = slot(op, 0), bool(op.options["keep_dims"])
        shape = draft.tensor(index).shape
        rank = len(shape)
        axes = sorted({axis_in(axis, rank) for axis in draft.list_of(slot(op, 1))})
        if not axes:
            raise Unsupported("it reduces no axis")
        mixes_batch(draft, 0 in axes)
        if moves:
            keeps_scale(draft, index, op.outputs[0])
        kept = [axis for axis in range(rank) if axis not in axes]
        result = [1 if axis in axes else n for axis, n in enumerate(shape)]
        needs_shape(draft, op.outputs[0], result if keep else [shape[axis] for axis in kept])
        layout = draft.layout_of(index)
        order = channels_first(rank)
        output = layout
        if layout is Layout.FIRST and not keep:
            left = [axis for axis in order if axis not in axes]
            if left == kept:
                output = Layout.FILE
            elif left != list(arranged(kept, Layout.FIRST)):
                layout = output = Layout.FILE
        places = sorted(order.index(axis) for axis in axes) if layout is Layout.FIRST else axes
        inputs: list[Input] = [draft.operand(index, layout), draft.integers(*places)]
        value = draft.node(op_type, inputs, {"keepdims": int(keep)})
        draft.write(op.outputs[0], value, output)

    return read


def _position(op_type: str) -> Read:
    """ARG_MAX and ARG_MIN: the first of equal elements."""

    def read(draft: Draft, op: Operator) -> None:
        index, output = slot(op, 0), draft.tensor(op.outputs[0])
        shape = draft.tensor(index).shape
        axes = draft.list_of(slot(op, 1))
        if len(axes) != 1:
            raise Unsupported(f"its axes are {list(axes)}")
        axis = axis_in(axes[0], len(shape))
        mixes_batch(draft, axis == 0)
        needs_shape(draft, op.outputs[0], shape[:axis] + shape[axis + 1 :])
        kind = DATA_TYPES[output.element]
        attributes = {"axis": axis, "keepdims": 0}
        value = draft.node(op_type, [draft.operand(index)], attributes)
        value.type = ir.TensorType(ir.DataType.INT64)
        if kind is not ir.DataType.INT64:
            value = draft.node("Cast", [value], {"to": int(kind)})
            value.type = ir.TensorType(kind)
        draft.write(op.outputs[0], value)

    return read


TABLE: dict[str, Read] = {
    "MEAN": _reduction("ReduceMean"),
    "SUM": _reduction("ReduceSum"),
    "REDUCE_MAX": _reduction("ReduceMax", moves=True),
    "REDUCE_MIN": _reduction("ReduceMin", moves=True),
    "ARG_MAX": _position("ArgMax"),
    "ARG_MIN": _position("ArgMin"),
}
