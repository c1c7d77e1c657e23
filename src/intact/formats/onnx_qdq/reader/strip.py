"""Takes QuantizeLinear and DequantizeLinear out of a model, and notes where they were.

What is left is a float model; what is noted are *points*: the ends of one tensor that the pairs
quantized, with their scales. Where a plan has no end for a pair (a tensor quantized twice in a row,
or on the way to a graph output only) an Identity makes one. A Relu that only a zero point stood for
is put back (`intact.formats.base.clamps`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import onnx_ir as ir

from intact.errors import ConfigError, DataError
from intact.formats.base.clamps import Clamps
from intact.formats.base.read_points import GraphEdits, ReadPoint
from intact.formats.onnx_qdq.reader.parameters import (
    ONLY_KNOWN,
    Parameters,
    is_dequantize,
    is_quantize,
    read_parameters,
    unreadable,
)
from intact.graph import is_constant
from intact.graph.passes.replace import add_constant
from intact.numerics.affine import dequantize, quantize
from intact.ops.operators import Transpose
from intact.plan import Codes, TensorEnd


@dataclass(frozen=True, eq=False)
class StoredConstant:
    """A float constant in the place of integers.

    Attributes:
        value: The constant.
        parameters: How its numbers follow from the integers.
        codes: The integers.
    """

    value: ir.Value
    parameters: Parameters
    codes: Codes


def lift_constants(edits: GraphEdits) -> list[StoredConstant]:
    """Put numbers in the place of every stored integer tensor that is dequantized, in place.

    Float constants that are quantized first are stored as integers before.

    Raises:
        ModelError: A node cannot be read; it is named.
    """
    return list(_Lift(edits).run())


class _Lift:
    def __init__(self, edits: GraphEdits) -> None:
        self._edits = edits
        self._graph = edits.graph
        self._found: dict[int, list[StoredConstant]] = {}

    def run(self) -> Iterator[StoredConstant]:
        """Edit the graph, then yield what was found."""
        for node in tuple(self._graph):  # in order: a dequantized constant may be quantized again
            if is_quantize(node) and is_constant(node.inputs[0]):
                self._store(node)
            elif is_dequantize(node) and is_constant(node.inputs[0]):
                self._make_constant(node)
        # Behind the first walk, so that transposes of what it made are seen as well.
        by_value = {each.value: each for same in self._found.values() for each in same}
        for node in tuple(self._graph):
            found = by_value.get(node.inputs[0]) if node.inputs and node.inputs[0] else None
            if node.op_type == Transpose.name and node.domain == "" and found is not None:
                self._transpose(node, found)
        for same in self._found.values():
            yield from same

    def _store(self, node: ir.Node) -> None:
        """Quantize a float constant once and for all, as ONNX Runtime does before it runs."""
        parameters, value = read_parameters(node), node.inputs[0]
        if value is None or value.const_value is None:
            return
        container = parameters.container
        try:
            codes = quantize(
                value.const_value.numpy(),
                parameters.scale,
                parameters.zero_point,
                parameters.quant_min,
                parameters.quant_max,
                axis=parameters.axis,
            )
        except (ConfigError, DataError) as error:
            raise unreadable(node, str(error)) from error
        stored = add_constant(
            self._graph,
            codes.astype(container.numpy),
            self._edits.names.fresh(f"{str(value.name).removesuffix('_on_grid')}_quantized"),
        )
        node.outputs[0].replace_all_uses_with(stored, replace_graph_outputs=True)
        self._graph.remove(node, safe=True)
        # Float weights of a large model would be held twice.
        if not value.uses() and not value.is_graph_output():
            del self._graph.initializers[str(value.name)]
            self._edits.names.discard(value.name)

    def _make_constant(self, node: ir.Node) -> None:
        """Put the numbers in the place of stored integers; equal ones are shared."""
        parameters, value = read_parameters(node), node.inputs[0]
        if value is None or value.const_value is None:
            return
        # By identity, since a value's name may change on the way.
        same = self._found.setdefault(id(value), [])
        found = next((c for c in same if c.parameters.equals(parameters)), None)
        if found is None:
            codes = value.const_value.numpy().astype(parameters.container.codes)
            numbers = dequantize(
                codes, parameters.scale, parameters.zero_point, axis=parameters.axis
            )
            name = self._name_of_numbers(value)
            found = StoredConstant(add_constant(self._graph, numbers, name), parameters, codes)
            same.append(found)
        result = node.outputs[0]
        if result.is_graph_output():
            self._edits.copy(result, found.value)
        result.replace_all_uses_with(found.value)
        self._graph.remove(node, safe=True)

    def _transpose(self, node: ir.Node, found: StoredConstant) -> None:
        """Store a constant as it is read: PyTorch transposes the weight of a dense layer."""
        if node.outputs[0].is_graph_output():
            return
        rank = found.codes.ndim
        order = node.attributes.get_ints("perm") or range(rank)[::-1]
        if sorted(order) != list(range(rank)):
            raise unreadable(node, f"its perm is {list(order)}")
        axis = found.parameters.axis
        parameters = msgspec.structs.replace(
            found.parameters, axis=None if axis is None else list(order).index(axis)
        )
        codes = np.ascontiguousarray(found.codes.transpose(order))
        numbers = dequantize(codes, parameters.scale, parameters.zero_point, axis=parameters.axis)
        name = self._edits.names.fresh(f"{found.value.name}_transposed")
        constant = add_constant(self._graph, numbers, name)
        self._found[id(constant)] = [StoredConstant(constant, parameters, codes)]
        node.outputs[0].replace_all_uses_with(constant)
        self._graph.remove(node, safe=True)

    def _name_of_numbers(self, codes: ir.Value) -> str:
        """Return a name for the numbers of stored integers, which may leave them theirs."""
        name = str(codes.name)
        if name.endswith("_quantized"):
            return self._edits.names.fresh(name.removesuffix("_quantized"))
        if not codes.is_graph_output():
            codes.name = self._edits.names.fresh(f"{name}_quantized")
            self._edits.names.discard(name)
        return self._edits.names.fresh(name)


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
    """The QuantizeLinear nodes that do the same to one value, by the same initializers.

    Equal numbers do not make one of two: ONNX Runtime 1.31 keeps them apart, turns int8 into uint8
    only where one DequantizeLinear reads the codes, and rounds ties in an Add otherwise then.
    """

    parameters: Parameters
    nodes: list[ir.Node] = field(default_factory=list)

    def takes(self, node: ir.Node, parameters: Parameters) -> bool:
        """Check whether a QuantizeLinear belongs to the group."""
        same = tuple(self.nodes[0].inputs) == tuple(node.inputs)
        return same and self.parameters.equals(parameters)


class _Stripper:
    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._edits = GraphEdits(model.graph)
        self._clamps = Clamps(self._edits)
        self._points: list[ReadPoint] = []

    def run(self) -> list[ReadPoint]:
        for node in self._graph:
            if is_quantize(node) or is_dequantize(node):
                _check_ports(node)
        # Constants first: what is left of pairs then lies on activations.
        constants = lift_constants(self._edits)
        for node in tuple(self._graph):
            if is_quantize(node):
                self._separate(node)
        nodes = tuple(self._graph)
        for value in (*self._graph.inputs, *(v for node in nodes for v in node.outputs)):
            # From inputs to outputs, as `Clamps` learns on the way what is never negative.
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
        # Quantizing numbers of a grid to the same grid gives the same codes.
        if again and not is_port and codes is not None and _is_made_by_quantize(codes):
            node.outputs[0].replace_all_uses_with(codes)
            self._graph.remove(node, safe=True)
            return
        node.replace_input_with(0, self._edits.identity(value, node))

    def _strip_value(self, value: ir.Value) -> None:
        """Let the readers of a value's dequantized codes read the value itself."""
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
        clamped = self._clamps.restore(value, group.parameters, group.nodes[0])
        if clamped is not None:
            for node in group.nodes:
                node.replace_input_with(0, clamped)
            value = clamped
        elif value.producer() is None or not alone:
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
        """Yield the DequantizeLinear nodes that read the codes of a QuantizeLinear."""
        for reader, _ in node.outputs[0].uses():
            if not is_dequantize(reader) or reader.graph is not self._graph:
                raise unreadable(
                    reader,
                    f"it computes on the codes of {node.outputs[0].name!r}",
                    ONLY_KNOWN,
                )
            if not read_parameters(reader).equals(group.parameters):
                raise unreadable(
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
            raise unreadable(node, reason, ONLY_KNOWN)
        parameters = read_parameters(node)
        # Wider integers are counts or indices, and no grid of an activation.
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
        raise unreadable(node, f"it has {len(node.inputs)} inputs and {len(node.outputs)} outputs")


def _is_made_by_quantize(codes: ir.Value) -> bool:
    node = codes.producer()
    return node is not None and is_quantize(node)
