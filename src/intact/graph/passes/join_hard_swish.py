"""HardSwish written out: ``x * clip(x + 3, 0, 6) / 6`` in every order, or with HardSigmoid."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from intact.graph.graph import Graph
from intact.graph.ops import function_options, input_value
from intact.graph.passes.join import Joined, Match, is_node, is_number, producer, scaled, sides

_SIXTH = 1.0 / 6.0
_TOLERANCE = 1e-4
"""For the attributes of a HardSigmoid."""


def _matches(graph: Graph) -> Iterator[Match]:
    """Yield the products of ``x``, ``clip(x + 3, 0, 6)`` and 1/6."""
    for node in graph.nodes:
        if not is_node(node, "Mul", "Div"):
            continue
        data = _swished(node)
        if data is not None:
            yield Match(data, node)


def _swished(node: ir.Node) -> ir.Value | None:
    """Return ``x`` if a node is the last of the formula."""
    whole = producer(scaled(node.outputs[0], _SIXTH), "Mul")
    if whole is not None:  # (x * clip) / 6
        return next((x for x, gate in sides(whole) if _is_clipped(gate, x)), None)
    if node.op_type != "Mul":
        return None
    for left, right in sides(node):
        if _is_sigmoid(right, left) or _is_clipped(scaled(right, _SIXTH), left):
            return left  # x * (clip / 6)
        data = scaled(left, _SIXTH)
        if _is_clipped(right, data):
            return data  # (x / 6) * clip
    return None


def _is_clipped(value: ir.Value | None, data: ir.Value | None) -> bool:
    """Tell whether a value is ``clip(data + 3, 0, 6)``."""
    clip = producer(value, "Clip")
    if clip is None or data is None:
        return False
    if not _is_zero(input_value(clip, 1)) or not is_number(input_value(clip, 2), 6.0):
        return False
    added = producer(clip.inputs[0], "Add")
    return added is not None and any(x is data and is_number(c, 3.0) for x, c in sides(added))


def _is_zero(value: ir.Value | None) -> bool:
    return is_number(value, 0.0)


def _is_sigmoid(value: ir.Value | None, data: ir.Value | None) -> bool:
    """Tell whether a value is ``clip(data / 6 + 1/2, 0, 1)``."""
    gate = producer(value, "HardSigmoid")
    if gate is None or data is None or gate.inputs[0] is not data:
        return False
    slope, offset = function_options(gate)
    return math.isclose(float(slope), _SIXTH, rel_tol=_TOLERANCE) and offset == 0.5


HARD_SWISH = Joined("HardSwish", 14, _matches)
