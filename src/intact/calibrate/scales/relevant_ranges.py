"""Narrows the range of a tensor to the values that its readers can tell apart.

A Max with -0.4 makes -0.4 of everything below, so a tensor that only this Max reads needs no codes
below -0.4. Where a LeakyRelu of slope 0.2 stands before the Max, its input needs none below -2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import onnx_ir as ir

from intact.graph import Graph, constant_array, input_value, is_constant, moves_values
from intact.graph.graph import IMPLICIT_SLOT
from intact.graph.ops import function_options
from intact.numerics.distribution import Distribution

Interval: TypeAlias = tuple[float, float]

_ALL: Interval = (-math.inf, math.inf)
_NONE: Interval = (math.inf, -math.inf)
_EXTREMES = frozenset({"Max", "Min"})


def relevant_ranges(graph: Graph) -> dict[str, Interval]:
    """Return the intervals within which the readers of tensors tell values apart.

    Only limits that a Max, Min or Clip with constants sets are followed, through LeakyRelu and what
    moves values. A Relu is left out: it is part of the layer before it, or has its scale.

    Returns:
        By name; tensors of which all values count are left out.
    """
    read_elsewhere = (
        value
        for value in graph.values
        if value.is_graph_output() or any(at == IMPLICIT_SLOT for _, at in graph.consumers(value))
    )
    found = {str(value.name): _ALL for value in read_elsewhere}
    # From the outputs: what readers tell apart is known before what gives them their data.
    for node in reversed(graph.nodes):
        behind = [found.get(str(value.name), _NONE) for value in node.outputs]
        before = _before(node, _hull(behind))
        for value in (v for v in node.inputs if v is not None and not is_constant(v)):
            name = str(value.name)
            found[name] = _hull([found.get(name, _NONE), before])
    return {name: each for name, each in found.items() if each not in (_ALL, _NONE)}


def within(distribution: Distribution, interval: Interval) -> Distribution:
    """Return a distribution with its values beyond an interval moved to its ends."""
    low, high = interval
    if low <= distribution.minimum and distribution.maximum <= high:
        return distribution
    lows, highs = (np.clip(each, low, high) for each in (distribution.low, distribution.high))
    points = lows == highs
    # bins that became points of the same place are one
    first = np.append(True, ~(points[1:] & points[:-1] & (lows[1:] == lows[:-1])))
    counts = np.add.reduceat(distribution.count, np.flatnonzero(first))
    lows, highs = lows[first], highs[first]
    middle = 0.5 * (lows + highs)
    minimum, maximum = np.clip((distribution.minimum, distribution.maximum), low, high).tolist()
    means = np.clip((distribution.mean_minimum, distribution.mean_maximum), low, high).tolist()
    return msgspec.structs.replace(
        distribution,
        low=lows,
        high=highs,
        count=counts,
        minimum=minimum,
        maximum=maximum,
        mean_minimum=means[0],
        mean_maximum=means[1],
        mean=float(np.dot(counts, middle) / counts.sum()),
        mean_square=float(np.dot(counts, middle * middle) / counts.sum()),
    )


def _hull(intervals: Sequence[Interval]) -> Interval:
    lows, highs = zip(*intervals, strict=True)
    return min(lows), max(highs)


def _before(node: ir.Node, behind: Interval) -> Interval:
    """Return the interval that counts in a node's inputs, from that of its output."""
    if node.domain != "":
        return _ALL
    low, high = behind
    if moves_values(node) or node.op_type == "Identity":
        return behind
    if node.op_type == "LeakyRelu":
        slope = float(function_options(node)[0])
        return _unscaled(behind, slope) if slope > 0 else _ALL
    least, most = _limits(node)
    return (max(low, least), min(high, most)) if (least, most) != _ALL else _ALL


def _unscaled(interval: Interval, slope: float) -> Interval:
    """Return the inputs for which a LeakyRelu gives an interval."""
    low, high = (each / slope if each < 0 else each for each in interval)
    return low, high


def _limits(node: ir.Node) -> Interval:
    """Return between which numbers a node limits what it reads."""
    if node.op_type in _EXTREMES:
        arrays = [constant_array(value) for value in node.inputs if is_constant(value)]
        known = [array for array in arrays if array is not None and array.size]
        if not known or np.isnan(known[0]).any():
            return _ALL
        if node.op_type == "Max":
            return float(known[0].min()), math.inf
        return -math.inf, float(known[0].max())
    if node.op_type == "Clip":
        low, high = (constant_array(input_value(node, slot)) for slot in (1, 2))
        return (
            -math.inf if low is None or not low.size else float(low.min()),
            math.inf if high is None or not high.size else float(high.max()),
        )
    return _ALL
