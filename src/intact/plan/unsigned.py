"""Which activations hold nothing negative: those get unsigned codes, where a target asks for it.

Source: the document on MQBench's OpenVINO backend, which searches breadth first, upstream from a
pooling, resize, add or concat, for what was quantised before it, and takes unsigned codes if all
that it finds have them. A node is judged by its own operator, not by that of the node at which the
search began. Where some branches have a quantiser at one level and others have none, the document
forgets the others; here they are followed further, because their negative numbers would be lost.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from intact.graph import Graph, constant_array, data_slots, input_value, is_constant
from intact.plan.quantized_graph import Decision
from intact.targets import ScaleRule, Target, Unsigned


def unsigned_values(
    graph: Graph, target: Target, decisions: Mapping[str, Decision]
) -> frozenset[str]:
    """Return the names of the values that get unsigned codes.

    Values whose scales the target ties have to agree: if one needs a sign, all have one.

    Args:
        graph: A normalised graph.
        target: Says behind which operators, and which scales it ties.
        decisions: Which nodes are quantised, by name.
    """
    signed: frozenset[str] = frozenset()
    while True:
        found = _without_sign(graph, target.unsigned, signed)
        torn = frozenset(
            name
            for node in graph.nodes
            if found and decisions[str(node.name)].quantized
            for name in _torn(node, target, found)
        )
        if not torn:
            return found
        signed |= torn


def _without_sign(graph: Graph, unsigned: Unsigned, signed: frozenset[str]) -> frozenset[str]:
    """Return the values that hold nothing negative, but for some.

    Nodes come in topological order, so what lies upstream of a node is known when its turn comes:
    asking its inputs is the search.
    """
    found: set[str] = set()
    for node in graph.nodes if unsigned.after else ():
        if _is_never_negative(node, unsigned) or _passes_on(node, unsigned, found):
            found.update({str(output.name) for output in node.outputs} - signed)
    return frozenset(found)


def _is_never_negative(node: ir.Node, unsigned: Unsigned) -> bool:
    if node.domain != "" or node.op_type not in unsigned.after:
        return False
    if node.op_type != "Clip":
        return True
    low = constant_array(input_value(node, 1))
    return low is not None and bool((low >= 0).all())


def _passes_on(node: ir.Node, unsigned: Unsigned, found: set[str]) -> bool:
    if node.domain != "" or node.op_type not in unsigned.through:
        return False
    values = [node.inputs[slot] for slot in data_slots(node)]
    return bool(values) and all(
        value is not None and (str(value.name) in found or _is_constant_without_sign(value))
        for value in values
    )


def _is_constant_without_sign(value: ir.Value) -> bool:
    array = constant_array(value) if is_constant(value) else None
    return array is not None and bool((array >= 0).all())


def _torn(node: ir.Node, target: Target, found: frozenset[str]) -> frozenset[str]:
    """Return the unsigned ones of values that a node ties to one with a sign."""
    rule = target.rule_for(node)
    if rule is None or rule.scales is ScaleRule.FREE:
        return frozenset()
    inputs = [node.inputs[slot] for slot in data_slots(node)]
    outputs = list(node.outputs)
    tied = {
        ScaleRule.UNIFY_INPUTS: inputs,
        ScaleRule.UNIFY_ALL: inputs + outputs,
    }.get(rule.scales, inputs[:1] + outputs)
    names = {str(value.name) for value in tied if value is not None}
    return frozenset() if names <= found else frozenset(names & found)
