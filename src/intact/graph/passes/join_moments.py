"""LayerNormalization over one axis by its first two moments, as exports of Flax write it.

``(x - mean) * (scale / sqrt(max(0, mean(x^2) - mean^2) + epsilon)) + bias``, with means as sums
times ``1 / n`` that lose their axis and get it back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from intact.graph.graph import Graph
from intact.graph.ops import constant_array, input_value
from intact.graph.passes.join import (
    Match,
    is_node,
    is_number,
    other_operand,
    producer,
    sides,
    sole_reader,
)
from intact.ops.operators import Reduce

_VIEWS = ("Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze")


class _Mean(NamedTuple):
    """A mean: of what, and over which axis."""

    data: ir.Value
    axis: int


def by_moments(graph: Graph) -> Iterator[Match]:
    """Yield what is found in a graph."""
    for node in graph.nodes:
        if is_node(node, "Sqrt"):
            found = _match(graph, node)
            if found is not None:
                yield found


def _match(graph: Graph, root: ir.Node) -> Match | None:
    added = producer(root.inputs[0], "Add")
    if added is None:
        return None
    for variance, small in sides(added):
        epsilon = constant_array(small)
        mean = _mean_of_variance(variance)
        if mean is not None and epsilon is not None and epsilon.size == 1:
            last, scale, bias = _find_affine(graph, root, mean)
            if last is None or not _keeps_axis(added.outputs[0], mean):
                return None
            rank = len(mean.data.shape or ())
            order = (*(k for k in range(rank) if k != mean.axis), mean.axis)
            constants = (scale,) if bias is None else (scale, bias)
            attributes = {"axis": -1, "epsilon": float(epsilon.reshape(()))}
            moved = () if order == tuple(range(rank)) else order
            return Match(mean.data, last, constants, attributes, moved)
    return None


def _mean_of_variance(value: ir.Value | None) -> _Mean | None:
    """Return the mean of ``mean(x^2) - mean^2``, of which the smallest may be 0."""
    value = _skip_views(value)
    # Rounding may bring the difference below 0, which exports prevent.
    limited = producer(value, "Max", "Relu")
    if limited is not None and limited.op_type == "Relu":
        value = _skip_views(limited.inputs[0])
    elif limited is not None and len(limited.inputs) == 2:
        value = next((_skip_views(a) for a, b in sides(limited) if is_number(b, 0.0)), None)
    difference = producer(value, "Sub")
    if difference is None:
        return None
    squares, squared = (_skip_views(each) for each in difference.inputs)
    of_squares, product = _mean(squares), producer(squared, "Mul")
    if of_squares is None or product is None or product.inputs[0] is not product.inputs[1]:
        return None
    mean, square = _mean(_skip_views(product.inputs[0])), producer(of_squares.data, "Mul")
    if mean is None or square is None or mean.axis != of_squares.axis:
        return None
    return mean if all(each is mean.data for each in square.inputs) else None


def _mean(value: ir.Value | None) -> _Mean | None:
    """Return what a value is the mean of, over one axis of known length."""
    reduction = producer(value, "ReduceMean")
    if reduction is not None:
        return _as_mean(reduction)
    scaled = producer(value, "Mul")
    for total, factor in sides(scaled) if scaled is not None else ():
        reduction = producer(_skip_views(total), "ReduceSum")
        found = None if reduction is None else _as_mean(reduction)
        if found is not None and is_number(factor, 1.0 / _length(found)):
            return found
    return None


def _as_mean(node: ir.Node) -> _Mean | None:
    data = node.inputs[0]
    given = constant_array(input_value(node, 1))
    axes = Reduce.of(node).axes if given is None else given.reshape(-1).tolist()
    if data is None or data.shape is None or len(axes) != 1:
        return None
    found = _Mean(data, int(axes[0]) % len(data.shape))
    return found if _length(found) else None


def _length(mean: _Mean) -> int:
    """Return the length of the axis; 0 where it is not known."""
    length = mean.data.shape[mean.axis] if mean.data.shape is not None else 0
    return length if isinstance(length, int) else 0


def _skip_views(value: ir.Value | None) -> ir.Value | None:
    """Return what a value only gives another shape."""
    node = producer(value, *_VIEWS)
    # An Expand may repeat values; only one that keeps their number is a view.
    while node is not None and _size(node.inputs[0]) == _size(node.outputs[0]):
        value = node.inputs[0]
        node = producer(value, *_VIEWS)
    return value


def _size(value: ir.Value | None) -> tuple[int, int] | None:
    """Return the product of the known lengths, and how many are open."""
    if value is None or value.shape is None:
        return None
    known = [n for n in value.shape if isinstance(n, int)]
    return math.prod(known), len(value.shape) - len(known)


def _keeps_axis(value: ir.Value, mean: _Mean) -> bool:
    """Tell whether a value has the lengths of the data, with 1 along the axis of the mean."""
    shape = mean.data.shape or ()
    own = value.shape
    if own is None or len(own) != len(shape):
        return False
    wanted = [1 if k == mean.axis else length for k, length in enumerate(shape)]
    pairs = zip(own, wanted, strict=True)
    # Open lengths have other names behind a reduction or Reshape.
    return all(a == b or not (isinstance(a, int) or isinstance(b, int)) for a, b in pairs)


def _find_affine(
    graph: Graph, root: ir.Node, mean: _Mean
) -> tuple[ir.Node | None, np.ndarray, np.ndarray | None]:
    """Return the last node, with scale and bias; no node where something else follows."""
    scale, bias = np.ones(_length(mean), np.float32), None
    factor = sole_reader(graph, root, "Reciprocal")
    if factor is None:
        return None, scale, bias
    last: ir.Node | None = None
    # Scale and centred data are multiplied in either order.
    while (reader := sole_reader(graph, factor, "Mul")) is not None:
        other = other_operand(reader, factor.outputs[0])
        row = _along(other, mean)
        if row is not None:
            scale = scale * row
        elif last is None and _is_centred(other, mean):
            last = reader
        else:
            break
        factor = reader
        last = None if last is None else reader
    added = None if last is None else sole_reader(graph, factor, "Add")
    row = None if added is None else _along(other_operand(added, factor.outputs[0]), mean)
    return (last, scale, None) if row is None else (added, scale, row)


def _is_centred(value: ir.Value | None, mean: _Mean) -> bool:
    node = producer(value, "Sub")
    if node is None or node.inputs[0] is not mean.data or node.inputs[1] is None:
        return False
    return _keeps_axis(node.inputs[1], mean) and _mean(_skip_views(node.inputs[1])) == mean


def _along(value: ir.Value | None, mean: _Mean) -> np.ndarray | None:
    """Return a constant as one number for each place along the axis; None for any other value."""
    array, rank = constant_array(value), len(mean.data.shape or ())
    if array is None or array.dtype != np.float32 or array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    wanted = tuple(_length(mean) if k == mean.axis else 1 for k in range(rank))
    if array.size != 1 and shape != wanted:
        return None
    return np.broadcast_to(array.reshape(-1), (_length(mean),)).copy()
