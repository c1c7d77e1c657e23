"""Taking FakeQuantize out of a model, and noting where each was."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from intact.errors import ConfigError, DataError
from intact.formats.graph_edits import GraphEdits
from intact.formats.openvino.reading.parameters import (
    Parameters,
    is_fake_quantize,
    read_parameters,
    refusal,
)
from intact.formats.read_points import ReadPoint
from intact.graph import is_constant
from intact.graph.passes.replace import add_constant
from intact.numerics.affine import dequantize, quantize
from intact.plan import Codes, TensorEnd


@dataclass
class _Group:
    """The quantisers that do the same to one value."""

    parameters: Parameters
    nodes: list[ir.Node] = field(default_factory=list)


def strip_fake_quantize(model: ir.Model) -> list[ReadPoint]:
    """Take every FakeQuantize out of the main graph, in place.

    A constant behind one becomes the numbers that its codes stand for. Where a plan has no end for
    a quantiser (a tensor quantised twice in a row, or for a graph output only) an Identity makes
    one.

    Returns:
        The points, in the order of their values.

    Raises:
        ModelError: A node cannot be read; it is named.
    """
    return _Stripper(model.graph).run()


class _Stripper:
    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._edits = GraphEdits(graph)
        self._points: list[ReadPoint] = []
        self._read: dict[ir.Node, Parameters] = {}

    def run(self) -> list[ReadPoint]:
        nodes = tuple(self._graph)
        for node in nodes:
            if is_fake_quantize(node):
                self._read[node] = read_parameters(node)
        for node in nodes:
            if node in self._read:
                self._part(node)
        values = [*self._graph.inputs, *self._graph.initializers.values()]
        values += [value for node in tuple(self._graph) for value in node.outputs]
        for value in values:
            self._strip_value(value)
        return self._points

    def _part(self, node: ir.Node) -> None:
        """Put an Identity between two quantisers in a row."""
        value = node.inputs[0]
        before = None if value is None else value.producer()
        if value is not None and before is not None and before in self._read:
            node.replace_input_with(0, self._edits.identity(value, node))

    def _strip_value(self, value: ir.Value) -> None:
        groups: list[_Group] = []
        for node, slot in value.uses():
            if slot != 0 or node not in self._read:
                continue
            parameters = self._read[node]
            group = next((each for each in groups if each.parameters.equals(parameters)), None)
            if group is None:
                group = _Group(parameters)
                groups.append(group)
            group.nodes.append(node)
        for group in groups:
            if is_constant(value):
                self._strip_constant(value, group)
            else:
                self._strip_activation(value, group)

    def _strip_constant(self, value: ir.Value, group: _Group) -> None:
        """Put the numbers on the grid in the place of a quantised constant."""
        tensor, parameters = value.const_value, group.parameters
        if tensor is None:
            return
        try:
            codes = quantize(
                tensor.numpy(),
                *parameters.params,
                parameters.quant_min,
                parameters.quant_max,
                axis=parameters.axis,
            )
        except (ConfigError, DataError) as error:
            raise refusal(group.nodes[0], str(error)) from error
        numbers = dequantize(codes, *parameters.params, axis=parameters.axis)
        name = self._edits.fresh(str(value.name).removesuffix("_on_grid"))
        constant = add_constant(self._graph, numbers, name)
        readers = self._hand_over(group, constant)
        self._note(parameters.narrowed(codes), readers, codes.astype(parameters.dtype))

    def _strip_activation(self, value: ir.Value, group: _Group) -> None:
        """Let the readers of a quantised value read the value itself."""
        outputs = [node.outputs[0] for node in group.nodes]
        alone = not value.is_graph_output() and len(value.uses()) == len(group.nodes)
        hidden = any(
            output.is_graph_output()
            or any(use.node.graph is not self._graph for use in output.uses())
            for output in outputs
        )
        if value.producer() is None or not alone:
            if not hidden:
                self._note(group.parameters, self._hand_over(group, value))
                return
            value = self._edits.identity(value, group.nodes[0])
        self._hand_over(group, value)
        node = value.producer()
        if node is not None:
            end = TensorEnd.output(str(node.name), value.index() or 0)
            self._points.append(ReadPoint(group.parameters, (end,)))

    def _hand_over(self, group: _Group, value: ir.Value) -> list[tuple[ir.Node, int]]:
        """Take a group out, let a value stand for its results; return who reads them."""
        readers = []
        for node in group.nodes:
            result = node.outputs[0]
            readers += self._edits.readers(result)
            if result.is_graph_output():
                if is_constant(value) or value.is_graph_output():
                    self._edits.copy(result, value)
                else:
                    self._edits.take_place(result, value)
            result.replace_all_uses_with(value)
            self._graph.remove(node, safe=True)
        return readers

    def _note(
        self,
        parameters: Parameters,
        readers: list[tuple[ir.Node, int]],
        codes: Codes | None = None,
    ) -> None:
        if readers:
            ends = tuple(TensorEnd.input(str(node.name), slot) for node, slot in readers)
            self._points.append(ReadPoint(parameters, ends, codes))
