"""The formulas of Gelu, HardSwish, LayerNormalization and Softmax that exporters write out."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from intact.graph.graph import Graph
from intact.graph.ops import constant_array, function_options, input_value
from intact.graph.passes.join import (
    Joining,
    Match,
    divide_out,
    is_node,
    is_number,
    join,
    other_operand,
    producer,
    reduces_last,
    sides,
    sole_reader,
)
from intact.graph.passes.join_gelu import gelu
from intact.graph.passes.join_moments import by_moments

__all__ = ["JOINS", "join"]

_SIXTH = 1.0 / 6.0
_TOLERANCE = 1e-4
"""How much the slope of a HardSigmoid may differ from 1/6."""


def _hard_swish(graph: Graph) -> Iterator[Match]:
    """Yield the products of ``x``, ``clip(x + 3, 0, 6)`` and 1/6."""
    for node in graph.nodes:
        if not is_node(node, "Mul", "Div"):
            continue
        data = _hard_swish_data(node)
        if data is not None:
            yield Match(data, node)


def _hard_swish_data(node: ir.Node) -> ir.Value | None:
    """Return ``x`` if a node is the last of the formula."""
    # 1. (x * clip) / 6
    whole = producer(divide_out(node.outputs[0], _SIXTH), "Mul")
    if whole is not None:
        return next((x for x, gate in sides(whole) if _is_clipped(gate, x)), None)
    if node.op_type != "Mul":
        return None
    for left, right in sides(node):
        # 2. x * (clip / 6), also with that as a HardSigmoid
        if _is_sigmoid(right, left) or _is_clipped(divide_out(right, _SIXTH), left):
            return left
        # 3. (x / 6) * clip
        data = divide_out(left, _SIXTH)
        if _is_clipped(right, data):
            return data
    return None


def _is_clipped(value: ir.Value | None, data: ir.Value | None) -> bool:
    """Tell whether a value is ``clip(data + 3, 0, 6)``."""
    clip = producer(value, "Clip")
    if clip is None or data is None:
        return False
    if not is_number(input_value(clip, 1), 0.0) or not is_number(input_value(clip, 2), 6.0):
        return False
    added = producer(clip.inputs[0], "Add")
    return added is not None and any(x is data and is_number(c, 3.0) for x, c in sides(added))


def _is_sigmoid(value: ir.Value | None, data: ir.Value | None) -> bool:
    """Tell whether a value is ``clip(data / 6 + 1/2, 0, 1)``."""
    gate = producer(value, "HardSigmoid")
    if gate is None or data is None or gate.inputs[0] is not data:
        return False
    slope, offset = function_options(gate)
    return math.isclose(float(slope), _SIXTH, rel_tol=_TOLERANCE) and offset == 0.5


def _layer_norm_by_mean(graph: Graph) -> Iterator[Match]:
    """Find ``(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias``, last axis."""
    for node in graph.nodes:
        if not is_node(node, "Div"):
            continue
        centred, root = producer(node.inputs[0], "Sub"), producer(node.inputs[1], "Sqrt")
        if centred is None or root is None:
            continue
        data, epsilon = centred.inputs[0], _epsilon(root, centred)
        length = _length(data)
        if data is None or epsilon is None or length is None or not _is_mean(centred, data):
            continue
        yield _with_constants(graph, node, data, length, epsilon)


def _length(data: ir.Value | None) -> int | None:
    """Return the length of the last axis, if it is known."""
    if data is None or data.shape is None or not data.shape:
        return None
    last = data.shape[-1]
    return last if isinstance(last, int) else None


def _is_mean(centred: ir.Node, data: ir.Value) -> bool:
    mean = producer(centred.inputs[1], "ReduceMean")
    return mean is not None and mean.inputs[0] is data and reduces_last(mean)


def _epsilon(root: ir.Node, centred: ir.Node) -> float | None:
    """Return the epsilon of ``sqrt(mean(centred^2) + epsilon)``; None for anything else."""
    added = producer(root.inputs[0], "Add")
    if added is None:
        return None
    for variance, constant in sides(added):
        mean, small = producer(variance, "ReduceMean"), constant_array(constant)
        if mean is None or small is None or small.size != 1 or not reduces_last(mean):
            continue
        square = producer(mean.inputs[0], "Mul")
        if square is not None and all(x is centred.outputs[0] for x in square.inputs):
            return float(small.reshape(()))
    return None


def _with_constants(
    graph: Graph, node: ir.Node, data: ir.Value, length: int, epsilon: float
) -> Match:
    """Add the scale and bias that follow, if they are constants along the last axis."""
    last, scale, bias = node, np.ones(length, np.float32), np.zeros(0, np.float32)
    following = sole_reader(graph, last, "Mul")
    row = None if following is None else _row(following, last, length)
    if following is not None and row is not None:
        last, scale = following, row
    following = sole_reader(graph, last, "Add")
    row = None if following is None else _row(following, last, length)
    if following is not None and row is not None:
        last, bias = following, row
    constants = (scale, bias) if bias.size else (scale,)
    return Match(data, last, constants, {"axis": -1, "epsilon": epsilon})


def _row(node: ir.Node, before: ir.Node, length: int) -> np.ndarray | None:
    array = constant_array(other_operand(node, before.outputs[0]))
    if array is None or array.dtype != np.float32 or array.size not in {1, length}:
        return None
    # A column of that many numbers lies along another axis.
    if array.size == length and (array.ndim == 0 or array.shape[-1] != length):
        return None
    return np.broadcast_to(array.reshape(-1), (length,)).copy()


def _layer_norm(graph: Graph) -> Iterator[Match]:
    yield from _layer_norm_by_mean(graph)
    yield from by_moments(graph)


def _softmax(graph: Graph) -> Iterator[Match]:
    """Find ``exp(x - max(x)) / sum(exp(x - max(x)))`` over the last axis."""
    for node in graph.nodes:
        if not is_node(node, "Div"):
            continue
        powers = producer(node.inputs[0], "Exp")
        shifted = None if powers is None else producer(powers.inputs[0], "Sub")
        if powers is None or shifted is None:
            continue
        data = shifted.inputs[0]
        is_whole = _reduced_data(node.inputs[1], "ReduceSum") is powers.outputs[0]
        if data is not None and is_whole and _reduced_data(shifted.inputs[1], "ReduceMax") is data:
            yield Match(data, node, attributes={"axis": -1})


def _reduced_data(value: ir.Value | None, op_type: str) -> ir.Value | None:
    """Return what a value reduces along the last axis, which it keeps, perhaps by a Reshape."""
    reshape = producer(value, "Reshape", "Unsqueeze")
    node = producer(value if reshape is None else reshape.inputs[0], op_type)
    data = None if node is None else node.inputs[0]
    if node is None or data is None or not reduces_last(node, keepdims=reshape is None):
        return None
    # A Reshape may do more than give back the axis that was reduced.
    kept = (*(data.shape or ()),)[:-1]
    if reshape is not None and (value is None or tuple(value.shape or ()) != (*kept, 1)):
        return None
    return data


JOINS: dict[str, Joining] = {
    each.op_type: each
    for each in (
        Joining("Gelu", 20, gelu),
        Joining("HardSwish", 14, _hard_swish),
        Joining("LayerNormalization", 17, _layer_norm),
        Joining("Softmax", 11, _softmax),
    )
}
"""What is recognized, by operator type."""
