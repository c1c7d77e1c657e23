"""Removes no-ops: Identity, Dropout at inference, x + 0, x * 1, Cast to the same type, bounds
at infinity, guards against NaN where none can be, choices between equal numbers or that are always
the same, and axes that a Slice takes whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import onnx_ir as ir

from intact.graph.names import value_names
from intact.graph.ops import constant_array, facts, input_value, is_constant
from intact.graph.passes.replace import add_constant, replace_value
from intact.ops import DENSE, functions
from intact.ops.operators import (
    Add,
    Cast,
    Clip,
    Div,
    Dropout,
    Greater,
    Identity,
    IsNaN,
    Mul,
    Slice,
    Softmax,
    Where,
    is_a,
)


def remove_no_ops(model: ir.Model) -> int:
    """Remove the nodes of the main graph that return one of their inputs unchanged.

    A node from a graph input or constant to a graph output is kept, and one between two graph
    outputs: both names are part of the model's interface.

    Returns:
        The number of removed nodes.
    """
    removed = 0
    for node in tuple(model.graph):
        source = _handed_on(node)
        if source is not None and _bypass(model.graph, node, source):
            removed += 1
    return removed


def _handed_on(node: ir.Node) -> ir.Value | None:
    """Return the input that a node returns unchanged; None if there is none."""
    if node.domain != "" or any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return None
    data = input_value(node, 0)
    if data is None:
        return None
    if facts(node).neutral is not None:
        return _unchanged_operand(node)
    if is_a(node, Where):
        return _always_chosen(node) or _guarded(node) or _smooth(node)
    return data if _is_idle(node, data) else None


def _is_idle(node: ir.Node, data: ir.Value) -> bool:
    match node.op_type:
        case Identity.name:
            return True
        case Dropout.name:
            return _is_off(input_value(node, 2))
        case Cast.name:
            return data.dtype is not None and data.dtype == Cast.of(node).to
        case Clip.name:
            # Without a bound it clamps infinity to the largest finite number.
            return _is_number(node, 1, -math.inf) and _is_number(node, 2, math.inf)
    return False


def _is_number(node: ir.Node, slot: int, number: float) -> bool:
    array = constant_array(input_value(node, slot))
    return array is not None and array.size == 1 and array.item() == number


def _is_off(training: ir.Value | None) -> bool:
    array = constant_array(training)
    return training is None or (array is not None and not array.any())


def _unchanged_operand(node: ir.Node) -> ir.Value | None:
    known = facts(node)
    if len(node.inputs) != 2:
        return None  # Max and Min take any number
    sides = ((0, 1), (1, 0)) if known.commutes else ((0, 1),)
    for kept, other in sides:
        value, constant = node.inputs[kept], constant_array(node.inputs[other])
        if value is None or value.shape is None or constant is None or is_constant(value):
            continue
        if _fits_in(constant.shape, value.shape) and (constant == known.neutral).all():
            return value
    return None


def _fits_in(lengths: Sequence[int | str | None], shape: ir.Shape) -> bool:
    """Tell whether an operand of these lengths leaves the shape of what it meets as it is."""
    if 0 in lengths or len(lengths) > len(shape):
        return False
    last = shape[len(shape) - len(lengths) :]
    return all(own in (1, other) for own, other in zip(lengths, last, strict=True))


def _always_chosen(node: ir.Node) -> ir.Value | None:
    """Return what a Where chooses for every element, as behind a mask that is fixed as a constant.

    One that the other operands make larger is not returned.
    """
    condition = constant_array(input_value(node, 0))
    if condition is None or not condition.size or condition.all() != condition.any():
        return None
    kept, other = (1, 2) if condition.all() else (2, 1)
    data, rest = (input_value(node, slot) for slot in (kept, other))
    if data is None or data.shape is None or rest is None or rest.shape is None:
        return None
    lengths = [length if isinstance(length, int) else length.value for length in rest.shape]
    is_known = all(lengths)  # lengths without a name may differ
    fits = _fits_in(condition.shape, data.shape) and _fits_in(lengths, data.shape)
    return data if is_known and fits else None


def _guarded(node: ir.Node) -> ir.Value | None:
    """Return the Softmax that a Where keeps from being NaN, where finite numbers give none.

    torch's exporter writes such a guard behind each attention: a Softmax is NaN where a mask leaves
    nothing of a row.
    """
    condition, data = input_value(node, 0), input_value(node, 2)
    asked = None if condition is None else condition.producer()
    softmax = None if data is None else data.producer()
    if not is_a(asked, IsNaN) or asked.inputs[0] is not data or softmax is None:
        return None
    if asked.domain or not is_a(softmax, Softmax):
        return None
    scores = input_value(softmax, 0)
    if scores is None or scores.shape is None:
        return None
    is_last = Softmax.of(softmax).axis in (-1, len(scores.shape) - 1)
    stays = _broadcasts_into(input_value(node, 1), data)
    return data if is_last and stays and _leaves_rows(scores) else None


def _broadcasts_into(value: ir.Value | None, data: ir.Value | None) -> bool:
    """Tell whether a constant leaves the shape of data as it is."""
    array = constant_array(value)
    if array is None or data is None or data.shape is None:
        return False
    return _fits_in(array.shape, data.shape)


_LINEAR_FROM = 16.0
"""From here on the float32 that is next to Softplus is its input."""


def _smooth(node: ir.Node) -> ir.Value | None:
    """Return the Softplus of ``Where(x > 20, x, Softplus(x))``, as torch's exporter writes it."""
    condition, data, rest = (input_value(node, slot) for slot in range(3))
    asked = None if condition is None else condition.producer()
    softplus = None if rest is None else rest.producer()
    if data is None or not is_a(asked, Greater) or not is_a(softplus, functions.softplus):
        return None
    limit = constant_array(input_value(asked, 1))
    reads = asked.inputs[0] is softplus.inputs[0] is data and data.dtype is ir.DataType.FLOAT
    is_far = limit is not None and limit.size == 1 and limit.item() >= _LINEAR_FROM
    return rest if reads and is_far and _broadcasts_into(asked.inputs[1], data) else None


