"""Finds constants that can be stored as integers for a node that computes in float."""

from __future__ import annotations

import onnx_ir as ir

from intact.graph.ops import input_value, is_constant
from intact.ops import IN_BLOCKS, RECURRENT, STORABLE
from intact.ops.operators import Gather, Gemm

_RECURRENT_SLOTS = (1, 2)
_GATE_ROWS = 1
"""The axis of ``W [dirs, gates * hidden, inputs]`` and ``R [dirs, gates * hidden, hidden]``; two
directions share the scales of equal rows."""

_SHORTEST_ROW = 16
"""Numbers of a table that one index selects. Of shorter ones a scale costs much of what codes save,
and such a table rather holds coordinates (anchors of a detector) than an embedding."""


def stored_weight_axes(node: ir.Node) -> dict[int, int]:
    """Return the input slots of constants that can be stored as integers, with channel axes.

    These are the weights of a recurrent operator and the table in which Gather looks up rows.
    """
    if node.domain != "" or node.op_type not in STORABLE:
        return {}
    if node.op_type in RECURRENT:
        shapes = {slot: _float_shape(node, slot) for slot in _RECURRENT_SLOTS}
        return {slot: _GATE_ROWS for slot, shape in shapes.items() if len(shape) == 3}
    shape = _float_shape(node, 0)
    if len(shape) < 2:
        return {}
    axis = Gather.of(node).axis % len(shape)
    row = 1
    for other, length in enumerate(shape):
        row *= 1 if other == axis else length
    return {0: axis} if row >= _SHORTEST_ROW else {}


def block_axes(node: ir.Node) -> dict[int, int]:
    """Return the input slots of constants that can be stored in blocks, with the axis of those.

    Blocks lie along what is summed: ``K`` of the right factor ``[K, N]`` of a product, or of the
    transposed one of Gemm; and along the rows of a table ``[rows, numbers]``.
    """
    if node.domain != "" or node.op_type not in IN_BLOCKS:
        return {}
    slot = 0 if node.op_type == Gather.name else 1
    if len(_float_shape(node, slot)) != _MATRIX:
        return {}
    data = input_value(node, 0)
    if slot == 0:
        return {0: 1} if Gather.of(node).axis in (0, -_MATRIX) else {}
    if node.op_type == Gemm.name:
        options = Gemm.of(node)
        # ONNX Runtime's operator of blocks (MatMulNBits) has no factors.
        is_plain = not options.transA and options.alpha == 1 and options.beta == 1
        return {1: 1 if options.transB else 0} if is_plain else {}
    is_vector = data is not None and data.shape is not None and len(data.shape) < _MATRIX
    return {} if is_vector else {1: 0}


_MATRIX = 2
"""Axes of a matrix."""


def _float_shape(node: ir.Node, slot: int) -> tuple[int, ...]:
    """Return the shape of a float32 constant with elements; empty for another input."""
    value = input_value(node, slot)
    if value is None or not is_constant(value) or value.const_value is None:
        return ()
    tensor = value.const_value
    if tensor.dtype is not ir.DataType.FLOAT or tensor.size == 0:
        return ()
    return tuple(int(length) for length in tensor.shape.numpy())
