"""Zeros that are joined to a tensor, as a Pad: for instance the channels that a shortcut lacks."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.graph.names import value_names
from intact.graph.ops import constant_array, is_constant
from intact.graph.passes.replace import add_constant
from intact.ops.operators import Concat


def write_zeros_as_pads(model: ir.Model) -> int:
    """Replace each Concat of one float32 tensor of known rank with constant zeros by a Pad.

    Returns:
        The number of changed nodes.
    """
    return sum(_pad(model.graph, node) for node in tuple(model.graph))


def _pad(graph: ir.Graph, node: ir.Node) -> bool:
    if node.domain != "" or node.op_type != "Concat":
        return False
    data = [value for value in node.inputs if not is_constant(value)]
    if len(data) != 1 or len(node.inputs) < 2 or data[0] is None or data[0].shape is None:
        return False
    if data[0].dtype is not ir.DataType.FLOAT:
        return False
    rank = len(data[0].shape)
    axis = Concat.of(node).axis
    position = node.inputs.index(data[0])
    added = [_zeros(value, axis) for value in node.inputs if value is not data[0]]
    if None in added:
        return False
    lengths = [length for length in added if length is not None]
    pads = np.zeros((2, rank), np.int64)
    pads[:, axis] = sum(lengths[:position]), sum(lengths[position:])
    listed = add_constant(graph, pads.reshape(-1), value_names(graph).fresh(f"{node.name}_pads"))
    node.resize_inputs(2)
    node.replace_input_with(0, data[0])
    node.replace_input_with(1, listed)
    node.op_type = "Pad"
    node.attributes.pop("axis")
    return True


def _zeros(value: ir.Value | None, axis: int) -> int | None:
    """Return the length of constant zeros along an axis; None for anything else, also for -0."""
    array = constant_array(value)
    if array is None or array.dtype != np.float32 or array.any() or np.signbit(array).any():
        return None
    return int(array.shape[axis])
