"""Builds a plan by its passes in order, for float models and for imported quantized ones."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.graph import Graph, moves_values
from intact.graph.metadata import GUARD_KEY
from intact.plan.annotate import annotate
from intact.plan.fuse import fuse
from intact.plan.overrides import Overrides
from intact.plan.quantized_graph import (
    Decision,
    NoteKind,
    QuantizedGraph,
    TensorEnd,
    quantizes,
)
from intact.plan.tie import tie
from intact.plan.untie import is_requantized, untie
from intact.plan.widths import width_notes
from intact.targets import Target


def build_plan(graph: Graph, target: Target, overrides: Overrides | None = None) -> QuantizedGraph:
    """Annotate, untie, fuse and tie: all steps that need no statistics.

    Fusing comes before tying, because an end inside a fused operator has no scale to tie, and after
    untying, because an end that is requantized is not redundant.

    Raises:
        UsageError: An override does not match the graph.
    """
    return structured(annotate(graph, target, overrides))


def build_float(graph: Graph, target: Target) -> QuantizedGraph:
    """Plan all of a model in float: what a quantized one is timed beside."""
    types = dict.fromkeys(node.op_type for node in graph.nodes)
    return build_plan(graph, target, Overrides(keep_float=tuple(types)))


def structured(plan: QuantizedGraph) -> QuantizedGraph:
    """Untie, fuse and tie an annotated plan, and add notes on widths and on what may fail.

    The only property of widths that decides here is whether grids are equal (``same_grid``).
    """
    plan = plan.with_notes(width_notes(plan))
    if any(GUARD_KEY in node.metadata_props for node in plan.graph.nodes):
        from intact.plan.guards import guard_notes  # which few plans need

        plan = plan.with_notes(guard_notes(plan))
    own = untie(plan)
    tied = tie(fuse(own, in_place=True), in_place=True)
    if tied.target.float16 is None or not tied.target.float16.asked:
        return tied
    from intact.plan.float16 import with_float16  # which few plans need

    return with_float16(tied)


_FLOAT = (QuantState.FP32, QuantState.SOI)


def complete(
    plan: QuantizedGraph, target: Target, overrides: Overrides | None = None
) -> QuantizedGraph:
    """Quantize the float nodes of an imported quantized model for a target.

    The nodes that the model quantizes and all its scales are kept: they are prescribed from here
    on, so that neither statistics nor a tie replaces them. A new quantized end of a tensor that has
    a scale gets that scale.

    Args:
        plan: An imported plan; not changed.
        target: The hardware that decides about the float nodes.
        overrides: The user's overrides; they do not affect the imported parts.

    Returns:
        A plan to calibrate: new ends are INITIAL or PASSIVE_INIT.

    Raises:
        UsageError: An override does not match the graph.
    """
    fresh, read = annotate(plan.graph, target, overrides), plan.copy()
    configs: dict[TensorEnd, TensorQuantConfig] = {}
    decisions: dict[str, Decision] = {}
    for end, config in read.configs.items():
        is_kept = read.decisions[end.node].quantized or config.state not in _FLOAT
        configs[end] = config if is_kept else fresh.configs[end]
    for name, decision in read.decisions.items():
        decisions[name] = decision if decision.quantized else fresh.decisions[name]
    merged = replace(
        read,
        target=target,
        configs=configs,
        decisions=decisions,
        provenance=read.provenance.completed(),
    )
    for config in configs.values():
        if config.dominator is config and _has_scale(config):
            config.detail["fixed"] = True
    # Scales are shared behind untying, which may need one apart, and before fusing, which overlaps
    # what has no scale.
    merged = untie(merged, in_place=True)
    for value in plan.graph.values:
        _follow_moved_input(merged, value)
        _share_known_scale(merged, value)
    merged = merged.with_notes((*fresh.notes, *width_notes(merged)))
    tied = tie(fuse(merged, in_place=True), in_place=True)
    kept = {name for name, decision in read.decisions.items() if decision.quantized}
    # What the model itself has apart needs no note: its own runtime computes it so.
    notes = (note for note in tied.notes if note.kind is not NoteKind.TIE or note.node not in kept)
    return replace(tied, notes=tuple(notes))


def _follow_moved_input(plan: QuantizedGraph, value: ir.Value) -> None:
    """Give the output of a node that only moves codes the scale of its input."""
    node, slot = value.producer(), value.index() or 0
    if node is None or not moves_values(node):
        return
    source = plan.input_config(node, 0).dominator
    if plan.output_config(node, slot).state is QuantState.INITIAL and _has_scale(source):
        plan.configs[TensorEnd.output(str(node.name), slot)] = _follower(source)


def _share_known_scale(plan: QuantizedGraph, value: ir.Value) -> None:
    """Give new ends of a tensor the scale with which the model quantizes it."""
    producer = plan.producer_config(value)
    readers = [config for _, _, config in plan.consumer_configs(value)]
    known = [config for config in readers if _has_scale(config)]
    # Cases: (1) the producer has a scale: new readers take it; (2) a reader has one, and the
    # producer is new: it takes that, for all; (3) a reader has one and the producer stays float:
    # the other new readers share it.
    if producer is not None and _has_scale(producer):
        _overlap(producer, [config for config in readers if _takes_scale(config)])
        return
    if not known:
        return
    root = known[0].dominator
    node, slot = value.producer(), value.index()
    if node is not None and producer is not None and producer.state is QuantState.INITIAL:
        plan.configs[TensorEnd.output(str(node.name), slot or 0)] = _follower(root)
        same = [config for config in known if config.dominator is root]
        _overlap(root, [*same, *(config for config in readers if _takes_scale(config))])
        return
    for reader, at, config in plan.consumer_configs(value):
        if _takes_scale(config):
            is_baked = known[0].state is QuantState.BAKED
            plan.configs[TensorEnd.input(str(reader.name), at)] = _follower(root, is_baked=is_baked)


def _takes_scale(config: TensorQuantConfig) -> bool:
    return config.state is QuantState.INITIAL and not is_requantized(config)


def _has_scale(config: TensorQuantConfig) -> bool:
    return quantizes(config) and config.params is not None


def _follower(root: TensorQuantConfig, *, is_baked: bool = False) -> TensorQuantConfig:
    """Make a config that shares grid and scale of a root."""
    config = TensorQuantConfig.on_grid(root.grid, observer=root.observer)
    root.dominate(config)
    config.transition(QuantState.ACTIVATED)
    if is_baked:
        config.transition(QuantState.BAKED)
    return config


def _overlap(master: TensorQuantConfig, configs: list[TensorQuantConfig]) -> None:
    for config in configs:
        config.transition(QuantState.OVERLAPPED)
        master.dominate(config)
