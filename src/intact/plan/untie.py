"""Breaks ties where a join does better with an input that keeps its own scale.

A join such as Concat has one scale for all its inputs on many targets. What a function with a
prescribed output scale computes (1/256 of a Sigmoid, 1/128 of a Tanh) cannot take the scale of the
others, and theirs would clip or lose bits on its scale: the join reads it through a second
quantizer. So it does where the ranges of inputs are unlike, and one of them is read elsewhere too
(see `intact.calibrate.unlike`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TypeAlias

import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.graph import constant_array, data_slots, is_constant
from intact.plan.quantized_graph import QuantizedGraph, TensorEnd, quantizes
from intact.targets import ScaleRule
from intact.targets.rules import JOINING

_REQUANTIZED = "requantized"
"""Key in the ``detail`` of an end's config, with the reason."""


class RequantizeReason(StrEnum):
    """Why an input of a join is requantized; stored in plan files."""

    PRESCRIBED = "prescribed"
    """Its scale is prescribed, and that of the others is not."""
    UNLIKE = "unlike"
    """The ranges are unlike, and others read it too."""


def requantized(config: TensorQuantConfig) -> RequantizeReason | None:
    """Return why a join requantizes what it reads at an end; None where it does not."""
    reason = config.detail.get(_REQUANTIZED)
    return RequantizeReason(reason) if reason in tuple(RequantizeReason) else None


def is_requantized(config: TensorQuantConfig) -> bool:
    """Tell whether a join reads an end through a quantizer of its own."""
    return _REQUANTIZED in config.detail


def requantize_at(config: TensorQuantConfig, reason: RequantizeReason) -> None:
    """Let the end of a config have a scale apart from its producer's, in place."""
    config.detail[_REQUANTIZED] = reason.value


def untie(plan: QuantizedGraph, *, in_place: bool = False) -> QuantizedGraph:
    """Requantize the inputs of joins whose scales are prescribed, unless all have the same.

    Needs no statistics: a prescribed scale is known, and which values have it follows from the
    operators that pass scales on.

    Args:
        plan: Annotated, neither fused nor tied.
        in_place: Whether the plan itself is changed, which nobody else has.

    Returns:
        A new plan, or the given one.
    """
    plan = plan if in_place else plan.copy()
    prescribed: dict[ir.Value, TensorQuantConfig] = {}
    # In topological order: what an operator passes on was found at its inputs.
    for node in plan.graph.nodes:
        rule = plan.target.rule_for(node) if plan.is_quantized(node) else None
        followed = None if rule is None else _passed_scale(plan, node, rule.scales, prescribed)
        for slot, value in enumerate(node.outputs):
            own = plan.output_config(node, slot)
            if _is_fixed(own):
                prescribed[value] = own.dominator
            elif followed is not None and quantizes(own) and own.same_grid(followed):
                prescribed[value] = followed
    return plan


def breakable(plan: QuantizedGraph) -> frozenset[TensorEnd]:
    """Find the inputs of joins that could have a scale apart: their tensors are read elsewhere too.

    Args:
        plan: Tied; with or without scales.
    """
    ends = {end: value for end, value in _computed_inputs(plan) if _is_tied(plan, end)}
    joins = Counter(ends.values())
    return frozenset(
        end
        for end, value in ends.items()
        if joins[value] > 1 or codes_of(plan, value, ends) is not None
    )


def codes_of(
    plan: QuantizedGraph, value: ir.Value, ends: Collection[TensorEnd]
) -> TensorQuantConfig | None:
    """Return the scale that a tensor has by itself: its producer's, or its first other reader's.

    None where it has none, as inside of fused operators.
    """
    producer = plan.producer_config(value)
    # The dominator: a producer may itself share the scale of another tensor.
    if producer is not None and quantizes(producer):
        return producer.dominator
    if _is_fused(plan, value):
        return None
    for node, slot, config in plan.consumer_configs(value):
        is_there = quantizes(config) or config.state is QuantState.OVERLAPPED
        if is_there and TensorEnd.input(str(node.name), slot) not in ends:
            return config.dominator
    return None


