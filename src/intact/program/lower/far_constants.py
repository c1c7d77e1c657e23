"""Moves constants far out of the range of their codes to where they saturate too.

A mask is -1e9, -3.4e38 or -inf; what chooses between it and scores may compute in float and hand
its result to integers. Runtimes convert by rounding to int32 first, where such a quotient wraps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from intact.graph import constant_array, data_slots, facts, input_value, is_constant, moves_values
from intact.ops.operators import Pad
from intact.plan import QuantizedGraph, QuantPoint
from intact.program.lower.chains import Points

_FAR = 2.0**29
"""Codes from 0, at most: beyond every range, and the sum of two of them is still an int32."""
_PAD_VALUE = 2


def move_far_constants(plan: QuantizedGraph, points: Points) -> QuantizedGraph:
    """Return a plan in which no constant is further out than codes reach by far.

    Concerned are float constants that are added, chosen or padded with, where all that is made of
    them is quantized by the plan: it saturates as before.

    Args:
        plan: A plan with scales; it is not changed, and returned where nothing is to do.
        points: Its quantization points.
    """
    spans = _Spans(plan, points)
    far: dict[str, float] = {}
    for value in _constants(plan):
        limit, array = spans.span(value).limit, constant_array(value)
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
    known = facts(node)
    if not (known.selects or known.adds or moves_values(node)):
        return ()
    extra = (_PAD_VALUE,) if node.op_type == Pad.name else ()
    return (*data_slots(node), *extra)


class _Span(NamedTuple):
    """Where a constant may be moved to.

    Attributes:
        least: All that is further from 0 saturates; infinity where something reads it as a float.
        most: What is further may be no int32.
    """

    least: float = np.inf
    most: float = np.inf

    @property
    def limit(self) -> float:
        """How far from 0 a constant may be."""
        return max(self.least, self.most)


def _join_spans(spans: Iterable[_Span]) -> _Span:
    """Return the span of a value that is read in several ways."""
    found = tuple(spans) or (_Span(),)
    return _Span(max(each.least for each in found), min(each.most for each in found))


def _span(point: QuantPoint) -> _Span:
    config = point.config
    if config.scale is None or config.grid.exponential:
        return _Span()
    # Twice the range, by the largest scale: whatever the zero point, that far out a code saturates.
    # The smallest scale gives the largest quotient, which must stay an int32.
    scale, codes = float(np.max(config.scale)), config.grid.quant_max - config.grid.quant_min
    return _Span(2.0 * scale * codes, _FAR * float(np.min(config.scale)))


class _Spans:
    """The spans of values, from those that read them."""

    def __init__(self, plan: QuantizedGraph, points: Points) -> None:
        self._plan, self._points = plan, points
        self._known: dict[ir.Value, _Span] = {}
        # From the end, so that the span of a value finds those of its readers known: recursion
        # through a deep model would exceed Python's limit.
        for node in reversed(plan.graph.nodes):
            for value in node.outputs:
                self._known[value] = self._find_span(value)

    def span(self, value: ir.Value) -> _Span:
        """Return the span of a value."""
        if value not in self._known:
            self._known[value] = self._find_span(value)
        return self._known[value]

    def _find_span(self, value: ir.Value) -> _Span:
        if value in self._points.at_output:
            return _span(self._points.at_output[value])
        if value.is_graph_output():
            return _Span()
        return _join_spans(
            self._span_at(node, slot) for node, slot in self._plan.graph.consumers(value)
        )

    def _span_at(self, node: ir.Node, slot: int) -> _Span:
        point = self._points.at_input.get((str(node.name), slot))
        if point is not None:
            return _span(point)
        if slot not in _slots(node):
            return _Span()
        return _join_spans(self.span(each) for each in node.outputs)
