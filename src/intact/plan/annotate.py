"""Makes the config of every tensor end, from the target's schemes, operators and topology."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote

import msgspec
import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.errors import UsageError
from intact.graph import (
    Graph,
    Role,
    constant_array,
    data_slots,
    input_role,
    weight_scale_axis,
    weight_slot,
)
from intact.plan.overrides import Overrides, ResolvedOverrides
from intact.plan.quantized_graph import (
    Decision,
    Direction,
    QuantizedGraph,
    TensorEnd,
    quantizes,
)
from intact.plan.schemes import config_from_scheme, passive_bias, unquantized
from intact.plan.signs import Signs, signs_of
from intact.plan.stored_weights import is_cached, is_stored, stored_axes, stored_config
from intact.plan.topology import (
    adds_to_products,
    decide,
    has_caches_only,
    has_weights_only,
    outputs_float,
)
from intact.plan.untie import RequantizeReason, requantize_at
from intact.targets import OpRule, Target, TensorScheme


def annotate(graph: Graph, target: Target, overrides: Overrides | None = None) -> QuantizedGraph:
    """Decide which nodes are quantized, and make a config without scale for every tensor end.

    Args:
        graph: A normalized graph.
        target: The hardware.
        overrides: The user's overrides.

    Returns:
        The plan before fusing, tying and calibrating. Ends of float nodes are FP32, ends that
        carry shapes or indices SOI, int32 biases PASSIVE_INIT, quantized ends INITIAL.

    Raises:
        UsageError: An override does not match the graph, or names an end that is not quantized.
    """
    resolved = (overrides or Overrides()).resolved(graph)
    overrides = resolved.overrides
    decisions = decide(graph, target, overrides)
    if target.cache is not None and target.cache.scheme is not None:
        from intact.plan.caches import refuse_no_caches  # which few plans need

        refuse_no_caches(graph, target, decisions)
    shapes = graph.shape_or_index_values
    schemes = _Schemes(target, signs_of(graph, target, decisions))
    configs: dict[TensorEnd, TensorQuantConfig] = {}
    for node in graph.nodes:
        configs.update(_node_configs(node, graph, schemes, overrides, decisions, shapes))
    _check_places(resolved, graph, target, configs)
    return QuantizedGraph(graph, target, configs, decisions, resolved.notes)


class _Schemes(msgspec.Struct, frozen=True):
    """The schemes of a target, with the ends of a graph that have unsigned codes."""

    target: Target
    signs: Signs

    def input_scheme(self, rule: OpRule, node: ir.Node, slot: int) -> TensorScheme:
        """Return the scheme of an activation where a node reads it."""
        unsigned = self.signs.is_unsigned(node, node.inputs[slot], is_input=True)
        return self.target.activation_scheme(rule, unsigned=unsigned)

    def output_scheme(self, rule: OpRule, node: ir.Node, slot: int) -> TensorScheme:
        """Return the scheme of an activation where a node writes it."""
        unsigned = self.signs.is_unsigned(node, node.outputs[slot], is_input=False)
        return self.target.activation_scheme(rule, unsigned=unsigned)


def _node_configs(
    node: ir.Node,
    graph: Graph,
    schemes: _Schemes,
    overrides: Overrides,
    decisions: dict[str, Decision],
    shapes: frozenset[str],
) -> dict[TensorEnd, TensorQuantConfig]:
    name = str(node.name)
    rule = schemes.target.rule_for(node) if decisions[name].quantized else None
    # Cases of an input: (1) a weight that a float node stores; (2) shapes and indices; (3) float,
    # as the node or the tensor is; (4) what the target's rule quantizes.
    configs = _configs_of_stored(node, schemes.target, overrides, decisions[name])
    if has_caches_only(decisions[name]):
        from intact.plan.caches import cache_configs  # which few plans need

        configs |= cache_configs(node, schemes.target, overrides)
    for slot, value in enumerate(node.inputs):
        if value is None or TensorEnd.input(name, slot) in configs:
            continue
        end = TensorEnd.input(name, slot)
        if input_role(node, slot) is Role.SHAPE or str(value.name) in shapes:
            configs[end] = unquantized(QuantState.SOI)
        elif rule is None or not graph.is_float(value):
            configs[end] = unquantized(QuantState.FP32)
        else:
            configs[end] = _input_config(node, slot, schemes, rule, overrides)
    for slot, value in enumerate(node.outputs):
        end = TensorEnd.output(name, slot)
        if str(value.name) in shapes:
            configs[end] = unquantized(QuantState.SOI)
        elif (
            rule is None or not graph.is_float(value) or outputs_float(node, graph, rule, decisions)
        ):
            configs[end] = unquantized(QuantState.FP32)
        else:
            configs[end] = _output_config(node, slot, schemes, rule, overrides)
    return configs


def _configs_of_stored(
    node: ir.Node, target: Target, overrides: Overrides, decision: Decision
) -> dict[TensorEnd, TensorQuantConfig]:
    """Make the configs of the weights that a float node has as integers."""
    rule = target.rule_for(node) if has_weights_only(decision) else None
    if rule is None:
        return {}
    configs, scheme = {}, _in_own_blocks(target.weight_scheme(rule), node, target, overrides)
    for slot, axis in stored_axes(node, scheme, target).items():
        end = TensorEnd.input(str(node.name), slot)
        configs[end] = stored_config(scheme, axis, _weight_bits(end, scheme, target, overrides))
    return configs


def _in_own_blocks(
    scheme: TensorScheme, node: ir.Node, target: Target, overrides: Overrides
) -> TensorScheme:
    """Give a scheme with blocks, of a weight or what it is multiplied with, those of the node.

    Raises:
        UsageError: The target has no blocks of that size.
    """
    size = overrides.block_at(str(node.name))
    if size is None or scheme.block is None:
        return scheme
    from intact.targets.blockwise import check_size  # which few plans need

    check_size(f"--node-block {node.name}={size}", size, target)
    return msgspec.structs.replace(scheme, block=size)


def _weight_bits(
    end: TensorEnd, scheme: TensorScheme, target: Target, overrides: Overrides
) -> int | None:
    """Return the width that the user asks for at a weight; None for the scheme's own.

    Raises:
        UsageError: The target has no blocks of that width.
    """
    bits = overrides.bits_at(end, is_weight=True, has_weight=True)
    if bits is not None and scheme.block is not None:
        from intact.targets.blockwise import check_width  # which few plans need

        check_width(f"--bits {end.node}", bits, target, scheme.block)
    return bits


def _input_config(
    node: ir.Node, slot: int, schemes: _Schemes, rule: OpRule, overrides: Overrides
) -> TensorQuantConfig:
    end = TensorEnd.input(str(node.name), slot)
    role, weight = input_role(node, slot), weight_slot(node)
    if role is Role.BIAS:
        return _bias_config(node, slot, schemes.target, rule)
    if role is Role.WEIGHT and rule.quantizes_weight and rule.quantizes_input(slot):
        scheme = _in_own_blocks(schemes.target.weight_scheme(rule), node, schemes.target, overrides)
        axis = weight_scale_axis(node)
        if scheme.block is not None:
            axis = stored_axes(node, scheme, schemes.target)[slot]
        bits = _weight_bits(end, scheme, schemes.target, overrides)
        return config_from_scheme(scheme, axis, bits)
    if role is Role.DATA and rule.quantizes_input(slot) and not adds_to_products(node, slot):
        bits = overrides.bits_at(end, is_weight=False, has_weight=weight is not None)
        # Where it is quantized while running, in blocks of the weight that it meets.
        scheme = schemes.input_scheme(rule, node, slot)
        scheme = _in_own_blocks(scheme, node, schemes.target, overrides)
        config = config_from_scheme(scheme, None, bits)
        if end in overrides.apart and quantizes(config):
            requantize_at(config, RequantizeReason.UNLIKE)
        return config
    return unquantized(QuantState.FP32)


def _bias_config(node: ir.Node, slot: int, target: Target, rule: OpRule) -> TensorQuantConfig:
    """Make the config of a constant bias: integer only if the products it is added to are."""
    weight_at = weight_slot(node)
    if weight_at is None or not _multiplies_integers(node, weight_at, target, rule):
        return unquantized(QuantState.FP32)
    weight, bias = constant_array(node.inputs[weight_at]), constant_array(node.inputs[slot])
    axis = weight_scale_axis(node)
    if axis is None or weight is None or bias is None:
        return passive_bias(target.bias, None)
    # A bias has the scales of the products: those of the weight times that of the data.
    if target.weight_scheme(rule).granularity != "per_channel":
        return passive_bias(target.bias, None)
    if bias.shape[-1:] != weight.shape[axis : axis + 1]:
        return unquantized(QuantState.FP32)
    return passive_bias(target.bias, bias.ndim - 1)


def _multiplies_integers(node: ir.Node, weight_at: int, target: Target, rule: OpRule) -> bool:
    schemes = (target.weight_scheme(rule), target.activation_scheme(rule))
    factors = [slot for slot in data_slots(node) if not adds_to_products(node, slot)]
    return (
        rule.quantizes_weight
        and all(rule.quantizes_input(slot) for slot in (weight_at, *factors))
        and not any(scheme.is_float or scheme.is_logarithmic for scheme in schemes)
    )


def _output_config(
    node: ir.Node, slot: int, schemes: _Schemes, rule: OpRule, overrides: Overrides
) -> TensorQuantConfig:
    end = TensorEnd.output(str(node.name), slot)
    has_weight = weight_slot(node) is not None
    scheme = schemes.output_scheme(rule, node, slot)
    if rule.fixed_output is None:
        bits = overrides.bits_at(end, is_weight=False, has_weight=has_weight)
        return config_from_scheme(scheme, None, bits)
    for place in overrides.places(end, is_weight=False, has_weight=has_weight):
        raise UsageError(
            f"--bits {place!r}: target {schemes.target.name} prescribes the scale of this output",
            remedy="remove this option, or keep the node float",
        )
    config = config_from_scheme(scheme, None)
    config.set_params(rule.fixed_output.scale, rule.fixed_output.offset)
    config.transition(QuantState.ACTIVATED)
    # So marked, neither statistics nor ties replace the scale.
    config.detail["fixed"] = True
    return config


def _check_width(place: str, bits: int, node: ir.Node, end: TensorEnd, target: Target) -> None:
    """Raise for a width that is wider than all integers that the target declares at an end."""
    from intact.plan.inference import declared_dtypes, widest_bits  # which few plans need

    widest = widest_bits(node, target, end)
    if widest is None or bits <= widest:
        return
    declared = ", ".join(sorted(declared_dtypes(node, target, end))) or f"{widest} bits"
    raise UsageError(
        f"--bits {place}={bits}: target {target.name} declares {declared} at {end} "
        f"({node.op_type})",
        remedy=f"give 2 to {widest} bits, or --keep-float {quote(str(node.name))}",
    )


def _check_blocks(
    resolved: ResolvedOverrides, configs: Mapping[TensorEnd, TensorQuantConfig]
) -> None:
    """Raise for a size of blocks at a place where no weight is in blocks."""
    nodes = {
        end.node
        for end, config in configs.items()
        if config.grid.block is not None and config.state is QuantState.INITIAL
    }
    used = {
        given
        for place, given in resolved.asked_blocks.items()
        if nodes & {place, place.removesuffix(".weight")}
    }
    for place in resolved.asked_blocks.values():
        if place not in used:
            raise UsageError(
                f"--node-block {place!r}: no weight is in blocks there",
                remedy="give --block too, and name a layer that `intact inspect` lists with blocks",
            )


def _check_places(
    resolved: ResolvedOverrides,
    graph: Graph,
    target: Target,
    configs: dict[TensorEnd, TensorQuantConfig],
) -> None:
    """Raise for a width at a place where nothing is quantized, or no type has it."""
    _check_blocks(resolved, configs)
    overrides, used = resolved.overrides, set[str]()
    for node in graph.nodes if overrides.bits else ():
        weight = weight_slot(node)
        ends = [TensorEnd.input(str(node.name), k) for k, _ in enumerate(node.inputs)]
        ends += [TensorEnd.output(str(node.name), k) for k, _ in enumerate(node.outputs)]
        for end in ends:
            config = configs.get(end)
            if config is not None and is_cached(config):
                # All caches of a node have its width, which was checked with its decision.
                used.update({end.node} & overrides.bits.keys())
            elif config is not None and config.state is QuantState.INITIAL:
                is_input = end.direction is Direction.INPUT
                is_weight = (is_input and end.slot == weight) or is_stored(config)
                has_weight = weight is not None or is_stored(config)
                places = overrides.places(end, is_weight=is_weight, has_weight=has_weight)
                used.update(places)
                # Widths of a search are checked by the search itself, over all ends at once.
                if places and end not in overrides.widths:
                    _check_width(places[0], config.bits, node, end, target)
    found = {resolved.asked[place] for place in used}
    for place in resolved.asked.values():
        if place not in found:
            raise UsageError(
                f"--bits {place!r}: nothing is quantized there on this target",
                remedy="name a quantized node, its weight, input or output; "
                "`intact inspect` lists the nodes",
            )
