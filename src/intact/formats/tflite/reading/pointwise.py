"""Operators element by element, along the channels, and reductions."""

from __future__ import annotations

from collections.abc import Mapping

from intact.errors import Unsupported
from intact.formats.tflite.reading.canvas import Attribute, Operand
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
from intact.formats.tflite.reading.draft import Draft
from intact.formats.tflite.reading.file import Operator
from intact.formats.tflite.reading.layouts import Layout
from intact.formats.tflite.reading.schema import Fused

_GELU_OPSET = 20


def _operands(draft: Draft, op: Operator) -> tuple[Layout, list[Operand]]:
    """Return two operands that broadcast to the output, in one layout."""
    indices = [slot(op, 0), slot(op, 1)]
    broadcast(draft, op, *(draft.tensor(index).shape for index in indices))
    rank = draft.tensor(op.outputs[0]).rank
    computed = [index for index in indices if not draft.is_constant(index)]
    if not computed:
        raise Unsupported("all its inputs are constants")
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
        draft.write(op.outputs[0], clamped(draft, source, activation), layout)

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
        raise Unsupported(f"its slope is {alpha}")
    layout, source = _source(draft, op)
    draft.write(op.outputs[0], draft.node("LeakyRelu", [source], {"alpha": alpha}), layout)


def prelu(draft: Draft, op: Operator) -> None:
    """PRELU with a stored slope."""
    layout, source = _source(draft, op)
    index = slot(op, 1)
    if not draft.is_constant(index):
        raise Unsupported("its slope is computed")
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
            raise Unsupported(f"its beta is {op.options['beta']:g}")
        rank = draft.tensor(slot(op, 0)).rank
        axis_in(-1, rank)
        mixes_batch(draft, rank == 1)
        layout, source = _source(draft, op)
        axis = 1 if layout is Layout.FIRST else rank - 1
        value = draft.node(op_type, [source], {"axis": axis, **attributes})
        finish(draft, op, value, layout)

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
}
