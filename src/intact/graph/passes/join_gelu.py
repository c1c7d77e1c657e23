"""Fusion of a Gelu that is composed with Erf into one operator, for hardware that has one.

Exporters below opset 20 write ``x / 2 * (1 + erf(x / sqrt 2))``, with the factor 1/2 in one of
three places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from intact.graph.edit import Editor
from intact.graph.files.opset import convert_opset
from intact.graph.graph import Graph
from intact.graph.ops import constant_array, input_value
from intact.graph.passes import library
from intact.graph.passes.names import make_names_unique

_GELU_SINCE = 20
_CLOSE = 1e-4
"""Relative tolerance for the constants of the formula."""


def join_gelu(graph: Graph) -> Graph:
    """Replace every composed Gelu by the operator Gelu.

    The opset is raised to 20 if needed. A graph without a composed Gelu is returned unchanged.

    Raises:
        ModelError: The model cannot be converted to that opset.
    """
    if not any(True for _ in _matches(graph)):
        return graph
    if graph.opset < _GELU_SINCE:
        graph = _at_opset(graph, _GELU_SINCE)
    editor = Editor(graph.model)
    for data, last in list(_matches(graph)):
        old = editor.nodes_by_name[str(last.name)].outputs[0]
        name, kind, shape = str(old.name), old.type, old.shape
        joined = editor.node("Gelu", [editor.value(str(data.name))], f"{last.name}_gelu")
        old.replace_all_uses_with(joined, replace_graph_outputs=True)
        old.name = None
        joined.name, joined.type, joined.shape = name, kind, shape
        editor.rebind(name, joined)
    _remove_unread(editor.model.graph)
    return Graph(editor.finish())


def _at_opset(graph: Graph, opset: int) -> Graph:
    """Convert a graph to a newer opset.

    The converter writes attributes that became inputs (the axes of a ReduceMean) as Constant nodes
    without names: they become initializers, as normalization leaves all constants.
    """
    model = convert_opset(graph.model, opset)
    library.lift_constants(model)
    make_names_unique(model)
    return Graph(model)


def _matches(graph: Graph) -> Iterator[tuple[ir.Value, ir.Node]]:
    """Yield the input and the last node of every composed Gelu."""
    for node in graph.nodes:
        if node.domain == "" and node.op_type == "Erf":
            data = _scaled(input_value(node, 0), math.sqrt(0.5))
            last = None if data is None else _last(graph, node, data)
            if data is not None and last is not None:
                yield data, last


def _last(graph: Graph, erf: ir.Node, data: ir.Value) -> ir.Node | None:
    added = _reader(graph, erf, "Add")
    if added is None or not _adds(added, erf.outputs[0], 1.0):
        return None
    first = _reader(graph, added, "Mul")
    if first is None:
        return None
    other = _other(first, added.outputs[0])
    if other is not data:
        halved = _scaled(other, 0.5)
        if halved is data:
            return first
        if not _is_number(other, 0.5):
            return None
    second = _reader(graph, first, "Mul")
    if second is None:
        return None
    rest = _other(second, first.outputs[0])
    fits = _is_number(rest, 0.5) if other is data else rest is data
    return second if fits else None


def _reader(graph: Graph, node: ir.Node, op_type: str) -> ir.Node | None:
    """Return the only reader of a node if it has the given type and the result is no graph
    output.
    """
    value = node.outputs[0]
    readers = graph.consumers(value)
    if len(readers) != 1 or value.is_graph_output():
        return None
    reader = readers[0][0]
    return reader if reader.domain == "" and reader.op_type == op_type else None


def _other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    left, right = node.inputs[0], node.inputs[1]
    return right if left is value else left


def _adds(node: ir.Node, value: ir.Value, number: float) -> bool:
    return _is_number(_other(node, value), number)


def _scaled(value: ir.Value | None, factor: float) -> ir.Value | None:
    """Find the value that is multiplied by ``factor`` to give this one."""
    node = None if value is None else value.producer()
    if node is None or node.domain != "" or node.op_type not in {"Mul", "Div"}:
        return None
    left, right = node.inputs[0], node.inputs[1]
    if node.op_type == "Div":
        return left if _is_number(right, 1.0 / factor) else None
    if _is_number(right, factor):
        return left
    return right if _is_number(left, factor) else None


def _is_number(value: ir.Value | None, number: float) -> bool:
    array = constant_array(value)
    return (
        array is not None
        and array.size == 1
        and math.isclose(float(array.reshape(())), number, rel_tol=_CLOSE)
    )


def _remove_unread(graph: ir.Graph) -> None:
    """Remove nodes whose results are unused."""
    for node in reversed(tuple(graph)):
        read = any(value.uses() or value.is_graph_output() for value in node.outputs)
        if not read:
            graph.remove(node, safe=True)
