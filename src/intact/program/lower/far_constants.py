"""Constants far out of the range of the codes that they become: moved to where they saturate too.

A mask is -1e9, -3.4e38 or -inf; what chooses between it and scores may compute in float and hand
its result to integers. Runtimes convert by rounding to int32 first, where such a quotient wraps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from intact.graph import constant_array, data_slots, input_value, is_constant, moves_values
from intact.plan import QuantizedGraph, QuantPoint
from intact.program.lower.chains import Points

_FAR = 2.0**29
"""Codes from 0, at most: beyond every range, and the sum of two of them is still an int32."""
_SELECTS = frozenset(
    {"Add", "Clip", "Concat", "Identity", "Max", "Min", "Relu", "Sub", "Sum", "Where"}
)
"""Operators whose result grows with each operand, and is the same for all that saturate later."""
_PAD_VALUE = 2


def with_near_constants(plan: QuantizedGraph, points: Points) -> QuantizedGraph:
    """Return a plan in which no constant is further out than codes reach by far.

    Concerned are float constants that are added, chosen or padded with, where all that is made of
    them is quantized by the plan: it saturates as before.

    Args:
        plan: With scales; it is not changed, and returned where nothing is to do.
        points: Its quantization points.
    """
    limits = _Limits(plan, points)
    far: dict[str, float] = {}
    for value in _constants(plan):
        limit, array = limits.of(value), constant_array(value)
        if not np.isfinite(limit) or array is None or array.dtype.kind != "f":
            continue
        if (np.abs(array) > limit).any():
            far[str(value.name)] = limit
    if not far:
        return plan
    graph = plan.graph.clone()
    for value in [each for node in graph.nodes for each in node.inputs if each is not None]:
        array = constant_array(value) if str(value.name) in far else None
        if array is not None:
            limit = far.pop(str(value.name))
            near = np.clip(array, -limit, limit).astype(array.dtype)
            value.const_value = ir.Tensor(near, dtype=value.dtype, name=value.name)
    return replace(plan.copy(), graph=graph)


def _constants(plan: QuantizedGraph) -> Iterator[ir.Value]:
    """Yield the constant operands of nodes that select."""
    for node in plan.graph.nodes:
        for slot in _slots(node):
            value = input_value(node, slot)
            if value is not None and is_constant(value):
                yield value


def _slots(node: ir.Node) -> tuple[int, ...]:
    """Return the inputs of which a node's result takes values, or sums of them."""
    if node.domain != "" or not (node.op_type in _SELECTS or moves_values(node)):
        return ()
    extra = (_PAD_VALUE,) if node.op_type == "Pad" else ()
    return (*data_slots(node), *extra)


class _Limits:
    """How far from 0 values may be, so that all that is made of them saturates beyond that."""

    def __init__(self, plan: QuantizedGraph, points: Points) -> None:
        self._plan, self._points = plan, points
        self._known: dict[ir.Value, float] = {}
        for node in reversed(plan.graph.nodes):
            for value in node.outputs:
                self._known[value] = self._of(value)

    def of(self, value: ir.Value) -> float:
        """Return the limit of a value; infinity where something reads it as a float."""
        if value not in self._known:
            self._known[value] = self._of(value)
        return self._known[value]

    def _of(self, value: ir.Value) -> float:
        if value in self._points.at_output:
            return _limit(self._points.at_output[value])
        readers = self._plan.graph.consumers(value)
        if value.is_graph_output() or not readers:
            return float(np.inf)
        return max(self._at(node, slot) for node, slot in readers)

    def _at(self, node: ir.Node, slot: int) -> float:
        point = self._points.at_input.get((str(node.name), slot))
        if point is not None:
            return _limit(point)
        if slot not in _slots(node):
            return float(np.inf)
        return max((self.of(each) for each in node.outputs), default=np.inf)


def _limit(point: QuantPoint) -> float:
    config = point.config
    if config.scale is None or config.grid.exponential:
        return float(np.inf)
    return float(np.max(config.scale)) * _FAR
