"""Softmax over the last axis, written out: ``exp(x - max(x)) / sum(exp(x - max(x)))``."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from intact.graph.graph import Graph
from intact.graph.passes.join import Joined, Match, is_node, producer, reduces_last


def _matches(graph: Graph) -> Iterator[Match]:
    for node in graph.nodes:
        if not is_node(node, "Div"):
            continue
        powers = producer(node.inputs[0], "Exp")
        shifted = None if powers is None else producer(powers.inputs[0], "Sub")
        if powers is None or shifted is None:
            continue
        data = shifted.inputs[0]
        is_whole = _reduced(node.inputs[1], "ReduceSum") is powers.outputs[0]
        if data is not None and is_whole and _reduced(shifted.inputs[1], "ReduceMax") is data:
            yield Match(data, node, attributes={"axis": -1})


def _reduced(value: ir.Value | None, op_type: str) -> ir.Value | None:
    """Return what a value reduces along the last axis, which it keeps, perhaps by a Reshape."""
    reshape = producer(value, "Reshape", "Unsqueeze")
    node = producer(value if reshape is None else reshape.inputs[0], op_type)
    data = None if node is None else node.inputs[0]
    if node is None or data is None or not reduces_last(node, keepdims=reshape is None):
        return None
    kept = (*(data.shape or ()),)[:-1]
    if reshape is not None and (value is None or tuple(value.shape or ()) != (*kept, 1)):
        return None
    return data


SOFTMAX = Joined("Softmax", 11, _matches)
