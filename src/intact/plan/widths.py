"""Adds notes to a plan on widths that the target has no operator for.

With 4-bit weights on a target with int8 kernels only, for example, the file becomes smaller and the
model no faster. A half-precision model has a note too: what stays float computes in float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import onnx_ir as ir

from intact.config import TensorQuantConfig
from intact.graph import Role, input_role
from intact.plan.quantized_graph import (
    Direction,
    Note,
    NoteKind,
    QuantizedGraph,
    TensorEnd,
    quantizes,
)
from intact.plan.stored_weights import is_stored
from intact.targets import DType, OpRule, Target, TensorScheme

Missing: TypeAlias = tuple[str, DType, DType | None]
"""Width and kind of codes as text, the data type that has no operator, and the wider one in which
the hardware holds the codes; None where it has none."""


def width_notes(plan: QuantizedGraph) -> tuple[Note, ...]:
    """Make the notes on half-precision models and on widths without an operator on the target."""
    missing = ((end, missing_operator(plan, end, config)) for end, config in plan.configs.items())
    return (*_notes_of_widened(plan), *operator_notes(plan.target, missing))


def _notes_of_widened(plan: QuantizedGraph) -> tuple[Note, ...]:
    """Make the note that the float parts of a half-precision model compute in float32."""
    is_narrow = plan.target.float16 is not None and plan.target.float16.asked
    graph, wide = plan.graph, "its {} inputs and outputs are float32"
    stays = [v for v in (*graph.inputs, *graph.outputs) if v.dtype is ir.DataType.FLOAT16]
    ports = {
        "FLOAT16": "its float16 inputs and outputs stay" if stays else wide.format("float16"),
        "BFLOAT16": wide.format("bfloat16"),
    }
    notes = [
        f"the model is {name.lower()}: "
        f"{'' if is_narrow else 'it computes in float32 where it stays float, '}{ports[name]}"
        for name in graph.widened
        if name in ports
    ]
    if graph.widened_ports and not notes:
        shown = ", ".join(map(repr, graph.widened_ports))
        notes = [f"float16 inputs and outputs of the model are float32 in what is written: {shown}"]
    return tuple(Note(NoteKind.WIDTH, "", note) for note in notes)


def missing_operator(
    plan: QuantizedGraph, end: TensorEnd, config: TensorQuantConfig
) -> Missing | None:
    """Describe the width at an end if the target has no operator for it; None if it has one.

    The smallest type that holds the codes decides: for a kernel, 5 to 8 bits are int8 and 4 bits
    are int4, which may be held in an int8 as in [tvm].
    """
    scheme = scheme_at(plan, end, config)
    rule = None if scheme is None else plan.target.rule_for(plan.graph.node(end.node))
    # Wider codes are biases: their type is that of the sum, which every operator has.
    if rule is None or scheme is None or config.bits > DType.INT16.bits:
        return None
    if scheme.block is not None:  # how wide codes of blocks are stored is said with their size
        return None
    needed = DType.holding(config.bits, signed=config.quant_min < 0)
    declared = {scheme.dtype, *_declared_dtypes(rule)}
    if config.bits == scheme.bits or needed in declared:
        return None
    holder = scheme.dtype if needed.bits < scheme.dtype.bits <= DType.INT16.bits else None
    kind = "weights" if _is_weight(plan, end, config) else "activations"
    return f"{config.bits}-bit {kind}", needed, holder


def scheme_at(
    plan: QuantizedGraph, end: TensorEnd, config: TensorQuantConfig
) -> TensorScheme | None:
    """Return the target's own scheme for what is quantized at an end; None where nothing is."""
    rule = plan.target.rule_for(plan.graph.node(end.node)) if quantizes(config) else None
    if rule is None:
        return None
    if _is_weight(plan, end, config):
        return plan.target.weight_scheme(rule)
    return plan.target.activation_scheme(rule)


def _is_weight(plan: QuantizedGraph, end: TensorEnd, config: TensorQuantConfig) -> bool:
    is_input = end.direction is Direction.INPUT
    role = input_role(plan.graph.node(end.node), end.slot) if is_input else None
    return role is Role.WEIGHT or is_stored(config)


def operator_notes(
    target: Target, missing: Iterable[tuple[TensorEnd, Missing | None]]
) -> tuple[Note, ...]:
    """Make one note for each width without an operator.

    Narrow codes are computed with in the type that holds them. Most runtimes compute nodes of wider
    ones in float.
    """
    # Dicts keep the order of the plan, and a node once: the first name is where the note stands.
    nodes: dict[Missing, dict[str, None]] = {}
    for end, found in missing:
        if found is not None:
            nodes.setdefault(found, {})[end.node] = None
    return tuple(_operator_note(target, *found, tuple(names)) for found, names in nodes.items())


def _operator_note(
    target: Target, width: str, needed: DType, holder: DType | None, names: tuple[str, ...]
) -> Note:
    count = f"({len(names)} node(s))"
    if holder is not None:
        message = (
            f"{width} are held in {holder}, the type that target {target.name} computes with "
            f"{count}"
        )
        return Note(NoteKind.WIDTH, names[0], message)
    return Note(
        NoteKind.WIDTH,
        names[0],
        f"{width} are {needed}, which target {target.name} has no integer operator for {count}: "
        "they may be computed in float",
        "`intact verify` names what the runtime runs in float",
    )


def _declared_dtypes(rule: OpRule) -> set[DType]:
    signatures = (rule.inputs, rule.outputs, *((s.inputs + s.outputs) for s in rule.alternatives))
    return {dtype for signature in signatures for dtype in signature}