def _leaves_rows(scores: ir.Value) -> bool:
    """Tell whether rows are of products, scaled, with a mask that leaves some of each.

    A mask is a constant with infinities, or chooses from finite numbers, of which the largest are
    no sum of two masks. What scales a mask keeps its sign, and makes finite ones no larger.
    """
    node, is_masked = scores.producer(), False
    least, most = 1.0, 1.0  # what is added here is multiplied by
    while is_a(node, Add, Div, Mul):
        first, second = (constant_array(value) for value in node.inputs)
        slots = [slot for slot in (0, 1) if _is_finite_mask(node.inputs[slot])]
        if slots and is_a(node, Add):
            other = node.inputs[1 - slots[0]]
            if is_masked or other is None or least <= 0 or most > 1:
                return False
            node, is_masked = other.producer(), True
            continue
        constant, data = (second, node.inputs[0]) if first is None else (first, node.inputs[1])
        if constant is None or data is None or not constant.size:
            return False
        if is_a(node, Div):
            if second is None or not second.all():
                return False
            constant = 1 / constant
        finite = np.isfinite(constant)
        if not finite.all():
            rows = finite.any(axis=-1) if constant.ndim else finite
            if is_masked or not is_a(node, Add) or not rows.all() or least <= 0:
                return False
            if not np.isneginf(constant[~finite]).all():
                return False
            is_masked = True
        elif not is_a(node, Add):
            least *= max(float(constant.min()), 0.0)
            most *= float(constant.max())
        node = data.producer()
    return node is not None and not node.domain and node.op_type in DENSE


def _is_finite_mask(value: ir.Value | None) -> bool:
    """Tell whether a value is chosen from two finite constants."""
    node = None if value is None else value.producer()
    if not is_a(node, Where):
        return False
    chosen = [constant_array(each) for each in node.inputs[1:]]
    return all(array is not None and bool(np.isfinite(array).all()) for array in chosen)


def _bypass(graph: ir.Graph, node: ir.Node, source: ir.Value) -> bool:
    result = node.outputs[0]
    if result.is_graph_output():
        if source.producer() is None or source.is_graph_output() or source.graph is not graph:
            return False
        replace_value(result, source)
    else:
        result.replace_all_uses_with(source)
        # What is known of the result is known of its source: they are one value.
        source.shape = source.shape if source.shape is not None else result.shape
        source.type = source.type if source.type is not None else result.type
    graph.remove(node, safe=True)
    return True


_LONGEST = 2**31 - 1
"""An end from here on means the end of the axis, also of one of unknown length."""


class _Cut(msgspec.Struct, frozen=True):
    """What a Slice takes along one axis, in the order of its inputs."""

    start: int
    end: int
    axis: int
    step: int


def drop_whole_axes(model: ir.Model) -> int:
    """Take the axes off each Slice of which it takes all; one without others becomes Identity.

    Exporters list every axis, the batch too. Formats that have no open batch, or none to cut,
    refuse a Slice that names it.

    Returns:
        The number of changed nodes.
    """
    return sum(_shorten(model.graph, node) for node in tuple(model.graph))


def _shorten(graph: ir.Graph, node: ir.Node) -> bool:
    data = input_value(node, 0)
    cuts = _cuts(node) if is_a(node, Slice) else None
    if cuts is None or data is None:
        return False
    left = [cut for cut in cuts if not _is_whole(cut, data.shape)]
    if len(left) == len(cuts):
        return False
    if not left:
        node.op_type = Identity.name
        node.resize_inputs(1)
        return True
    node.resize_inputs(5)
    names = value_names(graph)
    for slot, field in enumerate(msgspec.structs.fields(_Cut), 1):
        array = np.array([getattr(cut, field.name) for cut in left], np.int64)
        name = names.fresh(f"{node.name}_{field.name}")
        node.replace_input_with(slot, add_constant(graph, array, name))
    return True


def _cuts(node: ir.Node) -> list[_Cut] | None:
    """Return what a Slice takes along each of its axes; None where that is not constant."""
    starts, ends = (constant_array(input_value(node, slot)) for slot in (1, 2))
    if starts is None or ends is None or starts.ndim != 1 or starts.shape != ends.shape:
        return None
    columns = [starts, ends]
    for slot, usual in ((3, np.arange(len(starts))), (4, np.ones(len(starts), np.int64))):
        value = input_value(node, slot)
        array = usual if value is None else constant_array(value)
        if array is None or array.shape != starts.shape:
            return None
        columns.append(array)
    return [_Cut(*map(int, row)) for row in zip(*columns, strict=True)]


def _is_whole(cut: _Cut, shape: ir.Shape | None) -> bool:
    length = None
    if shape is not None and -len(shape) <= cut.axis < len(shape):
        length = shape[cut.axis]
    if not isinstance(length, int):
        return cut.step == 1 and cut.start == 0 and cut.end >= _LONGEST
    return cut.step == 1 and (cut.start == 0 or cut.start <= -length) and cut.end >= length
