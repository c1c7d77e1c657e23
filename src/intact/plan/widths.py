"""Widths that are not what they seem: half-precision models, widths without an operator."""

from __future__ import annotations

from intact.graph import Role, input_role
from intact.plan.ends import Direction
from intact.plan.quantized_graph import Note, NoteKind, QuantizedGraph, quantizes
from intact.targets import DType, OpRule


def width_notes(plan: QuantizedGraph) -> tuple[Note, ...]:
    """Say what became of half precision, and where a width has no operator on the target."""
    return (*_widened_notes(plan), *_operator_notes(plan))


def _widened_notes(plan: QuantizedGraph) -> tuple[Note, ...]:
    """Say that a model of half precision computes in float32 where it stays float."""
    ports = {
        "FLOAT16": "its float16 inputs and outputs stay",
        "BFLOAT16": "its bfloat16 inputs and outputs are float32",
    }
    return tuple(
        Note(
            NoteKind.WIDTH,
            "",
            f"the model is {name.lower()}: it computes in float32 where it "
            f"stays float, {ports[name]}",
        )
        for name in plan.graph.widened
        if name in ports
    )


def _operator_notes(plan: QuantizedGraph) -> tuple[Note, ...]:
    """Say where a width has no operator on the target, one note for each width.

    The smallest type that holds the codes decides: 5 to 8 bits are int8 as far as a kernel is
    concerned, 4 bits are int4. Most runtimes compute in float what they have no kernel for.
    """
    nodes: dict[tuple[str, DType], dict[str, None]] = {}
    for end, config in plan.configs.items():
        node = plan.graph.node(end.node)
        rule = plan.target.rule_for(node) if quantizes(config) else None
        if rule is None or config.bits > DType.INT16.bits:
            continue
        is_input = end.direction is Direction.INPUT
        is_weight = is_input and input_role(node, end.slot) is Role.WEIGHT
        scheme = (
            plan.target.weight_scheme(rule) if is_weight else plan.target.activation_scheme(rule)
        )
        needed = DType.holding(config.bits, signed=config.quant_min < 0)
        if config.bits != scheme.bits and needed not in {scheme.dtype, *_declared(rule)}:
            what = "weights" if is_weight else "activations"
            nodes.setdefault((f"{config.bits}-bit {what}", needed), {})[end.node] = None
    return tuple(
        Note(
            NoteKind.WIDTH,
            next(iter(names)),
            f"{width} are {dtype}, which target {plan.target.name} has no integer operator for "
            f"({len(names)} node(s)): they may be computed in float",
            "`intact verify` names what the runtime runs in float",
        )
        for (width, dtype), names in nodes.items()
    )


def _declared(rule: OpRule) -> set[DType]:
    signatures = (rule.inputs, rule.outputs, *((s.inputs + s.outputs) for s in rule.alternatives))
    return {dtype for signature in signatures for dtype in signature}
