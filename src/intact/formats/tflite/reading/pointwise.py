"""Operators element by element, along the channels, and reductions."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from intact.formats.tflite.reading.canvas import Attribute, Input, Operand
from intact.formats.tflite.reading.common import (
    Read,
    axis_in,
    broadcast,
    clamped,
    finish,
    keeps_scale,
    mixes_batch,
    needs_shape,
    slot,
)
from intact.formats.tflite.reading.draft import (
    DATA_TYPES,
    Draft,
    Layout,
    arranged,
    channels_first,
)
from intact.formats.tflite.reading.file import Operator
from intact.formats.tflite.reading.parameters import Unreadable
from intact.formats.tflite.reading.schema import Fused

_GELU_OPSET = 20


def _operands(draft: Draft, op: Operator) -> tuple[Layout, list[Operand]]:
    """Return two operands that broadcast to the output, in one layout."""
    indices = [slot(op, 0), slot(op, 1)]
    broadcast(draft, op, *(draft.tensor(index).shape for index in indices))
    rank = draft.tensor(op.outputs[0]).rank
    computed = [index for index in indices if not draft.is_constant(index)]
    if not computed:
        raise Unreadable("all its inputs are constants")
    same = all(draft.tensor(index).rank == rank for index in computed)
    mixes_batch(draft, not same)
    layout = draft.layout_of(*computed) if same else Layout.FILE
    return layout, [
        draft.operand(index, layout) if index in computed else draft.constant(index, layout, rank)
        for index in indices
    ]


def _binary(op_type: str, *, moves: bool = False) -> Read:
    def read(draft: Draft, op: Operator) -> None:
        if moves:  # the kernels compare codes
            for index in op.inputs:
                keeps_scale(draft, index, op.outputs[0])
        layout, operands = _operands(draft, op)
        finish(draft, op, draft.node(op_type, operands), layout)

    return read


def squared_difference(draft: Draft, op: Operator) -> None:
    """SQUARED_DIFFERENCE: Sub, then Mul of that with itself."""
    layout, operands = _operands(draft, op)
    difference = draft.node("Sub", operands)
    draft.write(op.outputs[0], draft.node("Mul", [difference, difference]), layout)


def _source(draft: Draft, op: Operator) -> tuple[Layout, Operand]:
    """Return the one operand in the layout that it has, whose shape is the output's."""
    index = slot(op, 0)
    needs_shape(draft, op.outputs[0], draft.tensor(index).shape)
    layout = draft.layout_of(index)
    return layout, draft.operand(index, layout)


def _unary(op_type: str, attributes: Mapping[str, Attribute] | None = None) -> Read:
    def read(draft: Draft, op: Operator) -> None:
        layout, source = _source(draft, op)
        draft.write(op.outputs[0], draft.node(op_type, [source], attributes), layout)

    return read


def _clamp(activation: Fused) -> Read:
    """RELU and its kin, standing alone."""

    def read(draft: Draft, op: Operator) -> None:
        layout, source = _source(draft, op)
        value = clamped(draft, source.value, activation)
        node = draft.nodes[-1]
        draft.reads[node, 0] = source
        draft.write(op.outputs[0], value, layout)

    return read


def relu_0_to_1(draft: Draft, op: Operator) -> None:
    """RELU_0_TO_1."""
    layout, source = _source(draft, op)
    value = draft.node("Clip", [source, draft.number(0), draft.number(1)])
    draft.write(op.outputs[0], value, layout)


def leaky_relu(draft: Draft, op: Operator) -> None:
    """LEAKY_RELU."""
    alpha = float(op.options["alpha"])
    if not abs(alpha) < 1e30:
        raise Unreadable(f"its slope is {alpha}")
    layout, source = _source(draft, op)
    draft.write(op.outputs[0], draft.node("LeakyRelu", [source], {"alpha": alpha}), layout)


def prelu(draft: Draft, op: Operator) -> None:
    """PRELU with a stored slope."""
    layout, source = _source(draft, op)
    index = slot(op, 1)
    if not draft.is_constant(index):
        raise Unreadable("its slope is computed")
    broadcast(draft, op, draft.tensor(slot(op, 0)).shape, draft.tensor(index).shape)
    slope = draft.constant(index, layout, len(source.shape))
    draft.write(op.outputs[0], draft.node("PRelu", [source, slope]), layout)


