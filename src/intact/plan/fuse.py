"""Fuses: tensor ends inside a fused operator, which the hardware lacks, become OVERLAPPED.

Of a convolution with its Relu, only the Relu's result exists as codes.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.graph import OpKind, Role, data_slots, input_role, is_constant, op_spec
from intact.plan.quantized_graph import QuantizedGraph, quantizes
from intact.plan.topology import sole_reader
from intact.plan.untie import is_requantized
from intact.targets import Fusion


def fuse(plan: QuantizedGraph, *, in_place: bool = False) -> QuantizedGraph:
    """Overlap the ends inside fused operators and redundant ends.

    Inside a fused chain (Conv-Relu, Conv-Add-Relu, Swish ...) only the last output exists on the
    hardware, so the ends before it are OVERLAPPED and dominated by it. An input on the same grid as
    its producer, or as an earlier reader, is redundant and is OVERLAPPED too, unless it is
    requantized. Source: [ppq], on graph fusion and joint fixed point.

    Args:
        plan: Annotated.
        in_place: Whether the plan itself is changed, which nobody else has.

    Returns:
        A new plan, or the given one.
    """
    plan = plan if in_place else plan.copy()
    # Longest first, so that Conv-Add-Relu matches before Add-Relu.
    for fusion in sorted(plan.target.fusions, key=lambda fusion: -len(fusion.pattern)):
        for node in plan.graph.nodes:
            chain = _match(plan, fusion, node)
            if chain:
                _overlap_chain(plan, chain, shares_input=fusion.shares_input)
    # After the chains: an end inside a chain is no master of other readers.
    for value in _values(plan):
        _overlap_readers(plan, value)
    return plan


def _match(plan: QuantizedGraph, fusion: Fusion, first: ir.Node) -> list[ir.Node]:
    """Find the chain that starts at ``first``; empty if there is none."""
    if not _fits(plan, first, fusion.pattern[0]) or not quantizes(plan.output_config(first)):
        return []
    chain = [first]
    for alternatives in fusion.pattern[1:]:
        reader = sole_reader(plan.graph, chain[-1])
        if reader is None or not _fits(plan, reader[0], alternatives):
            return []
        if not _takes_chain(plan, *reader):
            return []
        chain.append(reader[0])
    # Swish and its like: the last node reads what the first one does, or it is another pattern.
    if fusion.shares_input and not _reads(chain[-1], first.inputs[0]):
        return []
    return chain if quantizes(plan.output_config(chain[-1])) else []


def _fits(plan: QuantizedGraph, node: ir.Node, alternatives: Collection[str]) -> bool:
    return node.op_type in alternatives and plan.is_quantized(node)


def _takes_chain(plan: QuantizedGraph, node: ir.Node, slot: int) -> bool:
    """Tell whether a node can be fused with the producer of an input.

    An accumulator belongs to one chain: if two convolutions feed an Add, the result of one must be
    stored. A Concat computes nothing and can be fused with several producers.
    """
    if input_role(node, slot) is not Role.DATA:
        return False
    config = plan.input_config(node, slot)
    if config.state is not QuantState.INITIAL or is_requantized(config):
        return False
    spec = op_spec(node)
    if spec is not None and spec.kind is OpKind.JOIN:
        return True
    states = [plan.input_config(node, other).state for other in data_slots(node)]
    return QuantState.OVERLAPPED not in states


def _reads(node: ir.Node, value: ir.Value | None) -> bool:
    return any(node.inputs[slot] is value for slot in data_slots(node))


def _overlap_chain(plan: QuantizedGraph, chain: list[ir.Node], *, shares_input: bool) -> None:
    last = plan.output_config(chain[-1])
    for before, after in pairwise(chain):
        slot = next(slot for slot in data_slots(after) if after.inputs[slot] is before.outputs[0])
        for config in (plan.output_config(before), plan.input_config(after, slot)):
            _overlap(last, config)
    if shares_input:
        slot = next(s for s in data_slots(chain[-1]) if chain[-1].inputs[s] is chain[0].inputs[0])
        first, again = plan.input_config(chain[0], 0), plan.input_config(chain[-1], slot)
        if again.state is QuantState.INITIAL and quantizes(first) and first.same_grid(again):
            _overlap(first, again)


def _overlap_readers(plan: QuantizedGraph, value: ir.Value) -> None:
    producer = plan.producer_config(value)
    masters = [producer] if producer is not None and quantizes(producer) else []
    for node, _, config in plan.consumer_configs(value):
        spec = op_spec(node)
        is_operand = spec is not None and spec.kind is OpKind.ELEMENTWISE
        if is_operand and is_constant(value):
            continue  # it costs little to hold it once for each reader, on the scale of that one
        if config.state is not QuantState.INITIAL or is_requantized(config):
            continue
        master = next((master for master in masters if config.same_grid(master)), None)
        if master is None:
            masters.append(config)
        else:
            _overlap(master, config)


def _overlap(master: TensorQuantConfig, config: TensorQuantConfig) -> None:
    config.transition(
        QuantState.OVERLAPPED
    )  # first, since an overlapped end may be on another grid
    master.dominate(config)


def _values(plan: QuantizedGraph) -> list[ir.Value]:
    """List every value that nodes read, without duplicates, in the order of first use."""
    values = {
        id(value): value for node in plan.graph.nodes for value in node.inputs if value is not None
    }
    return list(values.values())
