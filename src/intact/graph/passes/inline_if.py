"""Inlines the branches of If nodes.

Where the condition is known, the branch that runs takes the node's place. For runtimes without
branches both are computed, and a Where chooses between their results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import cast

import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph.edit import Editor
from intact.graph.metadata import PART_KEY
from intact.graph.names import Names
from intact.graph.ops import constant_array, input_value
from intact.graph.traversal import graphs_of, nodes_of


def inline_ifs(model: ir.Model) -> int:
    """Replace each If with a constant condition by the nodes of the branch that it chooses.

    Nodes and tensors keep their names where no other graph of the model has the same: branches
    may use a name twice, one graph may not. What the node wrote is written by an Identity.

    Returns:
        The number of replaced nodes.
    """
    chosen = [node for node in _ifs(model.graph) if _condition(node) is not None]
    if not chosen:
        return 0
    used = Counter(value.name for graph in graphs_of(model) for value in _values(graph))
    names = Names(used, first=1)
    for node in chosen:
        branch = node.attributes["then_branch" if _condition(node) else "else_branch"].as_graph()
        _inline(node, branch, used, names)
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
    pairs = list(zip(*(branch.outputs for branch in branches), strict=True))
    asked = None if condition is None else condition.shape
    if condition is None or asked is None or any(length != 1 for length in asked):
        raise Unsupported("its condition has an unknown shape")
    for first, second in pairs:
        # A Where would broadcast the smaller one, to the axes of the condition too.
        shape = first.shape
        if shape is None or shape != second.shape or len(shape) < len(asked):
            raise Unsupported("its branches may give different shapes")
    used = Counter(value.name for graph in graphs_of(editor.model) for value in _values(graph))
    chosen = [_move(node, branch, used, editor.names) for branch in branches]
    results = []
    for first, second, written in zip(*chosen, node.outputs, strict=True):
        shape, dtype = first.shape, written.dtype or ir.DataType.FLOAT
        inputs = (condition, first, second)
        results.append(editor.node("Where", inputs, str(node.name), dtype=dtype, shape=shape))
        maker = results[-1].producer()
        if maker is not None:  # none of the If's own: what was in it is to be normalized
            maker.metadata_props[PART_KEY] = ""
    editor.put_results_in_place(node, results)


def _ifs(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the If nodes of a graph and of all bodies; those inside an If before it."""
    for node in graph:
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.GRAPH and not attribute.is_ref():
                yield from _ifs(attribute.as_graph())
        if node.op_type == "If" and node.domain == "":
            yield node


def _condition(node: ir.Node) -> bool | None:
    """Return the condition of an If; None where it is not known."""
    array = constant_array(input_value(node, 0))
    branches = {name for name, each in node.attributes.items() if not each.is_ref()}
    if array is None or array.size != 1 or not {"then_branch", "else_branch"} <= branches:
        return None
    return bool(array.item())


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the values that a graph defines."""
    yield from dict.fromkeys((*graph.inputs, *graph.initializers.values()))
    for node in graph:
        yield from node.outputs


def _inline(node: ir.Node, branch: ir.Graph, used: Counter[str | None], names: Names) -> None:
    """Move the content of a branch in front of an If, and remove the If."""
    parent = cast("ir.Graph", node.graph)
    copies = [
        _copy(node, source, written, names)
        for source, written in zip(_move(node, branch, used, names), node.outputs, strict=True)
        if written.uses() or written.is_graph_output()
    ]
    parent.insert_before(node, copies)
    parent.remove(node, safe=True)
    for attribute in node.attributes.values():
        # Else the branch that is gone would still count as a reader.
        _release(attribute.as_graph())


def _move(
    node: ir.Node, branch: ir.Graph, used: Counter[str | None], names: Names
) -> list[ir.Value]:
    """Move the content of a branch in front of an If; return its results."""
    parent = cast("ir.Graph", node.graph)
    results, moved = list(branch.outputs), list(branch)
    constants = list(branch.initializers.values())
    branch.outputs.clear()
    branch.initializers.clear()
    # onnx-ir lets a node or constant belong to one graph only.
    branch.remove(moved)
    _rename([*constants, *(value for each in moved for value in each.outputs)], used, names)
    for value in constants:
        parent.register_initializer(value)
    parent.insert_before(node, moved)
    return results


def _rename(values: Iterable[ir.Value], used: Counter[str | None], names: Names) -> None:
    """Give values names that no other graph has."""
    for value in values:
        # Both branches may write one name; the last that is inlined keeps it.
        if value.name and used[value.name] > 1:
            used[value.name] -= 1
            value.name = names.fresh(value.name)


def _copy(node: ir.Node, source: ir.Value, written: ir.Value, names: Names) -> ir.Node:
    """Make a node that writes a branch's result under the name that the If gave it."""
    copy = ir.Node("", "Identity", [source], name=node.name)
    (result,) = copy.outputs
    result.type = source.type or written.type
    result.shape = source.shape if source.shape is not None else written.shape
    name = written.name
    written.replace_all_uses_with(result, replace_graph_outputs=True)
    written.name, result.name = names.fresh(f"{name}_if"), name
    return copy


def _release(graph: ir.Graph) -> None:
    """Let the nodes of the branch that does not run read nothing."""
    graph.outputs.clear()
    inner: Iterable[ir.Node] = list(nodes_of(graph))
    for node in inner:
        for body in node.attributes.values():
            if body.type is ir.AttributeType.GRAPH and not body.is_ref():
                body.as_graph().outputs.clear()
        for slot in range(len(node.inputs)):
            node.replace_input_with(slot, None)
