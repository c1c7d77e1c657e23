"""Names: every node and value gets one of its own, and keeps it through library passes.

Names are keys of plans, statistics and reports, so the model's own names come first: a generated
name never takes one of them. Library passes invent names freely and may reuse existing ones;
`protected_names` keeps them from that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx_ir as ir

from intact.graph.names import Names

_MARK = "\N{SECTION SIGN}intact\N{SECTION SIGN}"
"""Starts the stand-in names; no library pass writes it."""


def make_names_unique(model: ir.Model) -> int:
    """Name every nameless node and value of the main graph, and rename the later of two equal ones.

    A node is named after its operator, a value after its node. Graph inputs and outputs come
    first, then the model's names in order. Values inside subgraphs are left alone.

    Returns:
        How many names were given.
    """
    values = _values(model.graph)
    ports = [*model.graph.inputs, *model.graph.outputs]
    taken = Names((value.name for value in _inner_values(model)), first=1)
    given = taken.claim(dict.fromkeys((*ports, *model.graph.initializers.values(), *values)))
    nodes = Names(first=1)
    given_nodes = nodes.claim(dict.fromkeys(model.graph))
    for node in given_nodes:
        node.name = nodes.fresh(node.name or node.op_type)
    for value in given:
        producer = value.producer()
        value.name = taken.fresh(value.name or f"{producer.name if producer else 'value'}_output")
    return len(given) + len(given_nodes)


@contextlib.contextmanager
def protected_names(model: ir.Model) -> Iterator[None]:
    """Hide the main graph's names behind stand-ins while library passes run.

    Afterwards every value that stands for one of the model's (the library hands the name of a
    replaced value on) has its old name again, a node that the library made has the name of the
    node that used to write the same value, and everything new has a name of its own.
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
    own_nodes = {id(node): (node, node.name or "") for node in graph}
    yield
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
    """Give back their place to constants that a rule replaced under the same name.

    Two applications of one rule can name their new initializers alike; the later one then takes
    the place of the first, which nodes still read.
    """
    for node in ir.traversal.RecursiveGraphIterator(graph):
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
    # An optional output left out has an empty name, no reader, and must stay nameless.
    return bool(value.name) or bool(value.uses()) or value.is_graph_output()


def _inner_values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        if graph is not model.graph:
            yield from (*graph.inputs, *_all_values(graph))
