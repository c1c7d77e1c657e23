"""Weights that a model fills with one number when it runs become constants.

Models whose weights were taken out to save room make them by ConstantOfShape. To a quantiser they
are weights like any others; other results of ConstantOfShape stay as they are, unless they are
small, because an initialiser takes more room.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from intact.graph.ops import Role, constant_array, input_value, moves_values, op_spec
from intact.graph.passes.replace import add_constant

_SMALL = 1 << 12
"""Elements of a result that is filled in whatever reads it."""

MOST_FILLED = 1 << 28
"""Elements of all results together, as a few bytes may ask for any number: 1 GiB of float32, twice
what the largest image classifiers have."""


def fill_weights(model: ir.Model, room: int) -> int:
    """Compute ConstantOfShape nodes that are small or make weights.

    Args:
        model: The model; it is changed in place.
        room: The most elements that all of them may have together.

    Returns:
        The elements that were filled in, at least one for each node.
    """
    left = room
    for node in tuple(model.graph):
        sizes = _sizes(node)
        if sizes is None:
            continue
        elements = max(1, math.prod(sizes))
        if elements <= (left if _is_weight(node.outputs[0]) else min(left, _SMALL)):
            _fill(model.graph, node, sizes)
            left -= elements
    return room - left


def _sizes(node: ir.Node) -> tuple[int, ...] | None:
    """Return the known shape that a ConstantOfShape makes; None where it has to stay."""
    if node.domain != "" or node.op_type != "ConstantOfShape":
        return None
    shape = constant_array(input_value(node, 0))
    if shape is None or shape.ndim != 1 or (shape < 0).any() or node.outputs[0].is_graph_output():
        return None
    return tuple(int(size) for size in shape)


def _fill(graph: ir.Graph, node: ir.Node, sizes: tuple[int, ...]) -> None:
    result = node.outputs[0]
    name, number = str(result.name), _number(node)
    result.name = None  # free for the constant
    constant = add_constant(graph, np.full(sizes, number), name)
    result.replace_all_uses_with(constant)
    graph.remove(node, safe=True)


def _is_weight(value: ir.Value) -> bool:
    """Whether a value is read as a weight, perhaps after a Reshape or Transpose."""
    ahead = [value]
    while ahead:
        for node, slot in ahead.pop().uses():
            spec = op_spec(node)
            if spec is not None and spec.role(slot) is Role.WEIGHT:
                return True
            if slot == 0 and moves_values(node):
                ahead.append(node.outputs[0])
    return False


def _number(node: ir.Node) -> np.generic:
    """Return the number that fills the tensor, in its type; float32 zero where none is given."""
    attribute = node.attributes.get("value")
    array = None if attribute is None else attribute.as_tensor().numpy().reshape(-1)
    return np.float32(0) if array is None or array.size != 1 else array[0]
