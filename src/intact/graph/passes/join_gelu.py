"""Gelu composed with Erf.

Exporters below opset 20 write ``x / 2 * (1 + erf(x / sqrt 2))``, with the factor 1/2 in one of
three places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from intact.graph.graph import Graph
from intact.graph.ops import input_value
from intact.graph.passes.join import (
    Joined,
    Match,
    is_node,
    is_number,
    other_operand,
    scaled,
    sole_reader,
)


def _matches(graph: Graph) -> Iterator[Match]:
    for node in graph.nodes:
        if is_node(node, "Erf"):
            data = scaled(input_value(node, 0), math.sqrt(0.5))
            last = None if data is None else _last(graph, node, data)
            if data is not None and last is not None:
                yield Match(data, last)


def _last(graph: Graph, erf: ir.Node, data: ir.Value) -> ir.Node | None:
    added = sole_reader(graph, erf, "Add")
    if added is None or not is_number(other_operand(added, erf.outputs[0]), 1.0):
        return None
    first = sole_reader(graph, added, "Mul")
    if first is None:
        return None
    other = other_operand(first, added.outputs[0])
    if other is not data:
        halved = scaled(other, 0.5)
        if halved is data:
            return first
        if not is_number(other, 0.5):
            return None
    second = sole_reader(graph, first, "Mul")
    if second is None:
        return None
    rest = other_operand(second, first.outputs[0])
    fits = is_number(rest, 0.5) if other is data else rest is data
    return second if fits else None


GELU = Joined("Gelu", 20, _matches)
