"""Infers shapes of results from those of operands.

A model that folds its batch into other axes leaves these open itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from intact.program import operations as ops
from intact.program.handlers import Handlers
from intact.program.program import Program, Step, Tensor

Lengths: TypeAlias = tuple[int, ...]
_Operands: TypeAlias = Sequence[Lengths]
_Rule: TypeAlias = Callable[[Any, _Operands], list[Lengths] | None]

_RULES: Handlers[_Rule] = Handlers("shape inference has no {}")
"""From an operation and the shapes of its operands to those of its results."""


def open_lengths(program: Program) -> dict[str, int]:
    """Return how long the open axis of a tensor is where every open axis of an input is 1.

    That is the batch, as a rule, but its multiple where a model folds other axes into it: a
    ``[None, 8]`` that was ``[None, 16, 8]`` has 16 rows. Tensors without an open axis, with
    several, or of an unknown shape, are left out.
    """
    shapes: dict[str, Lengths] = {}
    found: dict[str, int] = {}

    def note(tensor: Tensor, lengths: Lengths | None) -> None:
        declared = tensor.shape
        # Without a rule an open axis counts as 1: the batch itself, which is right nearly always.
        if lengths is None or len(lengths) != len(declared):
            lengths = tuple(1 if length is None else length for length in declared)
        elif declared.count(None) == 1:
            found[tensor.name] = lengths[declared.index(None)]
        shapes[tensor.name] = lengths

    for tensor in program.tensors():
        note(tensor, None)
    for step in program.steps:
        inputs = [None if tensor is None else shapes[tensor.name] for tensor in step.inputs]
        made = output_shapes(step, inputs)
        for number, tensor in enumerate(step.outputs):
            note(tensor, made[number] if made and len(made) == len(step.outputs) else None)
    return found


def output_shapes(step: Step, inputs: Sequence[Lengths | None]) -> list[Lengths] | None:
    """Return the shapes of a step's results; None where there is no rule, or no such result."""
    rule = _RULES.get(type(step.operation))
    given = [lengths for lengths in inputs if lengths is not None]
    if rule is None or not given:
        return None
    try:
        return rule(step.operation, given)
    except (ValueError, IndexError):  # operands that do not fit: the shapes as declared will tell
        return None


@_RULES.register(ops.Convolution)
def _convolution(operation: ops.Convolution, given: _Operands) -> list[Lengths]:
    (batch, *lengths, _), (channels, *kernel, _) = given[:2]
    extents = _extents(kernel, operation.dilations)
    return [(batch, *_windows(lengths, extents, operation.strides, operation.pads), channels)]


@_RULES.register(ops.Pool)
def _pool(operation: ops.Pool, given: _Operands) -> list[Lengths]:
    batch, *lengths, channels = given[0]
    found = _windows(lengths, operation.kernel, operation.strides, operation.pads)
    return [(batch, *found, channels)]


@_RULES.register(ops.TransposedConvolution)
def _transposed_convolution(
    operation: ops.TransposedConvolution, given: _Operands
) -> list[Lengths]:
    (batch, *lengths, _), (channels, *kernel, _) = given[:2]
    extents = _extents(kernel, operation.dilations)
    axes = zip(
        lengths, extents, operation.strides, operation.pads, operation.output_padding, strict=True
    )
    found = ((n - 1) * step + reach + more - sum(pads) for n, reach, step, pads, more in axes)
    return [(batch, *found, channels)]


def _extents(kernel: Sequence[int], dilations: Lengths) -> Lengths:
    return tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))