_Prescribed: TypeAlias = Mapping[ir.Value, TensorQuantConfig]
"""The configs of prescribed scales by the values that have them."""


def _passed_scale(
    plan: QuantizedGraph, node: ir.Node, rule: ScaleRule, prescribed: _Prescribed
) -> TensorQuantConfig | None:
    """Return the prescribed scale that a node passes on; untie its inputs where it joins."""
    if rule in JOINING:
        found = _joined_inputs(plan, node, prescribed)
        # Under the other rules inputs alone have one scale, and the output has its own.
        return found if rule is ScaleRule.UNIFY_ALL else None
    if rule in (ScaleRule.OUTPUT_FOLLOWS_INPUT, ScaleRule.EITHER_FOLLOWS):
        value = node.inputs[0]
        return None if value is None else prescribed.get(value)
    return None


def _joined_inputs(
    plan: QuantizedGraph, node: ir.Node, prescribed: _Prescribed
) -> TensorQuantConfig | None:
    """Untie the inputs of a join with prescribed scales; return the scale if it is that of all."""
    found: list[TensorQuantConfig] = []
    fixed: list[TensorQuantConfig | None] = []
    values = []
    for slot in data_slots(node):
        value, config = node.inputs[slot], plan.input_config(node, slot)
        if value is None or not quantizes(config):
            continue
        scale = config.dominator if _is_fixed(config) else prescribed.get(value)
        found.append(config)
        fixed.append(scale)
        values.append(value)
    known = [scale for scale in fixed if scale is not None]
    if not known:
        return None
    others = [value for value, scale in zip(values, fixed, strict=True) if scale is None]
    first = known[0]
    # All have one scale already, and constants that it holds take it too: nothing is requantized.
    # By what the scales are, not by identity: two Sigmoids have equal scales in two objects.
    if all(scale.key == first.key for scale in known) and _hold(first, others):
        return first
    for config, scale in zip(found, fixed, strict=True):
        if scale is not None and config.state is QuantState.INITIAL:
            requantize_at(config, RequantizeReason.PRESCRIBED)
    return None


def _hold(scale: TensorQuantConfig, values: Iterable[ir.Value]) -> bool:
    """Tell whether values are constants that a prescribed scale holds."""
    least, most = scale.value_range()
    for value in values:
        array = constant_array(value) if is_constant(value) else None
        if array is None or (array < least).any() or (array > most).any():
            return False
    return True


def _is_fixed(config: TensorQuantConfig) -> bool:
    return bool(config.dominator.detail.get("fixed")) and config.params is not None


def _computed_inputs(plan: QuantizedGraph) -> Iterator[tuple[TensorEnd, ir.Value]]:
    """Yield what joins read that is computed, and the ends where they do."""
    for node in plan.graph.nodes:
        rule = plan.target.rule_for(node) if plan.is_quantized(node) else None
        if rule is None or rule.scales not in JOINING:
            continue
        for slot in data_slots(node):
            value = node.inputs[slot]
            if value is not None and not is_constant(value) and not _is_fused(plan, value):
                yield TensorEnd.input(str(node.name), slot), value


def _is_fused(plan: QuantizedGraph, value: ir.Value) -> bool:
    """Tell whether a tensor is inside a fused operator, where it has no scale."""
    producer = plan.producer_config(value)
    return producer is not None and producer.state is QuantState.OVERLAPPED


def _is_tied(plan: QuantizedGraph, end: TensorEnd) -> bool:
    """Tell whether an end has codes, and their scale may be another."""
    config = plan.configs[end]
    root = config.dominator
    is_free = not root.detail.get("fixed") and not root.grid.exponential
    return is_free and (quantizes(config) or config.state is QuantState.OVERLAPPED)