def gelu(draft: Draft, op: Operator) -> None:
    """GELU, exact or with tanh."""
    draft.opset = max(draft.opset, _GELU_OPSET)
    mode = "tanh" if op.options["approximate"] else "none"
    _unary("Gelu", {"approximate": mode})(draft, op)


def rsqrt(draft: Draft, op: Operator) -> None:
    """RSQRT: Sqrt, then Reciprocal."""
    layout, source = _source(draft, op)
    value = draft.node("Reciprocal", [draft.node("Sqrt", [source])])
    draft.write(op.outputs[0], value, layout)


def square(draft: Draft, op: Operator) -> None:
    """SQUARE: Mul with itself."""
    layout, source = _source(draft, op)
    draft.write(op.outputs[0], draft.node("Mul", [source, source]), layout)


def _along_channels(op_type: str, attributes: Mapping[str, Attribute]) -> Read:
    """Operators along the last axis of the file."""

    def read(draft: Draft, op: Operator) -> None:
        if op.options.get("beta", 1.0) != 1.0:
            raise Unreadable(f"its beta is {op.options['beta']:g}")
        rank = draft.tensor(slot(op, 0)).rank
        axis_in(-1, rank)
        mixes_batch(draft, rank == 1)
        layout, source = _source(draft, op)
        axis = 1 if layout is Layout.FIRST else rank - 1
        value = draft.node(op_type, [source], {"axis": axis, **attributes})
        finish(draft, op, value, layout)

    return read


def _reduction(op_type: str, *, moves: bool = False) -> Read:
    """MEAN, SUM, REDUCE_MAX and REDUCE_MIN."""

    def read(draft: Draft, op: Operator) -> None:
        index, keep = slot(op, 0), bool(op.options["keep_dims"])
        shape = draft.tensor(index).shape
        rank = len(shape)
        axes = sorted({axis_in(axis, rank) for axis in draft.list_of(slot(op, 1))})
        if not axes:
            raise Unreadable("it reduces no axis")
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
            raise Unreadable(f"its axes are {list(axes)}")
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


_UNARY = {
    "LOGISTIC": "Sigmoid",
    "TANH": "Tanh",
    "HARD_SWISH": "HardSwish",
    "ELU": "Elu",
    "EXP": "Exp",
    "LOG": "Log",
    "SQRT": "Sqrt",
    "ABS": "Abs",
    "NEG": "Neg",
    "SIN": "Sin",
    "COS": "Cos",
    "FLOOR": "Floor",
    "CEIL": "Ceil",
    "ROUND": "Round",
}

TABLE: dict[str, Read] = {
    **{name: _unary(op_type) for name, op_type in _UNARY.items()},
    "ADD": _binary("Add"),
    "SUB": _binary("Sub"),
    "MUL": _binary("Mul"),
    "DIV": _binary("Div"),
    "MAXIMUM": _binary("Max", moves=True),
    "MINIMUM": _binary("Min", moves=True),
    "SQUARED_DIFFERENCE": squared_difference,
    "SQUARE": square,
    "RELU": _clamp(Fused.RELU),
    "RELU6": _clamp(Fused.RELU6),
    "RELU_N1_TO_1": _clamp(Fused.RELU_N1_TO_1),
    "RELU_0_TO_1": relu_0_to_1,
    "LEAKY_RELU": leaky_relu,
    "PRELU": prelu,
    "GELU": gelu,
    "RSQRT": rsqrt,
    "SOFTMAX": _along_channels("Softmax", {}),
    "LOG_SOFTMAX": _along_channels("LogSoftmax", {}),
    "L2_NORMALIZATION": _along_channels("LpNormalization", {"p": 2}),
    "MEAN": _reduction("ReduceMean"),
    "SUM": _reduction("ReduceSum"),
    "REDUCE_MAX": _reduction("ReduceMax", moves=True),
    "REDUCE_MIN": _reduction("ReduceMin", moves=True),
    "ARG_MAX": _position("ArgMax"),
    "ARG_MIN": _position("ArgMin"),
}
