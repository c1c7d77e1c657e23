"""Finds inputs that join states of unlike ranges, such as the two states of an LSTM.

A recurrent net that is written out takes a hidden state within 1 and a cell state up to some
hundreds as one tensor. On one scale little is left of the first. And what updates the second,
element by element, hands it on to functions that saturate at 4: there its step is too wide. Nodes
that only read parts, and those of the update, cost little in float.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec
import onnx_ir as ir

from intact.calibrate.statistics import Statistics
from intact.calibrate.tail import UNLIKE, Tail, is_cheap
from intact.graph import Graph, OpKind, is_constant, moves_values, op_spec
from intact.plan import QuantizedGraph


class Parts(msgspec.Struct, frozen=True):
    """An input that is read in parts.

    Attributes:
        value: The input.
        movers: The nodes that cut the parts out of it, in topological order.
        parts: What other nodes read.
    """

    value: ir.Value
    movers: tuple[ir.Node, ...]
    parts: tuple[ir.Value, ...]

    @staticmethod
    def of(graph: Graph, value: ir.Value) -> Parts | None:
        """Find them; None where the input is read as a whole, or by one node."""
        movers: dict[ir.Node, None] = {}
        parts: dict[ir.Value, None] = {}
        waiting = [value]
        while waiting:
            each = waiting.pop()
            for node, slot in graph.consumers(each):
                if slot == 0 and moves_values(node):
                    movers[node] = None
                    waiting += node.outputs
                else:
                    parts[each] = None
            if each.is_graph_output():
                parts[each] = None
        # Read as a whole anywhere, the input has one scale anyway.
        if value in parts or len(parts) < 2:
            return None
        ordered = tuple(node for node in graph.nodes if node in movers)
        return Parts(value, ordered, tuple(parts))


class JoinedState(msgspec.Struct, frozen=True):
    """The inputs of a plan that are read in parts.

    Attributes:
        plan: The plan.
        inputs: Those inputs, whose codes have one scale.
    """

    plan: QuantizedGraph
    inputs: Sequence[Parts]

    @staticmethod
    def of(plan: QuantizedGraph) -> JoinedState | None:
        """Find them; None where there are none."""
        graph = plan.graph
        floats = (value for value in graph.inputs if graph.is_float(value))
        found = [parts for value in floats if (parts := Parts.of(graph, value)) is not None]
        found = [each for each in found if any(map(plan.is_quantized, each.movers))]
        return JoinedState(plan, found) if found else None

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the parts, and of what is computed of them, whose ranges have to be known."""
        parts = [value for each in self.inputs for value in each.parts]
        made = [value for node in _onwards(self.plan.graph, parts) for value in node.outputs]
        return tuple(dict.fromkeys(str(value.name) for value in (*parts, *made)))

    def unlike(self, statistics: Statistics) -> dict[ir.Value, Parts]:
        """Find the large parts of inputs whose parts have unlike ranges.

        Args:
            statistics: The statistics of the `tensors`.
        """
        found: dict[ir.Value, Parts] = {}
        for each in self.inputs:
            seen = {value: statistics[str(value.name)] for value in each.parts}
            reaches = {value: max(-s.minimum, s.maximum) for value, s in seen.items()}
            # A part that is always 0 is like any other.
            least = min((reach for reach in reaches.values() if reach > 0), default=0.0)
            large = [value for value, reach in reaches.items() if reach >= UNLIKE * least > 0]
            found |= dict.fromkeys(large, each)
        return found

    def candidates(
        self, unlike: dict[ir.Value, Parts], tail: Tail | None, joins: Sequence[ir.Node]
    ) -> Iterator[tuple[str, ...]]:
        """Yield names of quantized nodes to keep in float, fewer first.

        Those are what cuts unlike parts out of an input, with the joins of unlike ranges behind the
        last layers; then also what updates the large parts element by element.

        Args:
            unlike: The result of `unlike`.
            tail: What stands behind the last layers.
            joins: The joins of unlike ranges there.
        """
        movers = {node for each in unlike.values() for node in each.movers}
        behind = set() if tail is None else set(tail.behind(joins))
        large = [value for join in joins for value in join.inputs if value is not None]
        update = {*_onwards(self.plan.graph, unlike), *_back(large)}
        for kept in (movers | behind, movers | behind | update):
            nodes = [node for node in self.plan.graph.nodes if node in kept]
            names = tuple(str(node.name) for node in nodes if self.plan.is_quantized(node))
            if names and is_cheap(self.plan, nodes):
                yield names


def _onwards(graph: Graph, values: Collection[ir.Value]) -> Iterator[ir.Node]:
    """Yield what computes with values element by element, up to the first functions."""
    seen: set[ir.Node] = set()
    waiting = list(values)
    while waiting:
        for node, _ in graph.consumers(waiting.pop()):
            if node in seen or not (_is_update(node) or _is_function(node)):
                continue
            seen.add(node)
            yield node
            if not _is_function(node):
                waiting += node.outputs


def _back(values: Sequence[ir.Value]) -> Iterator[ir.Node]:
    """Yield what makes values element by element, from functions and layers on."""
    seen: set[ir.Node] = set()
    waiting = list(values)
    while waiting:
        node = waiting.pop().producer()
        if node is None or node in seen or not _is_update(node):
            continue
        seen.add(node)
        yield node
        waiting += [value for value in node.inputs if value is not None and not is_constant(value)]


def _is_update(node: ir.Node) -> bool:
    spec = op_spec(node)
    return moves_values(node) or (spec is not None and spec.kind is OpKind.ELEMENTWISE)


def _is_function(node: ir.Node) -> bool:
    spec = op_spec(node)
    return spec is not None and spec.kind is OpKind.ACTIVATION
