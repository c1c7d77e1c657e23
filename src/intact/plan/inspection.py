"""Reports which nodes will be quantized, with how many bits, and why, without data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from intact.config import QuantState
from intact.graph import data_slots, weight_slot
from intact.graph.given_nodes import GivenNode
from intact.plan.batch_norms import BatchNormScale, batch_norm_scales
from intact.plan.dynamic import is_dynamic
from intact.plan.quantized_graph import Note, QuantizedGraph, TensorEnd, quantizes
from intact.plan.stored_weights import is_cached, is_stored
from intact.plan.topology import has_weights_only
from intact.plan.untie import RequantizeReason, requantized


@dataclass(frozen=True)
class NodeReport:
    """One node of the plan.

    Attributes:
        node: Name of the node.
        op_type: Operator type.
        quantized: Whether it computes with integers.
        activation_bits: Bits of its output, or of its first quantized input; None for float.
        weight_bits: Bits of its weight; None if it has none or it is float.
        block: How many numbers of its weight have a scale together; None without blocks.
        fused_into: The last node of its fused chain; "" if it is not fused.
        reason: Why it is quantized or not, and which inputs it requantizes, and why.
        is_dynamic: Whether its input is quantized while the model runs.
        cache_bits: Bits of what it appends to caches; None where they are floats, or it has none.
        is_float16: Whether it computes in float16.
    """

    node: str
    op_type: str
    quantized: bool
    activation_bits: int | None
    weight_bits: int | None
    fused_into: str
    reason: str
    block: int | None = None
    is_dynamic: bool = False
    cache_bits: int | None = None
    is_float16: bool = False

    @property
    def computes(self) -> str:
        """How: ``integer``, ``float``, or ``stored``, float with weights stored as integers."""
        if self.quantized:
            return "integer"
        return "float" if self.weight_bits is None else "stored"


@dataclass(frozen=True)
class Inspection:
    """The structure of a plan.

    Attributes:
        target: Name of the target.
        nodes: All nodes in topological order.
        by_type: Counts by op type, (quantized, float).
        notes: What a user should know before quantizing.
        batch_norms: What BatchNormalizations multiply by, also those that were folded.
        given_nodes: What became of the given model's nodes that are gone or of another type.
    """

    target: str
    nodes: list[NodeReport]
    by_type: dict[str, tuple[int, int]]
    notes: tuple[Note, ...]
    batch_norms: tuple[BatchNormScale, ...] = ()
    given_nodes: Mapping[str, GivenNode] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Count the nodes."""
        quantized = sum(node.quantized for node in self.nodes)
        return f"Inspection({self.target}: {quantized} of {len(self.nodes)} nodes quantized)"


def inspect_plan(plan: QuantizedGraph) -> Inspection:
    """Report the structure of a plan, with or without scales."""
    # By identity: equal configs are many, the dominator is one object.
    outputs = {id(config): end.node for end, config in plan.configs.items()}
    nodes = [_report(plan, node, outputs) for node in plan.graph.nodes]
    quantized = Counter(row.op_type for row in nodes if row.quantized)
    total = Counter(row.op_type for row in nodes)
    by_type = {
        op_type: (quantized[op_type], n - quantized[op_type])
        for op_type, n in sorted(total.items())
    }
    norms = tuple(batch_norm_scales(plan.graph, plan))
    return Inspection(
        plan.target.name, nodes, by_type, plan.notes, norms, dict(plan.graph.given_nodes)
    )


def _report(plan: QuantizedGraph, node: ir.Node, ends: dict[int, str]) -> NodeReport:
    decision = plan.decisions[str(node.name)]
    weight_bits, fused_into, block = None, "", None
    if decision.quantized:
        slot = weight_slot(node)
        if slot is not None and quantizes(plan.input_config(node, slot)):
            config = plan.input_config(node, slot)
            weight_bits, block = config.bits, config.grid.block
        output = plan.output_config(node)
        # An end whose result stays inside of a fusion follows the scale of the fusion's last node.
        if output.state is QuantState.OVERLAPPED:
            fused_into = ends[id(output.dominator)]
    elif has_weights_only(decision):
        slots = (slot for slot, value in enumerate(node.inputs) if value is not None)
        stored = (plan.input_config(node, slot) for slot in slots)
        for config in stored:
            if is_stored(config):
                weight_bits, block = config.bits, config.grid.block
                break
    cached = (plan.configs.get(TensorEnd.input(str(node.name), k)) for k in range(len(node.inputs)))
    return NodeReport(
        node=str(node.name),
        op_type=node.op_type,
        quantized=decision.quantized,
        activation_bits=_activation_bits(plan, node) if decision.quantized else None,
        weight_bits=weight_bits,
        fused_into=fused_into,
        reason="; ".join(
            (decision.reason, *_requantized_inputs(plan, node), *_float32_reason(plan, node))
        ),
        block=block,
        is_dynamic=any(is_dynamic(plan, node, slot) for slot in data_slots(node)),
        cache_bits=next((each.bits for each in cached if each and is_cached(each)), None),
        is_float16=plan.float16 is not None and str(node.name) in plan.float16.nodes,
    )


_WHY = {
    RequantizeReason.PRESCRIBED: "its scale is prescribed",
    RequantizeReason.UNLIKE: "its range is unlike others",
}


def _requantized_inputs(plan: QuantizedGraph, node: ir.Node) -> Iterator[str]:
    """Say which inputs a join requantizes, each with the reason."""
    for slot in data_slots(node):
        value, reason = node.inputs[slot], requantized(plan.input_config(node, slot))
        if value is not None and reason is not None:
            yield f"requantizes {str(value.name)!r}: {_WHY[reason]}"


def _float32_reason(plan: QuantizedGraph, node: ir.Node) -> Iterator[str]:
    """Say why a float node stays float32 where float16 was asked for."""
    if plan.float16 is not None and str(node.name) in plan.float16.float32:
        yield f"float32: {plan.float16.float32[str(node.name)]}"


def _activation_bits(plan: QuantizedGraph, node: ir.Node) -> int | None:
    """Return the width of the stored output, or else of the first quantized input."""
    configs = [plan.output_config(node), *(plan.input_config(node, k) for k in data_slots(node))]
    held = (QuantState.OVERLAPPED, QuantState.DYNAMIC)
    # Fused ends count too: their dominator's width is that of what the fusion stores.
    quantized = (c for c in configs if quantizes(c) or c.state in held)
    return next((config.dominator.bits for config in quantized), None)
