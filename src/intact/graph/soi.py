"""Shape-or-index closure: the values that must never be quantized.

Integers, booleans and strings are shapes or indices by type. A float is one when everything that
becomes of it ends in shapes or indices (a resize factor computed in float, the scores of a
routing ArgMax), as PPQ's SOI state has it.
"""

from __future__ import annotations

import onnx_ir as ir

from intact.graph.graph import IMPLICIT_SLOT, Graph
from intact.graph.ops import OpKind, Role, input_role, op_spec


def shape_or_index_values(graph: Graph) -> frozenset[str]:
    """Return the names of the values that hold shapes or indices, or lead to nothing else.

    Graph outputs, inputs of compute nodes and inputs of unknown operators are never found by what
    becomes of them; only by their type.
    """
    ends_in_shape: set[ir.Value] = set()
    for value in reversed(graph.values):
        readers = graph.consumers(value)
        if value.is_graph_output() or not readers:
            continue
        if all(_leads_to_shape(node, slot, ends_in_shape) for node, slot in readers):
            ends_in_shape.add(value)
    names = (value.name for value in graph.values if value in ends_in_shape or _not_float(value))
    return frozenset(name for name in names if name)


def _not_float(value: ir.Value) -> bool:
    return value.dtype is not None and not Graph.is_float(value)


def _leads_to_shape(node: ir.Node, slot: int, ends_in_shape: set[ir.Value]) -> bool:
    spec = op_spec(node)
    if slot == IMPLICIT_SLOT or spec is None:
        return False
    if input_role(node, slot) is Role.SHAPE:
        return True
    if spec.kind is OpKind.COMPUTE:
        return False
    used = [value for value in node.outputs if value.uses() or value.is_graph_output()]
    return bool(used) and all(value in ends_in_shape for value in used)
