"""Edits a copy of a model: adds nodes, replaces values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir

from intact.graph.builder import GraphBuilder
from intact.graph.graph import IMPLICIT_SLOT
from intact.graph.names import Names
from intact.graph.traversal import graphs_of
from intact.ops.operators import Max


class Editor(GraphBuilder):
    """A builder inside a private copy of a model, with its nodes and values by name.

    Args:
        model: The model to copy; it is not changed.

    Attributes:
        model: The copy. Nodes that are added stand at the end until `finish` sorts them.
        nodes_by_name: The nodes that the model had.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model.clone()
        # A body may not reuse a name of the outer graph, and node names are unique.
        super().__init__(Names(n for graph in graphs_of(self.model) for n in _names(graph)))
        self.nodes_by_name = {str(node.name): node for node in self.model.graph}
        self._values = {
            str(v.name): v
            for v in (*self.model.graph.inputs, *self.model.graph.initializers.values())
        }
        self._values |= {str(v.name): v for node in self.model.graph for v in node.outputs}

    def value(self, name: str) -> ir.Value:
        """Return the copy's value of that name, or what was bound in its place.

        Raises:
            KeyError: There is no such value.
        """
        return self._values[name]

    def rebind(self, name: str, value: ir.Value) -> None:
        """Let ``value(name)`` give another value, which later readers of that name read."""
        self._values[name] = value

    def redirect(self, old: ir.Value, new: ir.Value, readers: Iterable[tuple[str, int]]) -> None:
        """Replace ``old`` by ``new`` at the inputs given as (node name, slot).

        A slot of ``IMPLICIT_SLOT`` means the bodies of If, Loop and Scan.
        """
        for name, slot in readers:
            if slot != IMPLICIT_SLOT:
                self.nodes_by_name[name].replace_input_with(slot, new)
                continue
            # A copy, because replacing an input changes what is walked through.
            for use in tuple(old.uses()):
                if use.node.graph is not self.model.graph:
                    use.node.replace_input_with(use.idx, new)

    def replace_output(self, old: ir.Value, new: ir.Value) -> None:
        """Replace the graph output ``old`` by ``new``, under the same name."""
        outputs = self.model.graph.outputs
        if not any(output is old for output in outputs):
            return
        name = str(old.name)
        old.name = self.names.fresh(f"{name}_float")
        new.name = name
        new.shape = new.shape or old.shape  # outputs of a model need a shape
        self._values[str(old.name)] = old
        self._values[name] = new
        for position, output in enumerate(outputs):
            if output is old:
                outputs[position] = new

    def put_in_place(self, node: ir.Node, result: ir.Value) -> None:
        """Replace a node and its only output by a value, which takes the name."""
        self.put_results_in_place(node, [result])

    def put_results_in_place(self, node: ir.Node, results: Sequence[ir.Value | None]) -> None:
        """Replace a node and its outputs by values, which take the names; None for one unread."""
        pairs = [(old, new) for old, new in zip(node.outputs, results, strict=False) if new]
        names = [old.name for old, _ in pairs]
        for old, new in pairs:
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        self.model.graph.remove(node, safe=True)
        # Named only now: two values of one graph may not share a name.
        for name, (old, new) in zip(names, pairs, strict=True):
            new.name, new.type = name, old.type if old.type is not None else new.type
            new.shape = old.shape if old.shape is not None else new.shape
            self.rebind(str(name), new)

    def kept(self, value: ir.Value) -> ir.Value:
        """Add a maximum of a float value and the lowest number of its type.

        No number changes, and no runtime fuses across it or moves a quantizer through it.
        """
        dtype = value.dtype or ir.DataType.FLOAT
        least = ml_dtypes.finfo(dtype.numpy()).min  # type: ignore[no-untyped-call]
        lowest = self._once(("lowest", dtype), lambda: np.array(least, dtype.numpy()))
        return self.node(Max, [value, lowest], f"{value.name}_kept", dtype=dtype, shape=value.shape)

    def finish(self) -> ir.Model:
        """Sort the nodes topologically, drop constants that nothing reads, return the model."""
        graph = self.model.graph
        graph.sort()
        for name, value in list(graph.initializers.items()):
            # An initializer that is also an input belongs to the model's interface.
            if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
                del graph.initializers[name]
        return self.model

    def _add_input(self, value: ir.Value) -> None:
        self.model.graph.inputs.append(value)
        self._values[str(value.name)] = value

    def _add_node(self, node: ir.Node) -> None:
        self.model.graph.append(node)
        self._values.update({str(value.name): value for value in node.outputs})

    def _add_initializer(self, value: ir.Value) -> None:
        self.model.graph.register_initializer(value)
        self._values[str(value.name)] = value


def _names(graph: ir.Graph) -> Iterator[str]:
    """Yield every name in a graph: of nodes, inputs, constants and node outputs."""
    for node in graph:
        yield from (str(node.name), *(str(value.name) for value in node.outputs))
    for value in (*graph.inputs, *graph.initializers.values()):
        yield str(value.name)
