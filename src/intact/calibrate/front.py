"""Finds what computes a spectrum in front of a net: nodes that only logs and roots read.

The numbers that a logarithm reads differ by factors of thousands, and each counts alike. A step of
eight bits is as large as most of them, and nothing behind averages that away: the noise ``d`` of
``x`` becomes ``d / x`` in ``log(x)``, and ``d / (2 sqrt(x))`` in the root of ``x``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec
import onnx_ir as ir

from intact.calibrate.tail import is_layer, products
from intact.graph import constant_array, is_constant
from intact.ops import functions
from intact.ops.operators import Pow, is_a, types_of
from intact.plan import QuantizedGraph

COMPRESSORS = types_of(functions.log, Pow, functions.sqrt)
"""Operators whose results change most where what they read is small; powers below one alone."""
_CHEAP = 0.5
"""Share of all multiplications that stay integers at least, or else little is left to gain."""


class Front(msgspec.Struct, frozen=True):
    """What leads to logarithms and roots alone, with them.

    Attributes:
        plan: The plan.
        nodes: All of it, in topological order.
    """

    plan: QuantizedGraph
    nodes: Sequence[ir.Node]

    @staticmethod
    def of(plan: QuantizedGraph) -> Front | None:
        """Find it; None where nothing of it is quantized."""
        nodes = tuple(_leading_nodes(plan))
        found = Front(plan, nodes)
        return found if any(True for _ in found.candidates()) else None

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that leave it, whose ranges have to be known."""
        inside = set(self.nodes)
        leaving = (
            value
            for node in self.nodes
            for value in node.outputs
            if any(reader not in inside for reader, _ in self.plan.graph.consumers(value))
        )
        return tuple(str(value.name) for value in leaving if self.plan.graph.is_float(value))

    def candidates(self) -> Iterator[tuple[str, ...]]:
        """Yield names of quantized nodes to keep in float, fewer first.

        Those are what stands between the last layers and the logarithms, then the layers too.
        """
        seen: set[tuple[str, ...]] = {()}
        for kept in (self._behind_layers(), self.nodes):
            names = tuple(str(node.name) for node in kept if self.plan.is_quantized(node))
            if names not in seen and self._is_cheap(kept):
                seen.add(names)
                yield names

    def _behind_layers(self) -> list[ir.Node]:
        """Return the nodes of which no layer of the front reads anything."""
        inside, found = set(self.nodes), set[ir.Node]()
        for node in reversed(self.nodes):
            readers = inside.intersection(_readers(self.plan, node))
            if not is_layer(node) and readers <= found:
                found.add(node)
        return [node for node in self.nodes if node in found]

    def _is_cheap(self, kept: Collection[ir.Node]) -> bool:
        layers = sum(products(node) for node in self.plan.graph.nodes)
        return sum(products(node) for node in kept) <= _CHEAP * layers


def _leading_nodes(plan: QuantizedGraph) -> Iterator[ir.Node]:
    """Yield what leads to logarithms and roots alone, with them, in topological order."""
    found: set[ir.Node] = set()
    for node in reversed(plan.graph.nodes):
        readers = _readers(plan, node)
        ends = any(value.is_graph_output() for value in node.outputs)
        # Backwards: a node leads there alone if all that reads it does.
        if _compresses(node) or (readers and not ends and all(each in found for each in readers)):
            found.add(node)
    return (node for node in plan.graph.nodes if node in found)


def _readers(plan: QuantizedGraph, node: ir.Node) -> list[ir.Node]:
    return [reader for value in node.outputs for reader, _ in plan.graph.consumers(value)]


def _compresses(node: ir.Node) -> bool:
    if is_a(node, Pow):
        power = constant_array(node.inputs[1])
        return power is not None and power.size == 1 and 0 < power.item() < 1
    value = node.inputs[0] if node.op_type in COMPRESSORS else None
    return value is not None and not is_constant(value)
