"""Operators that exporters write out as several, joined for targets that have them as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from intact.errors import ModelError
from intact.graph.builder import Attribute
from intact.graph.edit import Editor
from intact.graph.files.opset import convert_opset
from intact.graph.given_nodes import note_given_nodes
from intact.graph.graph import Graph
from intact.graph.ops import constant_array, input_value
from intact.graph.passes import library
from intact.graph.passes.names import make_names_unique
from intact.ops.operators import Reduce

CLOSE = 1e-4
"""Relative tolerance for the constants of formulas."""


@dataclass(frozen=True)
class Match:
    """A formula that was found.

    Attributes:
        data: What it is computed from.
        last: The node that gives its result.
        constants: Further inputs of the operator.
        attributes: The operator's attributes.
        order: How the axes of the data are brought for the operator, which works along the last;
            empty where they lie so.
    """

    data: ir.Value
    last: ir.Node
    constants: tuple[np.ndarray, ...] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Joining:
    """An operator that is recognized.

    Attributes:
        op_type: Its type.
        since: The opset that it is in.
        matches: Yields what is found in a graph.
    """

    op_type: str
    since: int
    matches: Callable[[Graph], Iterator[Match]]


def join(graph: Graph, joined: Joining) -> Graph:
    """Replace every written-out operator of a type by that operator.

    The opset is raised if needed. A graph without a match is returned unchanged, as is one that
    cannot be converted to that opset.
    """
    # Asked before anything is copied, as most graphs have none.
    if not any(True for _ in _matches_that_fit(graph, joined)):
        return graph
    given = graph.model
    if graph.opset < joined.since:
        try:
            graph = _at_opset(graph, joined.since)
        except ModelError:
            return graph
    editor = Editor(graph.model)
    # A list, because joining changes what is searched.
    for match in list(_matches_that_fit(graph, joined)):
        name = str(match.last.name)
        old = editor.nodes_by_name[name].outputs[0]
        data = _brought(editor, editor.value(str(match.data.name)), match.order)
        inputs = [data, *(editor.initializer(f"{name}_constant", each) for each in match.constants)]
        kind = joined.op_type.lower()
        result = editor.node(
            joined.op_type, inputs, f"{name}_{kind}", match.attributes, shape=data.shape
        )
        # The inverse of a permutation is what sorts it.
        result = _brought(editor, result, tuple(int(k) for k in np.argsort(match.order)))
        written, kind_of, shape = str(old.name), old.type, old.shape
        old.replace_all_uses_with(result, replace_graph_outputs=True)
        old.name = None
        result.name, result.type, result.shape = written, kind_of, shape
        editor.rebind(written, result)
    _remove_unread(editor.model.graph)
    return Graph(note_given_nodes(given, editor.finish()))


def _brought(editor: Editor, value: ir.Value, order: tuple[int, ...]) -> ir.Value:
    """Bring axes into another order; none given leaves them."""
    if not order or value.shape is None:
        return value
    shape = ir.Shape([value.shape[k] for k in order])
    return editor.node("Transpose", [value], f"{value.name}_axes", {"perm": order}, shape=shape)


def _matches_that_fit(graph: Graph, joined: Joining) -> Iterator[Match]:
    """Yield the matches whose constants add no axes to the data, and that are float32."""
    for match in joined.matches(graph):
        before, after = match.data, match.last.outputs[0]
        if before.shape is None or after.shape is None or len(before.shape) != len(after.shape):
            continue
        if before.dtype is ir.DataType.FLOAT:
            yield match


def _at_opset(graph: Graph, opset: int) -> Graph:
    """Convert a graph to a newer opset.

    The converter writes attributes that became inputs (the axes of a ReduceMean) as Constant nodes
    without names: they become initializers, as normalization leaves all constants.
    """
    model = convert_opset(graph.model, opset)
    library.lift_constants(model)
    make_names_unique(model)
    return Graph(model)


def is_node(node: ir.Node | None, *op_types: str) -> bool:
    """Tell whether a node is of one of these types of the default domain."""
    return node is not None and node.domain == "" and node.op_type in op_types


def producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Return the node that makes a value, if it is of one of these types."""
    node = None if value is None else value.producer()
    return node if is_node(node, *op_types) else None


def sole_reader(graph: Graph, node: ir.Node, *op_types: str) -> ir.Node | None:
    """Return the only reader of a node if it is of one of these types and the result is no graph
    output.
    """
    value = node.outputs[0]
    readers = graph.consumers(value)
    if len(readers) != 1 or value.is_graph_output():
        return None
    return readers[0][0] if is_node(readers[0][0], *op_types) else None


def other_operand(node: ir.Node, value: ir.Value | None) -> ir.Value | None:
    """Return the operand of a node of two that is not the given one."""
    left, right = node.inputs[0], node.inputs[1]
    return right if left is value else left


def sides(node: ir.Node) -> Iterable[tuple[ir.Value | None, ir.Value | None]]:
    """Return the operands of a commutative node in both orders."""
    left, right = node.inputs[0], node.inputs[1]
    return (left, right), (right, left)


def divide_out(value: ir.Value | None, factor: float) -> ir.Value | None:
    """Find the value that is multiplied by ``factor`` to give this one."""
    node = producer(value, "Mul", "Div")
    if node is None:
        return None
    if node.op_type == "Div":
        return node.inputs[0] if is_number(node.inputs[1], 1.0 / factor) else None
    return next((left for left, right in sides(node) if is_number(right, factor)), None)


def reduces_last(node: ir.Node, *, keepdims: bool = True) -> bool:
    """Tell whether a reduction runs over the last axis alone, and keeps it with length 1 or not."""
    data = node.inputs[0]
    if data is None or data.shape is None or not data.shape:
        return False
    if bool(Reduce.of(node).keepdims) is not keepdims:
        return False
    given = constant_array(input_value(node, 1))
    axes = Reduce.of(node).axes if given is None else given.reshape(-1).tolist()
    return [axis % len(data.shape) for axis in axes] == [len(data.shape) - 1]


def is_number(value: ir.Value | None, number: float) -> bool:
    """Tell whether a value is a constant of one element that is close to a number."""
    array = constant_array(value)
    return (
        array is not None
        and array.size == 1
        and math.isclose(float(array.reshape(())), number, rel_tol=CLOSE)
    )


def _remove_unread(graph: ir.Graph) -> None:
    """Remove nodes whose results are unused."""
    # From the end, so that what only a removed node has read goes too.
    for node in reversed(tuple(graph)):
        read = any(value.uses() or value.is_graph_output() for value in node.outputs)
        if not read:
            graph.remove(node, safe=True)
