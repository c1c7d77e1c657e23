"""Edits of a cloned model: putting a computed value in the place of another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from intact.graph.graph import IMPLICIT_SLOT


class Editor:
    """A private copy of a graph's model, with its nodes and values by name.

    Args:
        model: The model to copy; it is not touched.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model.clone()
        self.nodes = {str(node.name): node for node in self.model.graph}
        self._values = {
            str(v.name): v
            for v in (*self.model.graph.inputs, *self.model.graph.initializers.values())
        }
        self._values |= {str(v.name): v for node in self.model.graph for v in node.outputs}
        # A body may not reuse a name of its surroundings, and no two nodes may share one.
        self._taken = {name for graph in self.model.graphs() for name in _names(graph)}

    def value(self, name: str) -> ir.Value:
        """Return the copy's value of that name, or what was bound in its place.

        Raises:
            KeyError: There is none.
        """
        return self._values[name]

    def rebind(self, name: str, value: ir.Value) -> None:
        """Let ``value(name)`` return another value: what later readers of that name see."""
        self._values[name] = value

    def fresh_name(self, name: str) -> str:
        """Return ``name``, with a number where the model has it already."""
        candidate, count = name, 1
        while candidate in self._taken:
            count += 1
            candidate = f"{name}_{count}"
        return candidate

    def initializer(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Add a constant under a fresh name and return its value."""
        fresh = self.fresh_name(name)
        tensor.name = fresh
        value = ir.Value(
            name=fresh,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        self.model.graph.register_initializer(value)
        self._keep(value)
        return value

    def input(self, name: str, dtype: ir.DataType, shape: Iterable[int | str | None]) -> ir.Value:
        """Add a graph input under a fresh name and return its value."""
        value = ir.Value(
            name=self.fresh_name(name), shape=ir.Shape(list(shape)), type=ir.TensorType(dtype)
        )
        self.model.graph.inputs.append(value)
        self._keep(value)
        return value

    def node(
        self,
        op_type: str,
        inputs: Iterable[ir.Value | None],
        name: str,
        attributes: dict[str, int | float | str] | None = None,
        dtype: ir.DataType = ir.DataType.FLOAT,
        shape: ir.Shape | None = None,
        domain: str = "",
    ) -> ir.Value:
        """Add a node with one output and return that output; call ``finish`` to sort it in."""
        fresh = self.fresh_name(name)
        node = ir.node(op_type, list(inputs), attributes or {}, name=fresh, domain=domain)
        output = node.outputs[0]
        output.name, output.type, output.shape = fresh, ir.TensorType(dtype), shape
        self.model.graph.append(node)
        self._keep(output)
        return output

    def redirect(self, old: ir.Value, new: ir.Value, readers: Iterable[tuple[str, int]]) -> None:
        """Let the (node name, slot) readers of ``old`` read ``new``.

        A slot of ``IMPLICIT_SLOT`` stands for the bodies of If, Loop and Scan.
        """
        for name, slot in readers:
            if slot != IMPLICIT_SLOT:
                self.nodes[name].replace_input_with(slot, new)
                continue
            for use in tuple(old.uses()):
                if use.node.graph is not self.model.graph:
                    use.node.replace_input_with(use.idx, new)

    def take_over_output(self, old: ir.Value, new: ir.Value) -> None:
        """Make ``new`` the graph output that ``old`` was, under the same name."""
        outputs = self.model.graph.outputs
        if not any(output is old for output in outputs):
            return
        name = str(old.name)
        old.name = self.fresh_name(f"{name}_float")
        new.name = name
        new.shape = new.shape or old.shape  # outputs of a model have to tell
        self._keep(old)
        self._values[name] = new
        for position, output in enumerate(outputs):
            if output is old:
                outputs[position] = new

    def finish(self) -> ir.Model:
        """Sort the nodes topologically, drop constants that nothing reads, return the model."""
        graph = self.model.graph
        graph.sort()
        for name, value in list(graph.initializers.items()):
            if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
                del graph.initializers[name]
        return self.model

    def _keep(self, value: ir.Value) -> None:
        name = str(value.name)
        self._values[name] = value
        self._taken.add(name)


def _names(graph: ir.Graph) -> Iterator[str]:
    """Yield every name of one graph: of nodes, inputs, constants and results."""
    for node in graph:
        yield from (str(node.name), *(str(value.name) for value in node.outputs))
    for value in (*graph.inputs, *graph.initializers.values()):
        yield str(value.name)
