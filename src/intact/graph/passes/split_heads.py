"""Writes heads of attentions as runtimes with four axes, or with the batch in front, hold them.

1. Exporters reshape ``[batch, length, 3 * heads * width]`` to five axes, move the third to the
   front and slice it: queries, keys and values become slices of the last axis, each with its own
   reshape and transposition.
2. torch's exporter joins batch and heads, ``[batch * heads, length, width]``, to transpose the last
   two axes, and parts them again: they are transposed where they are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from intact.graph.names import node_names, value_names
from intact.graph.ops import constant_array, input_value
from intact.graph.passes.replace import add_constant, replace_value
from intact.ops.operators import Gather, Squeeze, Transpose


class _Parts(NamedTuple):
    data: ir.Value
    axis: int
    """The axis of the parts behind the Reshape, the last of the data."""
    shape: tuple[int | ir.SymbolicDim, ...]
    """The shape behind the Reshape."""
    order: tuple[int, ...]
    """The order of the Transpose, without the parts."""


def split_heads(model: ir.Model) -> int:
    """Slice the data of a Reshape and Transpose instead of their result.

    Returns:
        The number of slices that were moved.
    """
    return sum(_split(model.graph, node) for node in tuple(model.graph))


def _split(graph: ir.Graph, node: ir.Node) -> int:
    parts = _parts(node)
    if parts is None or node.outputs[0].is_graph_output():
        return 0
    chosen = [(use.node, _index(use.node, parts)) for use in node.outputs[0].uses()]
    # All or none: with one reader left the Transpose would be computed beside the slices.
    if any(index is None or last.graph is not graph for last, index in chosen):
        return 0
    for first, index in chosen:
        last = first if first.op_type == "Gather" else next(iter(first.outputs[0].uses())).node
        _take(graph, last, parts, index or 0)
    return len(chosen)


def transpose_heads(model: ir.Model) -> int:
    """Transpose the last two axes without joining those in front of them.

    Returns:
        The number of transpositions that were changed.
    """
    return sum(map(_transpose_apart, tuple(model.graph)))


def _transpose_apart(node: ir.Node) -> bool:
    """Change ``Reshape([n * h, l, w]), Transpose, Reshape([n, h, w, l])`` of ``[n, h, l, w]``."""
    if node.domain != "" or node.op_type != "Reshape":
        return False
    turned = _maker(node.inputs[0], Transpose.name)
    joined = None if turned is None else _maker(turned.inputs[0], "Reshape")
    if turned is None or joined is None or list(Transpose.of(turned).perm) != [0, 2, 1]:
        return False
    data, result, middle = joined.inputs[0], node.outputs[0], joined.outputs[0]
    if data is None or data.shape is None or result.shape is None or middle.shape is None:
        return False
    rank = len(data.shape)
    *front, length, width = data.shape
    if rank != len(result.shape) or rank < 4 or list(middle.shape)[1:] != [length, width]:
        return False
    # Where all other lengths are known and the same, so is the first.
    kept = [*front[1:], width, length]
    if list(result.shape)[1:] != kept or not all(isinstance(n, int) and n > 0 for n in kept):
        return False
    node.op_type = Transpose.name
    node.attributes["perm"] = ir.AttrInt64s("perm", [*range(rank - 2), rank - 1, rank - 2])
    node.attributes.pop("allowzero", None)
    node.resize_inputs(1)
    node.replace_input_with(0, data)
    return True


def _maker(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """Return the node of a type that makes a value which one node reads."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.domain != "" or node.op_type != op_type:
        return None
    return None if len(tuple(value.uses())) != 1 or value.is_graph_output() else node


