"""Writes out the branches of If, and moves what bodies hold to where it runs.

Where the condition is known, the branch that runs takes the node's place (`inline_ifs`). For
runtimes without branches both are computed, and a Where chooses between their results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph.edit import Editor
from intact.graph.metadata import GUARD_KEY, PART_KEY
from intact.graph.names import Names
from intact.graph.ops import constant_array, input_value, may_fail
from intact.graph.traversal import bodies, graphs_of, nodes_of
from intact.ops.operators import (
    And,
    Concat,
    Declared,
    Gather,
    Identity,
    If,
    Named,
    Not,
    Or,
    Unsqueeze,
    Where,
    is_a,
    type_of,
)


def inline_ifs(model: ir.Model) -> int:
    """Replace each If with a constant condition by the nodes of the branch that it chooses.

    Nodes and tensors keep their names where no other graph of the model has the same: branches
    may use a name twice, one graph may not. What the node wrote is written by an Identity.

    Returns:
        The number of replaced nodes.
    """
    chosen = [node for node in nodes_with_bodies(model.graph, If) if _condition(node) is not None]
    if chosen:
        inliner = Inliner(model)
        for node in chosen:
            branch = node.attributes["then_branch" if _condition(node) else "else_branch"]
            inliner.put_in_place(node, inliner.move(node, branch.as_graph()))
    return len(chosen)


def choose_results(editor: Editor, node: ir.Node) -> None:
    """Compute both branches of an If, and choose between their results.

    Raises:
        Unsupported: Their results do not have the same known shapes.
    """
    branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    condition = input_value(node, 0)
    if any(len(branch.outputs) != len(node.outputs) for branch in branches):
        raise Unsupported("its branches have other results than it")
    if condition is None:
        raise Unsupported("it has no condition")
    for first, second in zip(*(branch.outputs for branch in branches), strict=True):
        check_choice(condition, first, second)
    note_guards(node)
    inliner = Inliner(editor.model, editor.names)
    branch_outputs = [inliner.move(node, branch) for branch in branches]
    pairs = zip(*branch_outputs, strict=True)
    choices = [inliner.choice(node, condition, *pair) for pair in pairs]
    editor.put_results_in_place(node, choices)


def note_guards(node: ir.Node) -> None:
    """Note at what may fail inside of a node that this runs it under a condition."""
    for inner in (inner for body in bodies(node) for inner in nodes_of(body)):
        if may_fail(inner):
            inner.metadata_props.setdefault(GUARD_KEY, str(node.name))


def check_choice(condition: ir.Value, first: ir.Value, second: ir.Value) -> None:
    """Raise if a Where would broadcast one of the values, or to the axes of the condition."""
    asked, shape = condition.shape, first.shape
    if asked is None or any(length != 1 for length in asked):
        raise Unsupported("its condition has an unknown shape")
    if shape is None or shape != second.shape or len(shape) < len(asked):
        raise Unsupported("its bodies may give different shapes")


def nodes_with_bodies(graph: ir.Graph, *operators: Declared) -> list[ir.Node]:
    """List nodes of some operators, of a graph and of all bodies; those inside one before it."""
    found = []
    for node in graph:
        for body in bodies(node) if node.attributes else ():
            found += nodes_with_bodies(body, *operators)
        if is_a(node, *operators):
            found.append(node)
    return found


def _condition(node: ir.Node) -> bool | None:
    """Return the condition of an If; None where it is not known."""
    array = constant_array(input_value(node, 0))
    branches = {name for name, each in node.attributes.items() if not each.is_ref()}
    if array is None or array.size != 1 or not {"then_branch", "else_branch"} <= branches:
        return None
    return bool(array.item())


class Inliner:
    """Moves what bodies hold in front of their nodes, under names that no other graph has."""

    def __init__(self, model: ir.Model, names: Names | None = None) -> None:
        self._used = Counter(value.name for graph in graphs_of(model) for value in _values(graph))
        self._names = names or Names(self._used, first=1)
        self._opset = model.opset_imports.get("", 0)

    def move(self, node: ir.Node, body: ir.Graph) -> list[ir.Value]:
        """Move the content of a body in front of its node; return its outputs."""
        parent = cast("ir.Graph", node.graph)
        body_outputs, moved = list(body.outputs), list(body)
        body.outputs.clear()
        self.share_constants(node, body)
        # onnx-ir lets a node or constant belong to one graph only.
        body.remove(moved)
        self._rename(value for each in moved for value in each.outputs)
        parent.insert_before(node, moved)
        return body_outputs

    def turn(self, node: ir.Node, body: ir.Graph, given: Sequence[ir.Value]) -> list[ir.Value]:
        """Put a copy of a body in front of its node, for what it is given; return its outputs."""
        copy = body.clone(allow_outer_scope_values=True)
        self._used.update(value.name for value in _values(copy))
        given_for = dict(zip(copy.inputs, given, strict=True))
        turn_outputs = self.move(node, copy)
        for body_input, value in given_for.items():
            body_input.replace_all_uses_with(value)
        return [given_for.get(output, output) for output in turn_outputs]

    def share_constants(self, node: ir.Node, body: ir.Graph) -> None:
        """Move the constants of a body to the graph of its node."""
        constants = list(body.initializers.values())
        for slot, value in enumerate(body.outputs):
            if value in constants:  # of a copy, a value of another graph is no output
                copy = ir.Node("", Identity.name, [value])
                copy.outputs[0].name = self._names.fresh(str(value.name))
                copy.outputs[0].type, copy.outputs[0].shape = value.type, value.shape
                body.append(copy)
                body.outputs[slot] = copy.outputs[0]
        body.initializers.clear()
        self._rename(constants)
        for value in constants:
            cast("ir.Graph", node.graph).register_initializer(value)

    def count(self, node: ir.Node, body: ir.Graph, turn: int) -> ir.Value:
        """Return the number of a turn, in the shape that the body reads."""
        shape = body.inputs[0].shape
        return self.constant(node, np.full((1,) * len(shape or ()), turn, np.int64))

    def part(self, node: ir.Node, value: ir.Value, axis: int, index: int) -> ir.Value:
        """Take what stands at one place of an axis, which goes."""
        place = self.constant(node, np.array(index, np.int64))
        return self.node(node, Gather, [value, place], [ir.AttrInt64("axis", axis)])

    def stack(self, node: ir.Node, parts: Sequence[ir.Value], axis: int) -> ir.Value:
        """Stack values along a new axis."""
        joined = [self._with_axis(node, part, axis) for part in parts]
        return self.node(node, Concat, joined, [ir.AttrInt64("axis", axis)])

    def choice(
        self, node: ir.Node, condition: ir.Value, first: ir.Value, second: ir.Value
    ) -> ir.Value:
        """Choose between two values of one shape."""
        if ir.DataType.BOOL in (first.dtype, second.dtype):  # ONNX Runtime has no Where for it
            parts = [(condition, first), (self.node(node, Not, [condition]), second)]
            inputs = [self.node(node, And, pair) for pair in parts]
            result = self.node(node, Or, inputs)
        else:
            result = self.node(node, Where, [condition, first, second])
        result.type, result.shape = first.type or second.type, first.shape
        maker = cast("ir.Node", result.producer())
        maker.metadata_props[PART_KEY] = ""  # none of its own: what was in bodies is normalized
        return result

    def constant(self, node: ir.Node, array: np.ndarray) -> ir.Value:
        """Add a constant to the graph of a node."""
        name = self._names.fresh(f"{node.name}_constant")
        value = ir.val(name, const_value=ir.Tensor(array, name=name))
        cast("ir.Graph", node.graph).register_initializer(value)
        return value

    def node(
        self,
        node: ir.Node,
        operator: Named,
        inputs: Sequence[ir.Value],
        attributes: Sequence[ir.Attr] = (),
    ) -> ir.Value:
        """Add a node in front of another, and return what it writes."""
        op_type = type_of(operator)
        made = ir.Node("", op_type, inputs, attributes, name=f"{node.name}_{op_type}")
        made.outputs[0].name = self._names.fresh(str(made.name))
        cast("ir.Graph", node.graph).insert_before(node, made)
        return made.outputs[0]

    def put_in_place(self, node: ir.Node, sources: Sequence[ir.Value]) -> None:
        """Write values under the names of a node's outputs, and remove the node."""
        parent = cast("ir.Graph", node.graph)
        pairs = zip(sources, node.outputs, strict=True)
        read = [each for each in pairs if each[1].uses() or each[1].is_graph_output()]
        parent.insert_before(node, [self._copy(node, *pair) for pair in read])
        parent.remove(node, safe=True)
        for body in bodies(node):
            _release(body)  # else what is gone would still count as a reader

    def _copy(self, node: ir.Node, source: ir.Value, written: ir.Value) -> ir.Node:
        """Make a node that writes a value under the name of a node's output."""
        copy = ir.Node("", Identity.name, [source], name=node.name)
        (result,) = copy.outputs
        result.type = source.type or written.type
        result.shape = source.shape if source.shape is not None else written.shape
        name = written.name
        written.replace_all_uses_with(result, replace_graph_outputs=True)
        written.name, result.name = self._names.fresh(f"{name}_{node.op_type.lower()}"), name
        return copy

    def _with_axis(self, node: ir.Node, value: ir.Value, axis: int) -> ir.Value:
        if self._opset < _AXES_ARE_INPUT:
            return self.node(node, Unsqueeze, [value], [ir.AttrInt64s("axes", [axis])])
        return self.node(node, Unsqueeze, [value, self.constant(node, np.array([axis]))])

    def _rename(self, values: Iterable[ir.Value]) -> None:
        """Give values names that no other graph has."""
        for value in values:
            # Bodies may write one name; the last that is inlined keeps it.
            if value.name and self._used[value.name] > 1:
                self._used[value.name] -= 1
                value.name = self._names.fresh(value.name)


_AXES_ARE_INPUT = 13
"""From this opset on the axes of Unsqueeze are an input."""


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the values that a graph defines."""
    yield from dict.fromkeys((*graph.inputs, *graph.initializers.values()))
    for node in graph:
        yield from node.outputs


def _release(graph: ir.Graph) -> None:
    """Let the nodes of a body that does not run read nothing."""
    graph.outputs.clear()
    for node in list(nodes_of(graph)):
        for body in bodies(node):
            body.outputs.clear()
        for slot in range(len(node.inputs)):
            node.replace_input_with(slot, None)
