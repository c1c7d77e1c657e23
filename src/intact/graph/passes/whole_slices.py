"""Axes that a Slice takes whole: exporters list every axis of a tensor, the batch too."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx_ir as ir

from intact.graph.names import value_names
from intact.graph.ops import constant_array, input_value
from intact.graph.passes.replace import add_constant

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

    Formats that have no open batch, or none to cut, refuse a Slice that names it.

    Returns:
        The number of changed nodes.
    """
    return sum(_shorten(model.graph, node) for node in tuple(model.graph))


def _shorten(graph: ir.Graph, node: ir.Node) -> bool:
    data = input_value(node, 0)
    cuts = _cuts(node) if node.domain == "" and node.op_type == "Slice" else None
    if cuts is None or data is None:
        return False
    left = [cut for cut in cuts if not _is_whole(cut, data.shape)]
    if len(left) == len(cuts):
        return False
    if not left:
        node.op_type = "Identity"
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
