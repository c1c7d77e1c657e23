"""Replaces values and constants of a graph: small edits that several passes use."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.graph.names import value_names
from intact.graph.ops import input_value


def add_constant(graph: ir.Graph, array: np.ndarray, name: str) -> ir.Value:
    """Add an initializer; the name must be unused."""
    tensor = ir.Tensor(array, name=name)
    value = ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(array.shape),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value


def replace_constant(
    graph: ir.Graph, node: ir.Node, slot: int, array: np.ndarray, name: str
) -> None:
    """Replace the constant at an input slot of a node.

    The new constant takes the name of the old one if nothing else reads it. Otherwise it gets the
    given name, and the other readers keep the old constant.
    """
    old = input_value(node, slot)
    if slot >= len(node.inputs):
        node.resize_inputs(slot + 1)
    if old is not None and old.name and len(old.uses()) == 1 and not old.is_graph_output():
        node.replace_input_with(slot, None)
        # Taken out before the new one comes in, which has the same name.
        del graph.initializers[old.name]
        node.replace_input_with(slot, add_constant(graph, array, old.name))
    else:
        new = add_constant(graph, array, value_names(graph).fresh(name))
        node.replace_input_with(slot, new)


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Replace a value by an equal one: its readers, graph output and name."""
    name = old.name
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name = None
    new.name = name
    new.shape = old.shape if old.shape is not None else new.shape
    new.type = old.type if old.type is not None else new.type
