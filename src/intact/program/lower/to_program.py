"""Lowers a plan to a program: which operations run on which integers, in order.

Every chain of nodes that the plan fuses becomes one step, conversions stand where forms of a
value differ, and what has no integer operation runs in float between a dequantize and a quantize,
as in the simulation, and is named. Spatial operations get their channels last by transposes around
them, which `intact.program.passes.layout` then moves and cancels. Before that constants far out of
the range of their codes are moved to where they saturate too; after it convolutions are marked that
cannot write over their residual.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.graph import constant_array, data_slots, facts, input_value, is_constant, moves_values
from intact.graph.graph import values_read_inside
from intact.plan import Decision, QuantizedGraph, QuantPoint, refuse_unready
from intact.plan.dynamic import dynamic_points
from intact.plan.topology import is_decoded, is_moved_in_float, is_spectral
from intact.program.arithmetic.ends import has_ends
from intact.program.lower import floats, moves, pointwise, products, recurrent, windows
from intact.program.lower.builder import ProgramBuilder
from intact.program.lower.chains import Points, chains
from intact.program.lower.lowerings import (
    FLOAT_LOWERINGS,
    LOWERINGS,
    UNROLLING_LOWERINGS,
    Lowerings,
)
from intact.program.operations import RESIDUAL_SLOT, Convolution, FloatNodes
from intact.program.passes.encodings import unsigned_inputs, write_prescribed_codes
from intact.program.passes.layout import IoLayout, cancel_transposes
from intact.program.passes.whole_inputs import join_islands, without_unused
from intact.program.program import Program, Step, Tensor

_MODULES = (floats, moves, pointwise, products, recurrent, windows)
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

    Where activations are quantized while the model runs, floats are between all layers.
    """
    if next(dynamic_points(plan), None) is not None:
        values = (*plan.graph.inputs, *plan.graph.outputs)
        return frozenset(str(value.name) for value in values if plan.graph.is_float(value))
    found = set()
    for value in plan.graph.outputs:
        producer = value.producer()
        decision = None if producer is None else plan.decisions[str(producer.name)]
        if decision is not None and (is_decoded(decision) or is_moved_in_float(decision)):
            found.add(str(value.name))
    for value in plan.graph.inputs:
        decisions = [plan.decisions[str(node.name)] for node, _ in plan.graph.consumers(value)]
        if decisions and all(map(_is_of_floats, decisions)):
            found.add(str(value.name))
    return frozenset(found)


def _is_of_floats(decision: Decision) -> bool:
    """Tell whether what a node reads of the model's inputs stays float."""
    return is_moved_in_float(decision) or is_spectral(decision) or is_decoded(decision)


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


# Moves constants far out of the range of their codes to where they saturate too.
#
# A mask is -1e9, -3.4e38 or -inf; what chooses between it and scores may compute in float and
# hand its result to integers. Runtimes convert by rounding to int32 first, where such a quotient
# wraps.

_FAR = 2.0**29
"""Codes from 0, at most: beyond every range, and the sum of two of them is still an int32."""
_PAD_VALUE = 2


def move_far_constants(plan: QuantizedGraph, points: Points) -> QuantizedGraph:
    """Return a plan in which no constant is further out than codes reach by far.

    Concerned are float constants that are added, chosen or padded with, where all that is made of
    them is quantized by the plan: it saturates as before.

    Args:
        plan: A plan with scales; it is not changed, and returned where nothing is to do.
        points: Its quantization points.
    """
    spans = _Spans(plan, points)
    far: dict[str, float] = {}
    for value in _constants(plan):
        limit, array = spans.span(value).limit, constant_array(value)
        if not np.isfinite(limit) or array is None or array.dtype.kind != "f":
            continue
        if (np.abs(array) > limit).any():
            far[str(value.name)] = limit
    if not far:
        return plan
    graph = plan.graph.clone()
    for value in [each for node in graph.nodes for each in node.inputs if each is not None]:
        array = constant_array(value) if str(value.name) in far else None
        if array is not None:
            limit = far.pop(str(value.name))
            near = np.clip(array, -limit, limit).astype(array.dtype)
            value.const_value = ir.Tensor(near, dtype=value.dtype, name=value.name)
    return replace(plan.copy(), graph=graph)


def _constants(plan: QuantizedGraph) -> Iterator[ir.Value]:
    """Yield the constant operands of nodes that select."""
    for node in plan.graph.nodes:
        for slot in _slots(node):
            value = input_value(node, slot)
            if value is not None and is_constant(value):
                yield value