def _windows(lengths: Sequence[int], extents: Lengths, strides: Lengths, pads: ops.Pads) -> Lengths:
    """Return how many whole windows lie on the padded data, by axis."""
    axes = zip(lengths, extents, strides, pads, strict=True)
    return tuple((n + sum(added) - reach) // step + 1 for n, reach, step, added in axes)


@_RULES.register(ops.Softmax)
def _same(_: Any, given: _Operands) -> list[Lengths]:
    return [given[0]]


@_RULES.register(*ops.ELEMENTWISE)
def _broadcast(_: Any, given: _Operands) -> list[Lengths]:
    return [np.broadcast_shapes(*given)]


@_RULES.register(ops.Reshape)
def _reshape(operation: ops.Reshape, given: _Operands) -> list[Lengths] | None:
    size = math.prod(given[0])
    known = math.prod(length for length in operation.shape if length >= 0)
    # Lengths below 0 are open ones. Where there are several, the sizes differ, and nothing is said.
    rest = size // known if known else 0
    lengths = tuple(rest if length < 0 else length for length in operation.shape)
    return [lengths] if math.prod(lengths) == size else None


@_RULES.register(ops.DynamicQuantize)
def _dynamic(operation: ops.DynamicQuantize, given: _Operands) -> list[Lengths]:
    quantizer = operation.quantizer
    blocks = quantizer.blocks(given[0][-1]) or 1
    params: Lengths = (*given[0][:-1], blocks) if quantizer.rows else ()
    return [given[0], params, params]


@_RULES.register(ops.DynamicFullyConnected)
def _dynamic_dense(_: ops.DynamicFullyConnected, given: _Operands) -> list[Lengths]:
    return [(*given[0][:-1], given[3][0])]


@_RULES.register(ops.FullyConnected)
def _dense(_: ops.FullyConnected, given: _Operands) -> list[Lengths]:
    return [(*given[0][:-1], given[1][0])]


@_RULES.register(ops.BatchMatMul)
def _matmul(_operation: ops.BatchMatMul, given: _Operands) -> list[Lengths]:
    (*first, rows, _), (*second, _, columns) = given
    return [(*np.broadcast_shapes(tuple(first), tuple(second)), rows, columns)]


@_RULES.register(ops.Reduce)
def _reduce(operation: ops.Reduce, given: _Operands) -> list[Lengths]:
    axes = enumerate(given[0])
    if operation.keep_dims:
        return [tuple(1 if axis in operation.axes else length for axis, length in axes)]
    return [tuple(length for axis, length in axes if axis not in operation.axes)]


@_RULES.register(ops.Transpose)
def _transpose(operation: ops.Transpose, given: _Operands) -> list[Lengths]:
    return [tuple(given[0][axis] for axis in operation.permutation)]


@_RULES.register(ops.Slice)
def _slice(operation: ops.Slice, given: _Operands) -> list[Lengths]:
    parts = zip(operation.starts, operation.stops, operation.steps, given[0], strict=True)
    return [tuple(len(range(*slice(*part).indices(length))) for *part, length in parts)]


def _replace_length(lengths: Lengths, axis: int, length: int) -> Lengths:
    return (*lengths[:axis], length, *lengths[axis + 1 :])


@_RULES.register(ops.Split)
def _split(operation: ops.Split, given: _Operands) -> list[Lengths]:
    return [_replace_length(given[0], operation.axis, size) for size in operation.sizes]


@_RULES.register(ops.Concat)
def _concat(operation: ops.Concat, given: _Operands) -> list[Lengths]:
    total = sum(lengths[operation.axis] for lengths in given)
    return [_replace_length(given[0], operation.axis, total)]


@_RULES.register(ops.Pad)
def _pad(operation: ops.Pad, given: _Operands) -> list[Lengths]:
    pairs = zip(given[0], operation.pads, strict=True)
    return [tuple(length + sum(pads) for length, pads in pairs)]


@_RULES.register(ops.Tile)
def _tile(operation: ops.Tile, given: _Operands) -> list[Lengths]:
    pairs = zip(given[0], operation.repeats, strict=True)
    return [tuple(length * repeats for length, repeats in pairs)]


@_RULES.register(ops.Expand)
def _expand(operation: ops.Expand, given: _Operands) -> list[Lengths]:
    wanted = tuple(1 if length < 0 else length for length in operation.shape)
    return [np.broadcast_shapes(given[0], wanted)]


@_RULES.register(ops.Gather)
def _gather(operation: ops.Gather, given: _Operands) -> list[Lengths]:
    before, after = given[0][: operation.axis], given[0][operation.axis + 1 :]
    return [(*before, *operation.indices.shape, *after)]


@_RULES.register(ops.Lookup)
def _lookup(operation: ops.Lookup, given: _Operands) -> list[Lengths]:
    before, after = given[0][: operation.axis], given[0][operation.axis + 1 :]
    return [(*before, *given[1], *after)]


@_RULES.register(ops.Resize)
def _resize(operation: ops.Resize, given: _Operands) -> list[Lengths]:
    return [(given[0][0], *operation.sizes, given[0][-1])]


@_RULES.register(ops.DepthToSpace)
def _depth_to_space(operation: ops.DepthToSpace, given: _Operands) -> list[Lengths]:
    (batch, height, width, depth), block = given[0], operation.block
    return [(batch, height * block, width * block, depth // block**2)]


@_RULES.register(ops.SpaceToDepth)
def _space_to_depth(operation: ops.SpaceToDepth, given: _Operands) -> list[Lengths]:
    (batch, height, width, depth), block = given[0], operation.block
    return [(batch, height // block, width // block, depth * block**2)]
