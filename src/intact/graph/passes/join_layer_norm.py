"""LayerNormalization over the last axis, written out as exporters below opset 17 do.

``(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from intact.graph.graph import Graph
from intact.graph.ops import constant_array
from intact.graph.passes.join import (
    Joined,
    Match,
    is_node,
    other_operand,
    producer,
    reduces_last,
    sides,
    sole_reader,
)
from intact.graph.passes.join_moments import by_moments


def _matches(graph: Graph) -> Iterator[Match]:
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
    if array.size == length and (array.ndim == 0 or array.shape[-1] != length):
        return None
    return np.broadcast_to(array.reshape(-1), (length,)).copy()


def _every(graph: Graph) -> Iterator[Match]:
    yield from _matches(graph)
    yield from by_moments(graph)


LAYER_NORM = Joined("LayerNormalization", 17, _every)
