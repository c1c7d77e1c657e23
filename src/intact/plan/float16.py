"""float16 for what stays float: which nodes compute in it, and why others do not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import msgspec
import numpy as np
import onnx_ir as ir

from intact._text import first_names
from intact.errors import PlanError
from intact.graph import constant_array
from intact.graph.ops import facts, weight_slot
from intact.graph.passes.narrow import LARGEST, float16_slots, in_float16, narrow, round_floats
from intact.graph.traversal import bodies
from intact.plan.quantized_graph import Float16Nodes, Note, NoteKind, QuantizedGraph
from intact.plan.topology import has_caches_only, has_weights_only
from intact.targets.float16 import Float16, Rounded

_SMALLEST = float(np.finfo(np.float16).tiny)
"""The smallest normal float16; below it digits are lost."""


def refuse_others(plan: QuantizedGraph) -> None:
    """Refuse names that are none of a plan's float nodes.

    Raises:
        PlanError: There is one.
    """
    found = plan.float16
    for name in () if found is None else (*found.nodes, *found.float32):
        decision = plan.decisions.get(name)
        if decision is None or decision.quantized:
            raise PlanError(
                f"float16: {name!r} is no float node of the plan", remedy="quantize again"
            )


def with_float16(plan: QuantizedGraph) -> QuantizedGraph:
    """Let float nodes compute in float16, where the plan's target is asked for that.

    Nothing is known of ranges yet: see `intact.calibrate.float16`.

    Raises:
        PlanError: A weight holds what is no number, so that the model's own outputs hold it too.
    """
    asked = plan.target.float16
    if asked is None or not asked.asked:
        return plan
    nodes, float32 = [], {}
    for node, _ in _float_nodes(plan):
        _refuse_not_finite(node)
        reason = _reason(plan, asked, node)
        if reason:
            float32[str(node.name)] = reason
        else:
            nodes.append(str(node.name))
    return replace(plan, float16=Float16Nodes(tuple(nodes), float32))


def with_float32_of(plan: QuantizedGraph, known: QuantizedGraph) -> QuantizedGraph:
    """Keep in float32 what another plan of the graph does, by the ranges that it knows."""
    if plan.float16 is None or known.float16 is None:
        return plan
    nodes, reasons = set(plan.float16.nodes), known.float16.float32
    kept = {name: reason for name, reason in reasons.items() if name in nodes}
    return replace(plan, float16=plan.float16.without(kept))


def float16_values(plan: QuantizedGraph) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Yield what nodes in float16 read and give, but for constants."""
    found = plan.float16
    names = set() if found is None else set(found.nodes)
    for node, (inputs, outputs) in _float_nodes(plan):
        if str(node.name) not in names:
            continue
        values = [*(node.inputs[slot] for slot in inputs), *(node.outputs[k] for k in outputs)]
        for value in values:
            if value is not None and constant_array(value) is None:
                yield node, value


def float16_notes(plan: QuantizedGraph, *, observed: bool) -> tuple[Note, ...]:
    """Say how many nodes compute in float16, and which do not.

    Args:
        plan: The plan.
        observed: Whether samples have shown the ranges.
    """
    found, asked = plan.float16, plan.target.float16
    if found is None or asked is None:
        return ()
    unseen = "" if observed else "; no samples were run to show that values stay within 65,504"
    remark = f"; {asked.remark}" if asked.remark else ""
    message = f"{len(found.nodes)} float node(s) compute in float16{unseen}{remark}"
    notes = [Note(NoteKind.WIDTH, "", message)]
    by_reason: dict[str, list[str]] = {}
    for name, reason in found.float32.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        others = f" ({len(names)} node(s): {first_names(names)})" if len(names) > 1 else ""
        notes.append(Note(NoteKind.WIDTH, names[0], f"stays float32: {reason}{others}"))
    return tuple(notes)


def as_written(model: ir.Model, plan: QuantizedGraph) -> None:
    """Let the nodes of a model that is written compute in float16, in place."""
    if plan.float16 is not None and plan.float16.nodes:
        narrow(model, set(plan.float16.nodes))


def as_computed(model: ir.Model, plan: QuantizedGraph) -> None:
    """Let the nodes of a model that is run here round as the target's runtime does, in place."""
    found, asked = plan.float16, plan.target.float16
    if found is not None and asked is not None:
        compute(model, found.nodes, asked.rounded)


def compute(model: ir.Model, names: Collection[str], rounded: Rounded) -> None:
    """Let nodes of a model that ONNX Runtime runs round as a runtime does, in place.

    Args:
        model: Nodes are named as in the plan, and sorted.
        names: The nodes that compute in float16.
        rounded: What that runtime rounds.
    """
    if not names:
        return
    if rounded is Rounded.BY_KERNEL:
        narrow(model, set(names))
    else:
        round_floats(model, set(names), values=rounded is Rounded.VALUES)


def in_onnx_runtime(plan: QuantizedGraph) -> QuantizedGraph:
    """Return a plan whose float16 is what ONNX Runtime makes of it, whatever the target does."""
    asked = plan.target.float16
    if plan.float16 is None or asked is None:
        return plan
    float16 = msgspec.structs.replace(asked, rounded=Rounded.BY_KERNEL)
    return replace(plan, target=msgspec.structs.replace(plan.target, float16=float16))


def _float_nodes(plan: QuantizedGraph) -> Iterator[tuple[ir.Node, tuple[list[int], list[int]]]]:
    """Yield float nodes whose operators ONNX has in float16, with their inputs and outputs."""
    opset = plan.graph.model.graph.opset_imports.get("", 1)
    for node in plan.graph.nodes:
        if plan.decisions[str(node.name)].quantized:
            continue
        slots = float16_slots(node, opset)
        # A Cast says its type itself.
        if slots[0] and not facts(node).converts:
            yield node, slots


def _refuse_not_finite(node: ir.Node) -> None:
    slot = weight_slot(node)
    value = None if slot is None else node.inputs[slot]
    weight = constant_array(value)
    if value is None or weight is None or weight.dtype.kind != "f" or np.isfinite(weight).all():
        return
    raise PlanError(
        f"weight {value.name!r} of {node.name} holds NaN or infinity, as a model "
        "has that left float16 when it was converted",
        remedy="convert the float32 model again, and keep that node in float32 there",
    )


def _reason(plan: QuantizedGraph, asked: Float16, node: ir.Node) -> str:
    """Return why a float node stays float32; "" where it need not."""
    if node.op_type in asked.float32:
        return asked.reason
    if facts(node).places:
        return "it computes places, which need more digits"
    if any(True for _ in bodies(node)):
        return "it has a body"
    decision = plan.decisions[str(node.name)]
    if has_weights_only(decision) or has_caches_only(decision):
        return "its weights or caches are stored as integers"
    return _constant_reason(constant_array(value) for value in node.inputs)


def _constant_reason(arrays: Iterable[np.ndarray | None]) -> str:
    """Return why float16 cannot hold constants; "" where it does."""
    for array in arrays:
        if array is None or array.dtype != np.float32 or not array.size:
            continue
        magnitude = np.abs(array[np.isfinite(array)])
        largest = float(magnitude.max(initial=0))
        if largest > LARGEST:
            return f"its constant {largest:.3g} is beyond 65,504, where float16 ends"
        # Of many numbers those near 0 matter less than the others; a single one is all there is.
        if array.size == 1 and 0 < largest < _SMALLEST:
            held = float(in_float16(array.reshape(())))
            return f"its constant {largest:.3g} would be {abs(held):.3g} in float16"
    return ""
