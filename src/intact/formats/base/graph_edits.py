"""Edits of a model that is being read: names, copies, and who takes the place of an output."""

from __future__ import annotations

import onnx_ir as ir

from intact.graph.names import Names


class GraphEdits:
    """Small edits of one graph, in place, under names that it does not have yet."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        made = (value for node in graph for value in node.outputs)
        values = (*graph.inputs, *graph.initializers.values(), *made)
        self.names = Names([*(value.name for value in values), *(node.name for node in graph)])

    def identity(self, value: ir.Value, before: ir.Node) -> ir.Value:
        """Insert an Identity of a value and return its output."""
        node = ir.Node("", "Identity", [value], num_outputs=1)
        result = node.outputs[0]
        node.name = result.name = self.names.fresh(f"{value.name}_again")
        result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), value.shape
        self.graph.insert_before(before, node)
        return result

    def copy(self, port: ir.Value, value: ir.Value) -> ir.Value:
        """Make an Identity of a value the graph output that ``port`` was, and return it."""
        node = ir.Node("", "Identity", [value], num_outputs=1)
        node.name = self.names.fresh(f"{port.name}_copy")
        self.graph.append(node)
        result = node.outputs[0]
        result.type = port.type
        self.take_place(port, result)
        return result

    def take_place(self, port: ir.Value, value: ir.Value) -> None:
        """Give a value the name, shape and place of a graph output."""
        name, port.name = port.name, None
        value.name = name
        value.shape = port.shape or value.shape
        outputs = self.graph.outputs
        for position, output in enumerate(outputs):
            if output is port:
                outputs[position] = value

    def readers(self, value: ir.Value) -> list[tuple[ir.Node, int]]:
        """Return node and slot of each reader in the graph itself, without bodies."""
        return [(node, slot) for node, slot in value.uses() if node.graph is self.graph]
