"""Lowers a plan to a program: which operations run on which integers, in order.

Every chain of nodes that the plan fuses becomes one step, conversions stand where forms of a
value differ, and what has no integer operation runs in float between a dequantize and a quantize,
as in the simulation, and is named. Spatial operations get their channels last by transposes around
them, which `intact.program.passes.layout` then moves and cancels.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph import facts, is_constant
from intact.graph.graph import values_read_inside
from intact.plan import Decision, QuantizedGraph, refuse_unready
from intact.plan.dynamic import dynamic_points
from intact.plan.topology import is_moved_in_float, loses_less_in_float
from intact.program.lower import floats, loops, moves, pointwise, products, recurrent, windows
from intact.program.lower.builder import ProgramBuilder
from intact.program.lower.chains import Points, chains
from intact.program.lower.far_constants import move_far_constants
from intact.program.lower.lowerings import (
    FLOAT_LOWERINGS,
    LOWERINGS,
    UNROLLING_LOWERINGS,
    Lowerings,
)
from intact.program.operations import FloatNodes
from intact.program.passes.encodings import unsigned_inputs, write_prescribed_codes
from intact.program.passes.islands import join_islands, without_unused
from intact.program.passes.layout import IoLayout, cancel_transposes
from intact.program.passes.residuals import mark_kept_residuals
from intact.program.program import Program, Tensor

_MODULES = (floats, loops, moves, pointwise, products, recurrent, windows)
"""Their lowerings are registered when they are imported."""


def lower(
    plan: QuantizedGraph,
    *,
    float_operations: bool = False,
    layout: IoLayout = IoLayout.MODEL,
) -> Program:
    """Lower a calibrated plan to steps.

    Args:
        plan: The plan; not changed.
        float_operations: Also write float nodes as operations where there are any for them, for
            formats that hold both. Otherwise they stay ``FloatNodes``, which run as they are.
        layout: In which layout the program takes and gives data.

    Raises:
        PlanError: An end has no scale yet, or levels without integer arithmetic.
    """
    floats = UNROLLING_LOWERINGS if float_operations else None
    # In this order: what nobody reads would hold transposes in place; islands join only steps that
    # no transpose stands between; residuals need the final order of steps.
    program = without_unused(translate(plan, floats))
    moved = without_unused(cancel_transposes(program, layout))
    joined = mark_kept_residuals(join_islands(moved))
    return unsigned_inputs(write_prescribed_codes(joined, plan))


def lower_nodes(plan: QuantizedGraph) -> Program:
    """Lower a calibrated plan for formats that hold float layers and keep the model's layout.

    Each float node is one step, of an operation where there is one for it (see
    `intact.program.float_operations`), else of `FloatNodes` with the reason. Each spatial operation
    stands between two transposes, which are conversions: steps of no node.

    Args:
        plan: The plan; not changed.

    Raises:
        PlanError: See `lower`.
    """
    return without_unused(translate(plan, FLOAT_LOWERINGS))


def translate(plan: QuantizedGraph, floats: Lowerings | None = None) -> Program:
    """Lower node by node, with every transpose.

    Args:
        plan: The plan; not changed.
        floats: What float nodes are lowered by; None leaves them as they are.

    Raises:
        PlanError: See `lower`.
    """
    refuse_unready(plan)
    points = Points.of(plan)
    near = move_far_constants(plan, points)
    # Points hold values of their graph, and the other plan has a clone of it.
    if near is not plan:
        plan, points = near, Points.of(near)
    builder = ProgramBuilder(plan, points)
    in_float: dict[str, str] = {}
    for chain in chains(plan, points):
        reason = _lower_in_integers(builder, chain) if plan.is_quantized(chain[0]) else ""
        if reason is None:
            continue
        if reason:
            in_float |= {str(node.name): reason for node in chain}
        for node in chain:
            _lower_in_floats(builder, node, floats)
    outputs = {str(value.name): builder.floats_of(value) for value in plan.graph.outputs}
    return Program(builder.inputs, outputs, tuple(builder.steps), in_float, _float_ends(plan))


def _float_ends(plan: QuantizedGraph) -> frozenset[str]:
    """Return the ends that are read or decoded in float, and those of what only floats move to.

    Codes of whole numbers would be others than these.

    Where activations are quantized while the model runs, floats are between all layers.
    """
    if next(dynamic_points(plan), None) is not None:
        values = (*plan.graph.inputs, *plan.graph.outputs)
        return frozenset(str(value.name) for value in values if plan.graph.is_float(value))
    found = set()
    for value in plan.graph.outputs:
        producer = value.producer()
        decision = None if producer is None else plan.decisions[str(producer.name)]
        if decision is not None and _is_of_floats(decision):
            found.add(str(value.name))
    for value in plan.graph.inputs:
        readers = [node for node, _ in plan.graph.consumers(value)]
        if readers and all(
            _is_of_floats(plan.decisions[str(node.name)]) or _counts(node) for node in readers
        ):
            found.add(str(value.name))
    return frozenset(found)


def _counts(node: ir.Node) -> bool:
    """Tell whether a node takes floats for whole numbers, as for the rows of a table."""
    dtype = node.outputs[0].dtype
    return facts(node).converts and dtype is not None and dtype.numpy().kind in "iu"


def _is_of_floats(decision: Decision) -> bool:
    """Tell whether what a node reads of the model's inputs, or writes of its outputs, is float."""
    return is_moved_in_float(decision) or loses_less_in_float(decision)


def _lower_in_integers(builder: ProgramBuilder, chain: tuple[ir.Node, ...]) -> str | None:
    """Add the steps of a quantized chain; return why there are none, or None."""
    try:
        LOWERINGS.lower(builder, chain)
    except Unsupported as reason:
        return str(reason)
    return None


def _lower_in_floats(builder: ProgramBuilder, node: ir.Node, floats: Lowerings | None) -> None:
    """Add a node that computes with floats, as an operation or as it is."""
    if floats is None or not floats.has(node):
        _keep_as_float(builder, node)
        return
    builder.floating = True
    try:
        floats.lower(builder, (node,))
    except Unsupported as reason:
        _keep_as_float(builder, node, str(reason))
    finally:
        builder.floating = False


def _keep_as_float(builder: ProgramBuilder, node: ir.Node, reason: str = "") -> None:
    read: dict[ir.Value, Tensor] = {}
    for slot, value in enumerate(node.inputs):
        is_quantized = (str(node.name), slot) in builder.points.at_input
        if value is not None and (is_quantized or not is_constant(value)):
            read.setdefault(value, builder.read_float(node, slot))
    for value in values_read_inside(node):
        if value.graph is node.graph and not is_constant(value):  # not what a body makes itself
            read.setdefault(value, builder.floats_of(value))
    outputs = [value for value in node.outputs if value.name]
    results = [builder.tensor(value, None) for value in outputs]
    functions = tuple(builder.plan.graph.model.functions.values())
    operation = FloatNodes((node,), tuple(read), tuple(outputs), functions, reason)
    narrowed, asked = builder.plan.float16, builder.plan.target.float16
    if narrowed is not None and asked is not None and node.name in narrowed.nodes:
        names = frozenset((str(node.name),))
        operation = replace(operation, float16=names, rounded=asked.rounded)
    builder.emit((node,), operation, tuple(read.values()), results)
    for value, result in zip(outputs, results, strict=True):
        builder.set_result(value, result)
