"""What will be int8 and what float, and why, before anything is run or written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from intact.graph import Graph, weight_slot
from intact.plan.build import build_plan
from intact.plan.overrides import Overrides
from intact.plan.quantized_graph import QuantizedGraph, quantizes
from intact.targets import Target


@dataclass(frozen=True)
class NodeReport:
    """One node of the plan.

    Attributes:
        node: Its name.
        op_type: Its operator.
        quantized: It computes with integers.
        activation_bits: Bits of its output, or of its first quantised input; None for float.
        weight_bits: Bits of its weight; None where it has none or it is float.
        fused_into: The node whose output stands for its own on the hardware; "" if none.
        reason: Why it is quantised or not.
    """

    node: str
    op_type: str
    quantized: bool
    activation_bits: int | None
    weight_bits: int | None
    fused_into: str
    reason: str


@dataclass(frozen=True)
class Inspection:
    """All nodes in topological order, and the counts by op type as (quantised, float)."""

    target: str
    nodes: list[NodeReport]
    by_type: dict[str, tuple[int, int]]


def inspect_graph(graph: Graph, target: Target, overrides: Overrides | None = None) -> Inspection:
    """Build the structure of a plan and report it.

    Raises:
        UsageError: An override names nothing in the graph.
    """
    plan = build_plan(graph, target, overrides)
    nodes = [_report(plan, str(node.name)) for node in graph.nodes]
    quantized = Counter(row.op_type for row in nodes if row.quantized)
    total = Counter(row.op_type for row in nodes)
    by_type = {
        op_type: (quantized[op_type], n - quantized[op_type])
        for op_type, n in sorted(total.items())
    }
    return Inspection(target.name, nodes, by_type)


def _report(plan: QuantizedGraph, name: str) -> NodeReport:
    node = plan.graph.node(name)
    decision = plan.decisions[name]
    weight, bits, fused_into = None, None, ""
    if decision.quantized:
        slot = weight_slot(node)
        if slot is not None and quantizes(plan.input_config(node, slot)):
            weight = plan.input_config(node, slot).bits
        ends = {end: config for end, config in plan.configs.items() if end.node == name}
        output = plan.output_config(node)
        if output.dominator is not output and not quantizes(output):
            fused_into = next(e.node for e, c in plan.configs.items() if c is output.dominator)
        bits = next((c.dominator.bits for e, c in reversed(ends.items()) if c.bits <= 16), None)
    return NodeReport(
        name, node.op_type, decision.quantized, bits, weight, fused_into, decision.reason
    )
