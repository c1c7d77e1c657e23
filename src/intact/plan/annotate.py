"""Give every tensor end its config, from the target's schemes, the op table and the topology."""

from __future__ import annotations

import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.errors import UsageError
from intact.graph import (
    Graph,
    Role,
    input_role,
    output_channel_axis,
    shape_or_index_values,
    weight_slot,
)
from intact.plan.ends import TensorEnd
from intact.plan.overrides import Overrides
from intact.plan.quantized_graph import Decision, QuantizedGraph
from intact.plan.schemes import config_from_scheme, passive_bias, unquantized
from intact.plan.topology import decide, hands_out_float
from intact.targets import OpRule, Target


def annotate(graph: Graph, target: Target, overrides: Overrides | None = None) -> QuantizedGraph:
    """Decide the topology and give every end of every node a config without scale.

    Args:
        graph: A normalised graph.
        target: The hardware.
        overrides: What the user asks for on top.

    Returns:
        The plan before fusing, tying and calibrating. Ends of float nodes are FP32, ends that
        carry shapes or indices SOI, int32 biases PASSIVE_INIT, quantised ends INITIAL.

    Raises:
        UsageError: An override names nothing in the graph, or a place that is not quantised.
    """
    overrides = overrides or Overrides()
    overrides.check(graph)
    decisions = decide(graph, target, overrides)
    shapes = shape_or_index_values(graph)
    configs: dict[TensorEnd, TensorQuantConfig] = {}
    for node in graph.nodes:
        configs.update(_node_configs(node, graph, target, overrides, decisions, shapes))
    _check_places(overrides, configs)
    return QuantizedGraph(graph, target, configs, decisions)


def _node_configs(
    node: ir.Node,
    graph: Graph,
    target: Target,
    overrides: Overrides,
    decisions: dict[str, Decision],
    shapes: frozenset[str],
) -> dict[TensorEnd, TensorQuantConfig]:
    name = str(node.name)
    rule = target.rule_for(node) if decisions[name].quantized else None
    configs: dict[TensorEnd, TensorQuantConfig] = {}
    for slot, value in enumerate(node.inputs):
        if value is None:
            continue
        end = TensorEnd.input(name, slot)
        if input_role(node, slot) is Role.SHAPE or str(value.name) in shapes:
            configs[end] = unquantized(QuantState.SOI)
        elif rule is None or not graph.is_float(value):
            configs[end] = unquantized(QuantState.FP32)
        else:
            configs[end] = _input_config(node, slot, target, rule, overrides)
    for slot, value in enumerate(node.outputs):
        end = TensorEnd.output(name, slot)
        if str(value.name) in shapes:
            configs[end] = unquantized(QuantState.SOI)
        elif (
            rule is None
            or not graph.is_float(value)
            or hands_out_float(node, graph, rule, decisions)
        ):
            configs[end] = unquantized(QuantState.FP32)
        else:
            configs[end] = _output_config(node, slot, target, rule, overrides)
    return configs


def _input_config(
    node: ir.Node, slot: int, target: Target, rule: OpRule, overrides: Overrides
) -> TensorQuantConfig:
    end = TensorEnd.input(str(node.name), slot)
    role = input_role(node, slot)
    weight = weight_slot(node)
    if role is Role.BIAS and weight is not None and rule.quantizes_input(weight):
        per_channel = target.weight_scheme(rule).granularity == "per_channel"
        return passive_bias(
            target.bias, per_channel=per_channel and output_channel_axis(node) is not None
        )
    if role is Role.WEIGHT and rule.quantizes_weight and rule.quantizes_input(slot):
        bits = overrides.bits_at(end, is_weight=True, has_weight=True)
        return config_from_scheme(target.weight_scheme(rule), output_channel_axis(node), bits)
    if role is Role.DATA and rule.quantizes_input(slot):
        bits = overrides.bits_at(end, is_weight=False, has_weight=weight is not None)
        return config_from_scheme(target.activation_scheme(rule), None, bits)
    return unquantized(QuantState.FP32)


def _output_config(
    node: ir.Node, slot: int, target: Target, rule: OpRule, overrides: Overrides
) -> TensorQuantConfig:
    end = TensorEnd.output(str(node.name), slot)
    bits = overrides.bits_at(end, is_weight=False, has_weight=weight_slot(node) is not None)
    config = config_from_scheme(target.activation_scheme(rule), None, bits)
    if rule.fixed_output is not None:
        config.set_params(rule.fixed_output.scale, rule.fixed_output.offset)
        config.transition(QuantState.ACTIVATED)
        config.detail["fixed"] = True
    return config


def _check_places(overrides: Overrides, configs: dict[TensorEnd, TensorQuantConfig]) -> None:
    quantized = {end.node for end, config in configs.items() if config.state is QuantState.INITIAL}
    for place in overrides.bits:
        node = place if place in quantized else overrides.place_node(place)
        if node not in quantized:
            raise UsageError(
                f"--bits {place!r}: the node stays float on this target",
                remedy="name a quantised node; `intact inspect` lists them",
            )