def _parts(node: ir.Node) -> _Parts | None:
    """Read a Transpose that brings to the front what a Reshape made of the last axis."""
    split, order = node.inputs[0] if node.inputs else None, Transpose.of(node).perm
    reshape = None if split is None or node.op_type != Transpose.name else split.producer()
    if node.domain != "" or reshape is None or reshape.domain != "" or reshape.op_type != "Reshape":
        return None
    data = reshape.inputs[0]
    if split is None or data is None or data.shape is None or split.shape is None or not order:
        return None
    axis, shape = len(data.shape) - 1, tuple(split.shape)
    lengths = *data.shape[1:], *shape[1:]
    if axis < 1 or len(shape) <= axis + 1 or tuple(order[:2]) != (axis, 0):
        return None
    if not all(isinstance(length, int) and length > 0 for length in lengths):
        return None
    # Where the samples are as large as before, there are as many: their number may be unknown.
    if tuple(data.shape[1:axis]) != shape[1:axis] or data.shape[axis] != math.prod(shape[axis:]):
        return None
    return _Parts(data, axis, shape, tuple(each - (each > axis) for each in order[1:]))


def _index(node: ir.Node, parts: _Parts) -> int | None:
    """Return which part a node takes: a Gather, or a Slice before a Squeeze; None for others."""
    count = parts.shape[parts.axis]
    if node.domain != "" or not isinstance(count, int):
        return None
    if node.op_type == Gather.name:
        index = constant_array(input_value(node, 1))
        if index is None or index.ndim or Gather.of(node).axis != 0:
            return None
        return int(index) % count if -count <= int(index) < count else None
    return _sliced_axis(node, count) if node.op_type == "Slice" else None


def _sliced_axis(node: ir.Node, count: int) -> int | None:
    numbers = [constant_array(input_value(node, slot)) for slot in (1, 2, 3, 4)]
    if any(each is None or each.size != 1 for each in numbers[:3]):
        return None
    start, stop, axis = (int(each.item()) for each in numbers[:3] if each is not None)
    step = 1 if numbers[3] is None else int(numbers[3].reshape(-1)[0])
    taken = range(count)[start:stop:step] if step == 1 else range(0)
    uses = tuple(node.outputs[0].uses())
    if axis != 0 or len(taken) != 1 or len(uses) != 1 or node.outputs[0].is_graph_output():
        return None
    return taken[0] if _drops_first(uses[0].node) else None


def _drops_first(node: ir.Node) -> bool:
    if node.domain != "" or node.op_type != Squeeze.name:
        return False
    given = constant_array(input_value(node, 1))
    axes = Squeeze.of(node).axes if given is None else given.reshape(-1).tolist()
    return list(axes) == [0]


def _take(graph: ir.Graph, last: ir.Node, parts: _Parts, index: int) -> None:
    """Put Slice, Reshape and Transpose in the place of a node."""
    names, values, title = node_names(graph), value_names(graph), str(last.name)
    heads = [length for length in parts.shape[parts.axis + 1 :] if isinstance(length, int)]
    width = math.prod(heads)
    # At most one is open, the number of samples, so that one -1 is enough.
    front = [length if isinstance(length, int) else -1 for length in parts.shape[: parts.axis]]

    def constant(*numbers: int) -> ir.Value:
        return add_constant(graph, np.array(numbers, np.int64), values.fresh(f"{title}_sizes"))

    def node(op_type: str, *inputs: ir.Value, order: tuple[int, ...] = ()) -> ir.Value:
        attributes = {"perm": order} if order else {}
        new = ir.node(op_type, inputs, attributes, num_outputs=1)
        new.name = names.fresh(f"{title}_{op_type.lower()}")
        new.outputs[0].name = values.fresh(f"{title}_{op_type.lower()}")
        new.outputs[0].type = parts.data.type
        graph.insert_before(last, new)
        return new.outputs[0]

    limits = constant(index * width), constant((index + 1) * width), constant(parts.axis)
    part = node("Slice", parts.data, *limits)
    part.shape = ir.Shape([*parts.shape[: parts.axis], width])
    split = node("Reshape", part, constant(*front, *heads))
    lengths = [*parts.shape[: parts.axis], *heads]
    split.shape = ir.Shape(lengths)
    moved = node("Transpose", split, order=parts.order)
    replace_value(last.outputs[0], moved)
    graph.remove(last, safe=True)
