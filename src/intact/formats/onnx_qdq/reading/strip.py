"""Taking QuantizeLinear and DequantizeLinear out of a model, and noting where they were.

What is left is a float model; what is noted are *points*: the ends of one tensor that the pairs
quantised, with their scales. Where a plan has no end for a pair (a tensor quantised twice in a row,
or on the way to a graph output only) an Identity makes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from intact.formats.graph_edits import GraphEdits
from intact.formats.onnx_qdq.reading.parameters import (
    ONLY_KNOWN,
    Parameters,
    is_dequantize,
    is_quantize,
    read_parameters,
    refusal,
)
from intact.formats.onnx_qdq.reading.stored import lift_constants
from intact.formats.read_points import ReadPoint
from intact.plan import Codes, TensorEnd


def strip_pairs(model: ir.Model) -> list[ReadPoint]:
    """Take every pair out of the main graph, in place; QOperators must be expanded already.

    A QuantizeLinear or DequantizeLinear between the model's own integer ports and its floats
    stays: the model is called as before.

    Returns:
        The points, constants last.

    Raises:
        ModelError: A node cannot be read; it is named.
    """
    return _Stripper(model).run()


@dataclass
class _Group:
    """The QuantizeLinear nodes that do the same to one value, by the same initialisers.

    Equal numbers do not make one of two: ONNX Runtime 1.31 keeps them apart, turns int8 into uint8
    only where one DequantizeLinear reads the codes, and rounds ties in an Add otherwise then.
    """

    parameters: Parameters
    nodes: list[ir.Node] = field(default_factory=list)

    def takes(self, node: ir.Node, parameters: Parameters) -> bool:
        """Tell whether a QuantizeLinear belongs to the group."""
        same = tuple(self.nodes[0].inputs) == tuple(node.inputs)
        return same and self.parameters.equals(parameters)


class _Stripper:
    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._edits = GraphEdits(model.graph)
        self._points: list[ReadPoint] = []

    def run(self) -> list[ReadPoint]:
        for node in self._graph:
            if is_quantize(node) or is_dequantize(node):
                _check_ports(node)
        constants = lift_constants(self._edits)
        for node in tuple(self._graph):
            if is_quantize(node):
                self._separate(node)
        nodes = tuple(self._graph)
        for value in (*self._graph.inputs, *(v for node in nodes for v in node.outputs)):
            self._strip_value(value)
        for node in nodes:
            if is_dequantize(node) and node.graph is not None:
                self._keep_port(node)
        for each in constants:
            self._note(each.parameters, self._edits.readers(each.value), each.codes)
        return self._points

    def _separate(self, node: ir.Node) -> None:
        """Part a QuantizeLinear from the DequantizeLinear before it, or see that it is the same."""
        value = node.inputs[0]
        before = None if value is None else value.producer()
        if value is None or before is None or not is_dequantize(before):
            return
        codes = before.inputs[0]
        again = read_parameters(node).equals(read_parameters(before))
        is_port = node.outputs[0].is_graph_output()
        if again and not is_port and codes is not None and _is_made_by_quantize(codes):
            node.outputs[0].replace_all_uses_with(codes)
            self._graph.remove(node, safe=True)
            return
        node.replace_input_with(0, self._edits.identity(value, node))

    def _strip_value(self, value: ir.Value) -> None:
        """Let the readers of a value's dequantised codes read the value itself."""
        groups: list[_Group] = []
        for node, slot in value.uses():
            if slot != 0 or node.graph is not self._graph or not is_quantize(node):
                continue
            parameters = read_parameters(node)
            group = next((each for each in groups if each.takes(node, parameters)), None)
            if group is None:
                group = _Group(parameters)
                groups.append(group)
            group.nodes.append(node)
        for group in groups:
            self._strip_group(value, group)

    def _strip_group(self, value: ir.Value, group: _Group) -> None:
        results = [result for node in group.nodes for result in self._dequantized(node, group)]
        ports = [result for result in results if result.is_graph_output()]
        kept = [node for node in group.nodes if node.outputs[0].is_graph_output()]
        if not (any(result.uses() for result in results) or ports or kept):
            return
        alone = not value.is_graph_output() and len(value.uses()) == len(group.nodes)
        in_body = any(use.node.graph is not self._graph for r in results for use in r.uses())
        if value.producer() is None or not alone:
            if not (ports or in_body):
                readers = [(node, 0) for node in kept]
                for result in results:
                    readers += self._edits.readers(result)
                    result.replace_all_uses_with(value)
                self._note(group.parameters, readers)
                return
            value = self._edits.identity(value, group.nodes[0])
            for node in kept:
                node.replace_input_with(0, value)
        self._note_output(value, group.parameters)
        for result in results:
            if ports and result is ports[0]:
                self._edits.take_place(result, value)
            elif result in ports:
                self._edits.copy(result, value)
            result.replace_all_uses_with(value)

    def _dequantized(self, node: ir.Node, group: _Group) -> Iterator[ir.Value]:
        """Yield what reads the codes of a QuantizeLinear as numbers again."""
        for reader, _ in node.outputs[0].uses():
            if not is_dequantize(reader) or reader.graph is not self._graph:
                raise refusal(
                    reader,
                    f"it computes on the codes of {node.outputs[0].name!r}",
                    ONLY_KNOWN,
                )
            if not read_parameters(reader).equals(group.parameters):
                raise refusal(
                    reader, f"it reads the codes of {node.name!r} with another scale than theirs"
                )
            yield reader.outputs[0]

    def _keep_port(self, node: ir.Node) -> None:
        """Keep what turns an integer graph input into numbers, and see their grid."""
        codes = node.inputs[0]
        if codes is None or not codes.uses() or _is_made_by_quantize(codes):
            return
        maker = codes.producer()
        if maker is not None:
            reason = f"it reads integers that node {maker.name!r} ({maker.op_type}) computes"
            raise refusal(node, reason, ONLY_KNOWN)
        parameters = read_parameters(node)
        if parameters.axis is None and parameters.container.data_type.bitwidth < 32:
            self._note_output(node.outputs[0], parameters)

    def _note(
        self,
        parameters: Parameters,
        readers: list[tuple[ir.Node, int]],
        codes: Codes | None = None,
    ) -> None:
        if not readers:
            return
        ends = tuple(TensorEnd.input(str(node.name), slot) for node, slot in readers)
        self._points.append(ReadPoint(parameters, ends, codes))

    def _note_output(self, value: ir.Value, parameters: Parameters) -> None:
        node = value.producer()
        if node is not None:
            end = TensorEnd.output(str(node.name), value.index() or 0)
            self._points.append(ReadPoint(parameters, (end,)))


def _check_ports(node: ir.Node) -> None:
    """Refuse a node that is not even one by its inputs and outputs; ONNX files are not checked."""
    if len(node.inputs) not in (2, 3) or len(node.outputs) != 1 or node.inputs[0] is None:
        raise refusal(node, f"it has {len(node.inputs)} inputs and {len(node.outputs)} outputs")


def _is_made_by_quantize(codes: ir.Value) -> bool:
    node = codes.producer()
    return node is not None and is_quantize(node)
