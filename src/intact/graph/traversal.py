"""Iterates over the nodes and graphs of a model, bodies included.

onnx-ir's iterators ask each node several questions; these are several times as fast, which shows
where a model of 100,000 nodes is walked through dozens of times.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs that are attributes of a node (If, Loop, Scan)."""
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type is ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type is ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def nodes_of(graph: ir.Graph | ir.Function) -> Iterator[ir.Node]:
    """Yield the nodes of a graph in order, each before those of its bodies."""
    for node in graph:
        yield node
        # Most nodes of large models have none, and a generator for each costs more than the
        # question.
        if node.attributes:
            for body in bodies(node):
                yield from nodes_of(body)


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes of the graph, of all bodies and of the functions."""
    yield from nodes_of(model.graph)
    for function in model.functions.values():
        yield from nodes_of(function)


def graphs_of(model: ir.Model) -> list[ir.Graph]:
    """List the graph of a model, and all bodies; none of functions."""
    return [model.graph, *(body for node in nodes_of(model.graph) for body in bodies(node))]
