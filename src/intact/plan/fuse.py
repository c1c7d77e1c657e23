"""Fusion: ends that exist in the graph but not on the hardware are OVERLAPPED."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.graph import Role, data_slots, input_role
from intact.plan.quantized_graph import QuantizedGraph, quantizes
from intact.targets import Fusion


def fuse(plan: QuantizedGraph) -> QuantizedGraph:
    """Overlap what the target fuses and what agrees with its producer.

    Inside a fused chain (Conv-Relu, Conv-Add-Relu, Swish ...) only the last output exists on
    the hardware, so the ends before it are OVERLAPPED and dominated by it. An input whose
    producer (or, for a graph input, whose first reader) already quantises on the same grid is
    redundant and is OVERLAPPED too. Source: PPQ document, on graph fusion and joint fixed point.

    Returns:
        A new plan.
    """
    plan = plan.copy()
    # Longest first: Conv-Add-Relu claims its ends before Add-Relu could.
    for fusion in sorted(plan.target.fusions, key=lambda fusion: -len(fusion.pattern)):
        for node in plan.graph.nodes:
            chain = _match(plan, fusion, node)
            if chain:
                _overlap_chain(plan, chain, shares_input=fusion.shares_input)
    for value in _values(plan):
        _overlap_readers(plan, value)
    return plan


def _match(plan: QuantizedGraph, fusion: Fusion, first: ir.Node) -> list[ir.Node]:
    """Return the chain that starts at ``first``, or nothing."""
    chain = [first]
    if not _fits(plan, first, fusion.pattern[0]):
        return []
    for step, alternatives in enumerate(fusion.pattern[1:], start=1):
        readers = plan.graph.consumers(chain[-1].outputs[0])
        if (
            len(chain[-1].outputs) != 1
            or len(readers) != 1
            or chain[-1].outputs[0].is_graph_output()
        ):
            return []
        node, slot = readers[0]
        if not _fits(plan, node, alternatives) or input_role(node, slot) is not Role.DATA:
            return []
        if plan.input_config(node, slot).state is not QuantState.INITIAL:
            return []
        chain.append(node)
        if (
            fusion.shares_input
            and step == len(fusion.pattern) - 1
            and not _reads(node, first.inputs[0])
        ):
            return []
    starts_free = plan.output_config(chain[0]).state is QuantState.INITIAL
    return chain if starts_free and quantizes(plan.output_config(chain[-1])) else []


def _fits(plan: QuantizedGraph, node: ir.Node, alternatives: Collection[str]) -> bool:
    return node.op_type in alternatives and plan.is_quantized(node)


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
        first = plan.input_config(chain[0], data_slots(chain[0])[0])
        if plan.input_config(chain[-1], slot).same_grid(first):
            _overlap(first, plan.input_config(chain[-1], slot))


def _overlap_readers(plan: QuantizedGraph, value: ir.Value) -> None:
    readers = [config for _, _, config in plan.consumer_configs(value)]
    active = [config for config in readers if config.state is QuantState.INITIAL]
    producer = plan.producer_config(value)
    if producer is not None and (quantizes(producer) or producer.state is QuantState.OVERLAPPED):
        masters = [producer]
    else:
        masters = active[:1]
    for config in active:
        for master in masters:
            if config is not master and config.same_grid(master):
                _overlap(master, config)


def _overlap(master: TensorQuantConfig, config: TensorQuantConfig) -> None:
    config.transition(QuantState.OVERLAPPED)  # first: an overlapped end may be on another grid
    master.dominate(config)


def _values(plan: QuantizedGraph) -> list[ir.Value]:
    """Return every value that nodes read, each once, in the order of first use."""
    values = {
        id(value): value for node in plan.graph.nodes for value in node.inputs if value is not None
    }
    return list(values.values())
