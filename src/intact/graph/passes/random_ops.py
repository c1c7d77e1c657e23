"""Finds operators that draw random numbers: what depends on them differs in each run."""

from __future__ import annotations

import onnx_ir as ir

from intact.graph.ops import input_value
from intact.graph.traversal import bodies, nodes_of
from intact.ops.operators import (
    Bernoulli,
    Dropout,
    Multinomial,
    RandomNormal,
    RandomNormalLike,
    RandomUniform,
    RandomUniformLike,
    is_a,
    types_of,
)

_DRAWS = types_of(
    *(Bernoulli, Multinomial, RandomNormal, RandomNormalLike, RandomUniform, RandomUniformLike)
)


def random_values(model: ir.Model) -> dict[str, str]:
    """List the values of the main graph that depend on chance, and the node that draws.

    Args:
        model: With its nodes sorted.
    """
    found: dict[ir.Value, str] = {}
    for node in model.graph:
        inner = [node, *_inside(model, node)]
        source = next((found[v] for each in inner for v in each.inputs if v in found), "")
        if not source and any(map(_draws, inner)):
            source = f"node {node.name or ''!r} ({node.op_type})"
        if source:
            found |= dict.fromkeys(node.outputs, source)
    return {str(value.name): source for value, source in found.items()}


def _inside(model: ir.Model, node: ir.Node) -> list[ir.Node]:
    """List the nodes in a node's bodies, or in the function that it calls."""
    nodes = [inner for body in bodies(node) for inner in nodes_of(body)]
    function = model.functions.get(node.op_identifier())
    if function is not None:
        nodes += nodes_of(function)
    return nodes


def _draws(node: ir.Node) -> bool:
    if node.domain != "":
        return False
    # Without a training input it hands on its data; one that is computed may turn it on.
    if is_a(node, Dropout):
        training = input_value(node, 2)
        if training is None:
            return False
        return training.const_value is None or bool(training.const_value.numpy().any())
    return node.op_type in _DRAWS