def _slots(node: ir.Node) -> tuple[int, ...]:
    """Return the inputs of which a node's result takes values, or sums of them."""
    known = facts(node)
    if not (known.selects or known.adds or moves_values(node)):
        return ()
    extra = (_PAD_VALUE,) if node.op_type == "Pad" else ()
    return (*data_slots(node), *extra)


class _Span(NamedTuple):
    """Where a constant may be moved to.

    Attributes:
        least: All that is further from 0 saturates; infinity where something reads it as a float.
        most: What is further may be no int32.
    """

    least: float = np.inf
    most: float = np.inf

    @property
    def limit(self) -> float:
        """How far from 0 a constant may be."""
        return max(self.least, self.most)


def _join_spans(spans: Iterable[_Span]) -> _Span:
    """Return the span of a value that is read in several ways."""
    found = tuple(spans) or (_Span(),)
    return _Span(max(each.least for each in found), min(each.most for each in found))


def _span(point: QuantPoint) -> _Span:
    config = point.config
    if config.scale is None or config.grid.exponential:
        return _Span()
    # Twice the range, by the largest scale: whatever the zero point, that far out a code saturates.
    # The smallest scale gives the largest quotient, which must stay an int32.
    scale, codes = float(np.max(config.scale)), config.grid.quant_max - config.grid.quant_min
    return _Span(2.0 * scale * codes, _FAR * float(np.min(config.scale)))


class _Spans:
    """The spans of values, from those that read them."""

    def __init__(self, plan: QuantizedGraph, points: Points) -> None:
        self._plan, self._points = plan, points
        self._known: dict[ir.Value, _Span] = {}
        # From the end, so that the span of a value finds those of its readers known: recursion
        # through a deep model would exceed Python's limit.
        for node in reversed(plan.graph.nodes):
            for value in node.outputs:
                self._known[value] = self._find_span(value)

    def span(self, value: ir.Value) -> _Span:
        """Return the span of a value."""
        if value not in self._known:
            self._known[value] = self._find_span(value)
        return self._known[value]

    def _find_span(self, value: ir.Value) -> _Span:
        if value in self._points.at_output:
            return _span(self._points.at_output[value])
        if value.is_graph_output():
            return _Span()
        return _join_spans(
            self._span_at(node, slot) for node, slot in self._plan.graph.consumers(value)
        )

    def _span_at(self, node: ir.Node, slot: int) -> _Span:
        point = self._points.at_input.get((str(node.name), slot))
        if point is not None:
            return _span(point)
        if slot not in _slots(node):
            return _Span()
        return _join_spans(self.span(each) for each in node.outputs)


def mark_kept_residuals(program: Program) -> Program:
    """Return a program whose convolutions say where their residual is needed after them.

    A runtime that adds in place cannot add there: it takes an operation of its own, with another
    arithmetic (see `Convolution`). Needed are the data of the convolution, an output of the model,
    and what a step reads that the sum does not depend on.

    >>> mark_kept_residuals(Program({}, {}, ())).steps
    ()
    """
    if not any(_residual(step) for step in program.steps):
        return program
    readers: dict[str, list[int]] = defaultdict(list)
    for place, step in enumerate(program.steps):
        for tensor in step.activations:
            readers[tensor.name].append(place)
    outputs = {tensor.name for tensor in program.outputs.values()}

    def mark(place: int, step: Step) -> Step:
        residual, operation = _residual(step), step.operation
        if residual is None or not isinstance(operation, Convolution):
            return step
        others = set(readers[residual.name]) - {place}
        kept = (
            residual.name in outputs
            or any(each is not None and each.name == residual.name for each in step.inputs[:1])
            # A reader that the sum depends on has run already; any other may still come.
            or bool(others - _ancestors(program, place, min(others, default=place)))
        )
        return replace(step, operation=replace(operation, keeps_residual=kept))

    return replace(program, steps=tuple(mark(*each) for each in enumerate(program.steps)))


def _residual(step: Step) -> Tensor | None:
    """Return what a step adds to its sums on a target whose arithmetic depends on how."""
    added = step.inputs[RESIDUAL_SLOT:] if isinstance(step.operation, Convolution) else ()
    return added[0] if added and has_ends(step.arithmetic) else None


def _ancestors(program: Program, place: int, first: int) -> set[int]:
    """Return the places from the first one on of steps that the one at a place depends on."""
    needed = {tensor.name for tensor in program.steps[place].activations}
    found = set()
    for earlier in range(place - 1, first - 1, -1):
        step = program.steps[earlier]
        if any(tensor.name in needed for tensor in step.outputs):
            found.add(earlier)
            needed |= {tensor.name for tensor in step.activations}
    return found
