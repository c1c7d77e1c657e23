"""Gives nodes and values unique names, and preserves them through library passes.

Names are keys of plans, statistics and reports, so the model's own names come first: a generated
name never takes one of them. Library passes make up names and may reuse existing ones;
`protected_names` prevents that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx_ir as ir

from intact.graph.names import Names
from intact.graph.traversal import graphs_of, nodes_of

_MARK = "\N{SECTION SIGN}intact\N{SECTION SIGN}"
"""Prefix of placeholder names; no library pass uses it."""


def make_names_unique(model: ir.Model) -> int:
    """Name every unnamed node and value of the main graph, and rename the later of duplicates.

    A node is named after its operator, with a number, a value after its node. Graph inputs and
    outputs keep their names first, then other values in order. Values inside subgraphs are not
    renamed.

    Returns:
        The number of new names.
    """
    values = _values(model.graph)
    ports = [*model.graph.inputs, *model.graph.outputs]
    # Bodies first: what they read is known by name only, and their names stay.
    taken = Names((value.name for value in _inner_values(model)), first=1)
    given = taken.claim(dict.fromkeys((*ports, *model.graph.initializers.values(), *values)))
    nodes = Names(first=1)
    given_nodes = nodes.claim(dict.fromkeys(model.graph))
    for node in given_nodes:
        if not node.name:
            nodes.add(node.op_type)  # which means all nodes of that type where users name nodes
        node.name = nodes.fresh(node.name or node.op_type)
    for value in given:
        producer = value.producer()
        value.name = taken.fresh(value.name or f"{producer.name if producer else 'value'}_output")
    return len(given) + len(given_nodes)


@contextlib.contextmanager
def protected_names(model: ir.Model) -> Iterator[None]:
    """Replace the main graph's names by placeholders while library passes run.

    Afterwards every value with a placeholder gets the old name (the library gives the name of a
    replaced value to its replacement), nodes out of a body keep theirs, a new node gets the name
    of the former producer of its output, and everything else gets a unique name.
    """
    graph = model.graph
    originals: dict[str, str] = {}
    writers: dict[str, str] = {}
    for index, value in enumerate(dict.fromkeys((*graph.inputs, *_all_values(graph)))):
        mark = f"{_MARK}{index}{_MARK}"
        originals[mark] = value.name or ""
        producer = value.producer()
        if producer is not None:
            writers[mark] = producer.name or ""
        value.name = mark
    # The nodes are kept too, or a new one could get the identity of one that is gone.
    own_nodes = {id(node): (node, node.name or "") for node in nodes_of(graph)}
    yield
    # First, as what is not registered would not be renamed back.
    _register_stray_constants(graph)
    _restore_nodes(graph, own_nodes, writers)
    _restore_values(model, originals)


def _restore_nodes(
    graph: ir.Graph, own: dict[int, tuple[ir.Node, str]], writers: dict[str, str]
) -> None:
    for node in graph:
        node.name = own[id(node)][1] if id(node) in own else None
    taken = {node.name for node in graph if node.name}
    for node in graph:
        inherited = writers.get(node.outputs[0].name or "") if node.outputs else None
        if not node.name and inherited and inherited not in taken:
            node.name = inherited
            taken.add(inherited)


def _restore_values(model: ir.Model, originals: dict[str, str]) -> None:
    every = dict(originals)
    for value in dict.fromkeys((*model.graph.inputs, *_all_values(model.graph))):
        name = value.name or ""
        if name in originals:
            value.name = originals.pop(name)
        else:
            # A new value, perhaps named after one of the model's: "<mark>/shape".
            for mark in {f"{_MARK}{part}{_MARK}" for part in name.split(_MARK)[1::2]}:
                name = name.replace(mark, every.get(mark, ""))
            # Marked until all old names are back, which a new one must not take.
            value.name = f"{_MARK}new{_MARK}{id(value)}{_MARK}{name}"
    _name_new_values(model)


def _name_new_values(model: ir.Model) -> None:
    values = dict.fromkeys((*model.graph.inputs, *_all_values(model.graph)))
    taken = Names((value.name for value in (*values, *_inner_values(model))), first=1)
    for value in values:
        if value.name and value.name.startswith(f"{_MARK}new{_MARK}"):
            value.name = taken.fresh(value.name.split(_MARK)[-1] or "value")
    make_names_unique(model)


def _register_stray_constants(graph: ir.Graph) -> None:
    """Register constants again that a rule replaced under the same name.

    Two applications of one rule can give their new initializers the same name. The later one then
    replaces the first in the graph, although nodes still read it.
    """
    for node in nodes_of(graph):
        for value in node.inputs:
            if value is None or value.const_value is None or value.producer() is not None:
                continue
            if not (value.is_initializer() or value.is_graph_input()):
                value.name = f"{value.name}{_MARK}stray{_MARK}{id(value)}"
                graph.register_initializer(value)


def _values(graph: ir.Graph) -> list[ir.Value]:
    return [value for node in graph for value in node.outputs if _is_written(value)]


def _all_values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.initializers.values(), *_values(graph)]


def _is_written(value: ir.Value) -> bool:
    # An absent optional output has an empty name and no reader, and must stay unnamed.
    return bool(value.name) or bool(value.uses()) or value.is_graph_output()


def _inner_values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in graphs_of(model):
        if graph is not model.graph:
            yield from (*graph.inputs, *_all_values(graph))
