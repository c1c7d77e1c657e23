"""Finds lengths that are known where ONNX shape inference stops, as constants and in shapes.

Exports compute the target of a Reshape from the shape of another tensor: Shape, Gather or Slice,
Concat. Often all of it is known but the batch, or at least how many axes there are. What is said
here follows from shapes of the model's inputs; nothing is taken from what the file declares.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from intact.graph.names import value_names
from intact.graph.ops import constant_array, facts, input_value
from intact.graph.passes.replace import add_constant
from intact.ops.operators import Cast, Concat, Reshape, Shape

_Length = int | str | None
"""A number, the name of an open axis, or something unknown."""

_MOST = 64
"""Elements up to which a tensor may be a list of lengths."""

_CHOSEN = frozenset({"Gather", "Slice"})
_WHOLE = frozenset({ir.DataType.INT32, ir.DataType.INT64})

_DEEPEST = 100
"""Operators between a shape and what is reshaped by it."""


def learn_shapes(model: ir.Model) -> bool:
    """Set the shapes, or the ranks at least, of what Reshape and GroupNormalization give.

    Returns:
        Whether one became known; inference then goes on from there.
    """
    known = _Lengths()
    found = False
    for node in model.graph:
        if node.domain == "" and node.op_type == "GroupNormalization":
            found |= _keeps_shape(node)
        if node.domain == "" and node.op_type == "Reshape" and node.outputs[0].shape is None:
            shape = _target_lengths(node, known)
            if shape is not None:
                node.outputs[0].shape = ir.Shape(shape)
                found = True
    return found


def _keeps_shape(node: ir.Node) -> bool:
    """Give a node's result the shape of its data: inference knows no more than the rank.

    Only where a number becomes known, since names of open lengths may be others each time.
    """
    data, result = input_value(node, 0), node.outputs[0]
    if data is None or data.shape is None:
        return False
    before = [None] * len(data.shape) if result.shape is None else list(result.shape)
    pairs = zip(before, data.shape, strict=False)
    is_new = any(isinstance(new, int) and not isinstance(old, int) for old, new in pairs)
    if is_new:
        result.shape = ir.Shape(list(data.shape))
    return is_new


def fold_lengths(model: ir.Model) -> int:
    """Replace each Gather of known lengths of a shape by a constant, whatever the others are.

    Returns:
        The number of replaced nodes.
    """
    known, names = _Lengths(), value_names(model.graph)
    folded = 0
    for node in tuple(model.graph):
        shape = input_value(node, 0)
        source = None if shape is None else shape.producer()
        if node.domain != "" or node.op_type != "Gather" or source is None:
            continue
        places, lengths = constant_array(input_value(node, 1)), known.held_by(node.outputs[0])
        sizes = [n for n in lengths or () if isinstance(n, int) and n >= 0]
        is_known = source.op_type == "Shape" and lengths is not None and len(sizes) == len(lengths)
        if not is_known or places is None or node.outputs[0].is_graph_output():
            continue
        array = np.array(sizes, np.int64).reshape(places.shape)
        constant = add_constant(model.graph, array, names.fresh(f"{node.outputs[0].name}_length"))
        node.outputs[0].replace_all_uses_with(constant)
        model.graph.remove(node, safe=True)
        folded += 1
    return folded


def _target_lengths(node: ir.Node, known: _Lengths) -> list[_Length] | None:
    data, target = _dims(input_value(node, 0)), known.held_by(input_value(node, 1))
    if target is None:
        return None
    copies = not Reshape.of(node).allowzero
    shape: list[_Length] = []
    for axis, length in enumerate(target):
        if length == 0 and copies:
            shape.append(data[axis] if data is not None and axis < len(data) else None)
        else:
            shape.append(None if length == -1 else length)
    return shape


def _dims(value: ir.Value | None) -> list[_Length] | None:
    shape = None if value is None else value.shape
    return None if shape is None else [n if isinstance(n, int) else n.value for n in shape]


class _Lengths:
    """Lists of lengths that tensors hold, each found once."""

    def __init__(self) -> None:
        self._found: dict[ir.Value, list[_Length] | None] = {}
        self._depth = 0

    def held_by(self, value: ir.Value | None) -> list[_Length] | None:
        """Return what a tensor holds; None where not even how many are known."""
        if value is None:
            return None
        if value not in self._found:
            self._depth += 1
            # A chain of a hostile file would exhaust Python's stack.
            found = self._compute(value) if self._depth <= _DEEPEST else None
            self._depth -= 1
            dims = _dims(value)
            # How many lengths there are gives the rank at least.
            if found is None and dims is not None and len(dims) == 1 and isinstance(dims[0], int):
                found = [None] * dims[0] if 0 <= dims[0] <= _MOST else None
            self._found[value] = found
        return self._found[value]

    def _row(self, value: ir.Value | None) -> list[_Length] | None:
        """Return what a tensor of one axis holds: of several, none is the list's."""
        dims = _dims(value)
        return None if dims is not None and len(dims) > 1 else self.held_by(value)

    def _compute(self, value: ir.Value) -> list[_Length] | None:
        array = constant_array(value)
        if array is not None:
            whole = array.dtype.kind == "i" and array.ndim <= 1 and array.size <= _MOST
            return [int(n) for n in array.reshape(-1)] if whole else None
        node = value.producer()
        return None if node is None or node.domain != "" else self._made_by(node)

    def _made_by(self, node: ir.Node) -> list[_Length] | None:
        if node.op_type == Shape.name:
            dims = _dims(input_value(node, 0))
            options = Shape.of(node)
            return None if dims is None else dims[options.start : options.end]
        if node.op_type == Concat.name:
            parts = [self._row(each) for each in node.inputs]
            joined = [n for part in parts if part is not None for n in part]
            return None if None in parts else joined
        data = input_value(node, 0)
        is_cast = node.op_type == Cast.name and Cast.of(node).to in _WHOLE
        if is_cast or facts(node).reshapes:
            return self.held_by(data)
        held = self._row(data) if node.op_type in _CHOSEN else None
        if held is None:
            return None
        if node.op_type == "Gather":
            places = _numbers(input_value(node, 1))
            inside = places is not None and all(-len(held) <= n < len(held) for n in places)
            return [held[n] for n in places] if places is not None and inside else None
        return _slice(node, held)


def _slice(node: ir.Node, held: list[_Length]) -> list[_Length] | None:
    if len(node.inputs) < 3:
        return None  # attributes, before opset 10
    starts, ends = (_numbers(input_value(node, slot)) for slot in (1, 2))
    steps = _numbers(input_value(node, 4)) if input_value(node, 4) is not None else [1]
    if any(each is None or len(each) != 1 for each in (starts, ends, steps)):
        return None
    (start,), (end,), (step,) = starts or [], ends or [], steps or []
    return held[start:end] if step == 1 else None


def _numbers(value: ir.Value | None) -> Sequence[int] | None:
    array = None if value is None else constant_array(value)
    if array is None or array.dtype.kind != "i" or array.ndim > 1 or array.size > _MOST:
        return None
    return [int(n) for n in array.reshape(-1)]
