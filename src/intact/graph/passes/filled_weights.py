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
_LARGEST = 1 << 27
"""Elements: half a GiB of float32, the largest weights of image classifiers."""


def fill_weights(model: ir.Model) -> int:
    """Compute ConstantOfShape nodes that are small or make weights; return how many."""
    return sum(_fill(model.graph, node) for node in tuple(model.graph))


def _fill(graph: ir.Graph, node: ir.Node) -> bool:
    if node.domain != "" or node.op_type != "ConstantOfShape":
        return False
    shape, result = constant_array(input_value(node, 0)), node.outputs[0]
    if shape is None or shape.ndim != 1 or (shape < 0).any() or result.is_graph_output():
        return False
    sizes = tuple(int(size) for size in shape)
    elements = math.prod(sizes)
    if elements > (_LARGEST if _is_weight(result) else _SMALL):
        return False
    name, number = str(result.name), _number(node)
    result.name = None  # free for the constant
    constant = add_constant(graph, np.full(sizes, number), name)
    result.replace_all_uses_with(constant)
    graph.remove(node, safe=True)
    return True


def _is_weight(value: ir.Value) -> bool:
    """Whether a value is read as a weight, perhaps after a Reshape or Transpose."""
    for use in value.uses():
        spec = op_spec(use.node)
        if spec is None:
            continue
        is_moved = use.idx == 0 and moves_values(use.node)
        if spec.role(use.idx) is Role.WEIGHT or (is_moved and _is_weight(use.node.outputs[0])):
            return True
    return False


def _number(node: ir.Node) -> np.generic:
    """Return the number that fills the tensor, in its type; float32 zero where none is given."""
    attribute = node.attributes.get("value")
    array = None if attribute is None else attribute.as_tensor().numpy().reshape(-1)
    return np.float32(0) if array is None or array.size != 1 else array[0]
