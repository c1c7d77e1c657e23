"""Writes the simpler operators that expansions put in the place of one node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from intact.graph.builder import Attribute
from intact.graph.edit import Editor
from intact.graph.metadata import PART_KEY
from intact.graph.ops import constant_array, input_value
from intact.ops.operators import (
    Concat,
    Gather,
    Identity,
    MatMul,
    Mul,
    Named,
    ReduceSum,
    Reshape,
    Shape,
    Slice,
    Transpose,
    type_of,
)

Length: TypeAlias = int | ir.Value
"""A length: a number, or a list of one int64 that the model computes."""

_AXES_ARE_INPUT = {ReduceSum.name: 13}
_OTHER_AXES_ARE_INPUT = 18
"""From these opsets on the axes of reductions are an input."""


class Composite:
    """Writes the operators of one node.

    Args:
        editor: The model under change.
        node: What is expanded.
        part_of: The type whose rules decide about what is written; the node's own if omitted.
    """

    def __init__(self, editor: Editor, node: ir.Node, part_of: str = "") -> None:
        self._editor, self._node = editor, node
        self._part_of = part_of or node.op_type
        self._lengths: dict[ir.Value, tuple[ir.Value, int]] = {}

    @property
    def opset(self) -> int:
        """The opset of the model."""
        return self._editor.model.opset_imports.get("", 0)

    def input(self, slot: int) -> ir.Value | None:
        """Return what the node reads at a slot; None where that is left out."""
        return input_value(self._node, slot)

    def integer(self, name: str, default: int = 0) -> int:
        """Return an attribute of the node."""
        return int(self._node.attributes.get_int(name, default) or 0)

    def number(self, name: str, default: float = 0.0) -> float:
        """Return an attribute of the node."""
        return float(self._node.attributes.get_float(name, default))

    def __call__(
        self,
        operator: Named,
        *inputs: ir.Value,
        shape: Sequence[int | ir.SymbolicDim | None] | ir.Shape | None = None,
        dtype: ir.DataType | None = None,
        **attributes: Attribute,
    ) -> ir.Value:
        """Add an operator; its result has the type and the broadcast shape of its inputs."""
        op_type = type_of(operator)
        if shape is None:
            shape = _broadcast(inputs)
        kind = dtype or inputs[0].dtype or ir.DataType.FLOAT
        name = f"{self._node.name}_{op_type}"
        lengths = None if shape is None else ir.Shape(list(shape))
        given = {  # a file holds float32
            key: float(np.float32(each)) if isinstance(each, float) else each
            for key, each in attributes.items()
        }
        value = self._editor.node(op_type, inputs, name, given, kind, lengths)
        maker = value.producer()
        if maker is not None:
            maker.metadata_props[PART_KEY] = self._part_of
        return value

    def constant(self, array: np.ndarray | np.generic, like: ir.Value | None = None) -> ir.Value:
        """Add a constant, in the type of a value where one is given."""
        if like is not None and like.dtype is not None:
            array = array.astype(like.dtype.numpy())
        return self._editor.initializer(f"{self._node.name}_constant", array)

    def integers(self, *numbers: int) -> ir.Value:
        """Return a list of int64."""
        return self._editor.integers(*numbers)

    def reduce(
        self, operator: Named, value: ir.Value, axes: Sequence[int], *, keep: bool = True
    ) -> ir.Value:
        """Add a reduction over axes that are not negative."""
        op_type = type_of(operator)
        shape = None
        if value.shape is not None:
            whole = enumerate(value.shape)
            shape = [1 if k in axes else n for k, n in whole if keep or k not in axes]
        if self.opset >= _AXES_ARE_INPUT.get(op_type, _OTHER_AXES_ARE_INPUT):
            return self(op_type, value, self.integers(*axes), shape=shape, keepdims=int(keep))
        return self(op_type, value, shape=shape, axes=list(axes), keepdims=int(keep))

    def transpose(self, value: ir.Value, order: Sequence[int]) -> ir.Value:
        """Add a Transpose, or transpose a constant; nothing where the axes stay."""
        if list(order) == list(range(len(order))):
            return value
        array = constant_array(value)
        if array is not None:
            return self.constant(np.ascontiguousarray(array.transpose(order)))
        lengths = axes_of(value)
        shape = None if lengths is None else [lengths[axis] for axis in order]
        return self(Transpose, value, shape=shape, perm=list(order))

    def reshape(self, value: ir.Value, lengths: Sequence[Length]) -> ir.Value:
        """Add a Reshape, or reshape a constant; nothing where the lengths are those."""
        given = axes_of(value) or ()
        stay = [
            self._lengths.get(new) == (value, axis) if isinstance(new, ir.Value) else new == old
            for axis, (new, old) in enumerate(zip(lengths, given, strict=False))
        ]
        if len(given) == len(lengths) and all(stay):
            return value
        array = constant_array(value)
        if array is not None and all(isinstance(each, int) for each in lengths):
            return self.constant(array.reshape([int(n) for n in lengths if isinstance(n, int)]))
        shape = [each if isinstance(each, int) and each >= 0 else None for each in lengths]
        return self(Reshape, value, self._target(value, lengths), shape=shape)

    def _target(self, value: ir.Value, lengths: Sequence[Length]) -> ir.Value:
        """Return a Reshape's target: 0 for a length that stays, -1 for the only other open one."""
        wanted: list[Length] = [
            0 if isinstance(each, ir.Value) and self._lengths.get(each) == (value, axis) else each
            for axis, each in enumerate(lengths)
        ]
        computed = [axis for axis, each in enumerate(wanted) if isinstance(each, ir.Value)]
        # A target without computed numbers folds, and formats take no other.
        if len(computed) == 1 and -1 not in wanted:
            wanted[computed[0]] = -1
            computed = []
        if not computed:
            return self.integers(*(each for each in wanted if isinstance(each, int)))
        parts = [self.integers(n) if isinstance(n, int) else n for n in wanted]
        return self(Concat, *parts, shape=[len(parts)], axis=0)

    def part(
        self, value: ir.Value, axis: int, start: int, stop: int | None, step: int = 1
    ) -> ir.Value:
        """Add a Slice along an axis that is not negative."""
        shape = axes_of(value)
        if shape is not None:
            length = shape[axis]
            bounds = slice(start, stop, step)
            shape[axis] = len(range(*bounds.indices(length))) if isinstance(length, int) else None
        end = np.iinfo(np.int64).max if stop is None else stop
        operands = [self.integers(n) for n in (start, int(end), axis, step)]
        return self(Slice, value, *operands, shape=shape)

    def concat(self, values: Sequence[ir.Value], axis: int) -> ir.Value:
        """Add a Concat; nothing where there is only one."""
        if len(values) == 1:
            return values[0]
        shape = axes_of(values[0])
        if shape is not None:
            found = [(axes_of(value) or [None] * len(shape))[axis] for value in values]
            known = [n for n in found if isinstance(n, int)]
            shape[axis] = sum(known) if len(known) == len(found) else None
        return self(Concat, *values, shape=shape, axis=axis)

    def matmul(self, left: ir.Value, right: ir.Value) -> ir.Value:
        """Add a product of matrices; leading axes broadcast."""
        first, second = axes_of(left), axes_of(right)
        shape = None
        if first is not None and second is not None and min(len(first), len(second)) > 1:
            shape = [*_longer(first[:-2], second[:-2]), first[-2], second[-1]]
        return self(MatMul, left, right, shape=shape)

    def length(self, value: ir.Value, axis: int) -> Length:
        """Return a length of a value whose rank is known."""
        shape = axes_of(value) or []
        found = shape[axis]
        if isinstance(found, int):
            return found
        whole = self(Shape, value, dtype=ir.DataType.INT64, shape=[len(shape)])
        computed = self(Gather, whole, self.integers(axis % len(shape)), shape=[1])
        # Remembered, so that a Reshape that keeps the length writes 0 in its place.
        self._lengths[computed] = (value, axis % len(shape))
        return computed

    def product(self, lengths: Sequence[Length]) -> Length:
        """Return the product of lengths; 1 for none."""
        known = math.prod(n for n in lengths if isinstance(n, int))
        computed = [n for n in lengths if isinstance(n, ir.Value)]
        if not computed:
            return known
        if len(computed) == 1 and known == 1:
            return computed[0]
        result = computed[0]
        for each in (*computed[1:], *([self.integers(known)] if known != 1 else [])):
            result = self(Mul, result, each)
        return result

    def put(self, *results: ir.Value | None) -> None:
        """Replace the node by what computes its outputs; None for one that nothing reads."""
        taken: set[ir.Value] = set()
        node, final = self._node, list[ir.Value | None]()
        for old, new in zip(node.outputs, results, strict=False):
            if new is None or not _is_wanted(old):
                final.append(None)
                continue
            maker = new.producer()
            # What the node only hands on (an input, a constant) keeps its name behind an Identity,
            # and so does a value that is already the result of another output.
            is_own = maker is not None and PART_KEY in maker.metadata_props
            is_free = is_own and new not in taken
            result = new if is_free else self(Identity, new, shape=axes_of(new))
            taken.add(result)
            final.append(result)
        self._editor.put_results_in_place(node, final)

    def reads(self, *slots: int) -> bool:
        """Tell whether any of the node's outputs at these slots is read."""
        outputs = self._node.outputs
        return any(slot < len(outputs) and _is_wanted(outputs[slot]) for slot in slots)


def axes_of(value: ir.Value) -> list[int | ir.SymbolicDim | None] | None:
    """Return the lengths of a value; None where its rank is not known."""
    return None if value.shape is None else list(value.shape)


def _is_wanted(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _broadcast(values: Sequence[ir.Value]) -> list[int | ir.SymbolicDim | None] | None:
    found: list[int | ir.SymbolicDim | None] = []
    for value in values:
        shape = axes_of(value)
        if shape is None:
            return None
        found = _longer(found, shape)
    return found


def _longer(
    left: list[int | ir.SymbolicDim | None], right: list[int | ir.SymbolicDim | None]
) -> list[int | ir.SymbolicDim | None]:
    """Broadcast two shapes; what is open on one side and 1 on the other is open."""
    rank = max(len(left), len(right))
    one: list[int | ir.SymbolicDim | None] = [1]
    first, second = (one * (rank - len(each)) + each for each in (left, right))
    return [
        b if a == 1 else a if b in (1, a) or isinstance(a, int) else b
        for a, b in zip(first, second, strict=True)
    ]
