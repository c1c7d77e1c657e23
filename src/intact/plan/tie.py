"""Ties: ends that must share a scale because the hardware has one for them.

This is the TVM document's ``threshold_rectify`` as union-find: the tied ends hang under one
dominator and read their scale through it, whatever bits they have.
"""

from __future__ import annotations

import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.graph import data_slots, moves_values
from intact.plan.quantized_graph import QuantizedGraph, quantizes
from intact.targets import OpRule, ScaleRule


def tie(plan: QuantizedGraph) -> QuantizedGraph:
    """Tie scales as the target's rules ask, op by op.

    A tied end keeps quantising but owns no scale: it is PASSIVE_INIT until its master is
    calibrated. ``detail["follows"]`` says what the master's range is made of: ``"master"``
    (its own tensor alone) or ``"union"`` (the ranges of all that are tied).

    Returns:
        A new plan.
    """
    plan = plan.copy()
    for node in plan.graph.nodes:
        rule = plan.target.rule_for(node) if plan.is_quantized(node) else None
        if rule is None:
            continue
        if rule.scales is ScaleRule.OUTPUT_FOLLOWS_INPUT:
            _outputs_follow(plan, node)
        elif rule.scales in (ScaleRule.UNIFY_INPUTS, ScaleRule.UNIFY_ALL):
            _unify(plan, node, with_output=rule.scales is ScaleRule.UNIFY_ALL)
    if plan.target.topology.in_place:
        # From the outputs upwards, so that a scale travels through a whole chain (Tengine's
        # recursion).
        for node in reversed(plan.graph.nodes):
            rule = plan.target.rule_for(node) if plan.is_quantized(node) else None
            if rule is not None and rule.scales is ScaleRule.INPUT_FOLLOWS_OUTPUT:
                _input_follows(plan, node, rule)
    return plan


def _data_configs(plan: QuantizedGraph, node: ir.Node) -> list[TensorQuantConfig]:
    return [
        plan.input_config(node, slot) for slot in data_slots(node) if node.inputs[slot] is not None
    ]


def _outputs_follow(plan: QuantizedGraph, node: ir.Node) -> None:
    for slot, _ in enumerate(node.outputs):
        output = plan.output_config(node, slot)
        masters = _data_configs(plan, node)
        if quantizes(output) and masters and masters[0].same_grid(output):
            _follow(masters[0], output, "master")
            output.detail["moved"] = moves_values(node)


def _unify(plan: QuantizedGraph, node: ir.Node, *, with_output: bool) -> None:
    configs = _data_configs(plan, node)
    if with_output:
        configs += [plan.output_config(node, slot) for slot, _ in enumerate(node.outputs)]
    configs = [
        config for config in configs if config.state not in (QuantState.FP32, QuantState.SOI)
    ]
    for config in configs[1:]:
        if config.same_grid(configs[0]):
            _follow(configs[0], config, "union")


def _input_follows(plan: QuantizedGraph, node: ir.Node, rule: OpRule) -> None:
    for slot in data_slots(node)[:1]:
        value = node.inputs[slot]
        used = len(plan.graph.consumers(value)) if value is not None else 0
        config, output = plan.input_config(node, slot), plan.output_config(node)
        few = rule.max_consumers is None or used <= rule.max_consumers
        if few and quantizes(output) and config.same_grid(output):
            _follow(output, config, "master")


def _follow(master: TensorQuantConfig, follower: TensorQuantConfig, follows: str) -> None:
    """Hang the follower's whole group under the master's; its root gives up its own scale."""
    root, old = master.dominator, follower.dominator
    if root is old or old.detail.get("fixed"):
        return
    root.dominate(old)
    old.detail["follows"] = follows
    if old.state is QuantState.INITIAL:
        old.transition(QuantState.PASSIVE_INIT)
