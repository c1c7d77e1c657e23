"""Shapes of results from those of operands: where a model folds the batch into other axes, its own
shapes leave these open."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from intact.program import operations as ops
from intact.program.program import Program, Step, Tensor

Lengths: TypeAlias = tuple[int, ...]
_Operands: TypeAlias = Sequence[Lengths]
_Rule: TypeAlias = Callable[[Any, _Operands], list[Lengths] | None]


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


def _convolution(operation: ops.Convolution, given: _Operands) -> list[Lengths]:
    (batch, *lengths, _), (channels, *kernel, _) = given[:2]
    extents = _extents(kernel, operation.dilations)
    return [(batch, *_windows(lengths, extents, operation.strides, operation.pads), channels)]


def _pool(operation: ops.Pool, given: _Operands) -> list[Lengths]:
    batch, *lengths, channels = given[0]
    found = _windows(lengths, operation.kernel, operation.strides, operation.pads)
    return [(batch, *found, channels)]


def _transposed(operation: ops.TransposedConvolution, given: _Operands) -> list[Lengths]:
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


def _same(_: Any, given: _Operands) -> list[Lengths]:
    return [given[0]]


def _broadcast(_: Any, given: _Operands) -> list[Lengths]:
    return [np.broadcast_shapes(*given)]


def _reshape(operation: ops.Reshape, given: _Operands) -> list[Lengths] | None:
    size = math.prod(given[0])
    known = math.prod(length for length in operation.shape if length >= 0)
    rest = size // known if known else 0
    lengths = tuple(rest if length < 0 else length for length in operation.shape)
    return [lengths] if math.prod(lengths) == size else None


def _dense(_: ops.FullyConnected, given: _Operands) -> list[Lengths]:
    return [(*given[0][:-1], given[1][0])]


def _matmul(_operation: ops.BatchMatMul, given: _Operands) -> list[Lengths]:
    (*first, rows, _), (*second, _, columns) = given
    return [(*np.broadcast_shapes(tuple(first), tuple(second)), rows, columns)]


def _reduce(operation: ops.Reduce, given: _Operands) -> list[Lengths]:
    axes = enumerate(given[0])
    if operation.keep_dims:
        return [tuple(1 if axis in operation.axes else length for axis, length in axes)]
    return [tuple(length for axis, length in axes if axis not in operation.axes)]


def _transpose(operation: ops.Transpose, given: _Operands) -> list[Lengths]:
    return [tuple(given[0][axis] for axis in operation.permutation)]


def _slice(operation: ops.Slice, given: _Operands) -> list[Lengths]:
    parts = zip(operation.starts, operation.stops, operation.steps, given[0], strict=True)
    return [tuple(len(range(*slice(*part).indices(length))) for *part, length in parts)]


def _with(lengths: Lengths, axis: int, length: int) -> Lengths:
    return (*lengths[:axis], length, *lengths[axis + 1 :])


def _split(operation: ops.Split, given: _Operands) -> list[Lengths]:
    return [_with(given[0], operation.axis, size) for size in operation.sizes]


def _concat(operation: ops.Concat, given: _Operands) -> list[Lengths]:
    total = sum(lengths[operation.axis] for lengths in given)
    return [_with(given[0], operation.axis, total)]


def _pad(operation: ops.Pad, given: _Operands) -> list[Lengths]:
    pairs = zip(given[0], operation.pads, strict=True)
    return [tuple(length + sum(pads) for length, pads in pairs)]


def _tile(operation: ops.Tile, given: _Operands) -> list[Lengths]:
    pairs = zip(given[0], operation.repeats, strict=True)
    return [tuple(length * repeats for length, repeats in pairs)]


def _expand(operation: ops.Expand, given: _Operands) -> list[Lengths]:
    wanted = tuple(1 if length < 0 else length for length in operation.shape)
    return [np.broadcast_shapes(given[0], wanted)]


def _gather(operation: ops.Gather, given: _Operands) -> list[Lengths]:
    before, after = given[0][: operation.axis], given[0][operation.axis + 1 :]
    return [(*before, *operation.indices.shape, *after)]


def _lookup(operation: ops.Lookup, given: _Operands) -> list[Lengths]:
    before, after = given[0][: operation.axis], given[0][operation.axis + 1 :]
    return [(*before, *given[1], *after)]


def _resize(operation: ops.Resize, given: _Operands) -> list[Lengths]:
    return [(given[0][0], *operation.sizes, given[0][-1])]


def _depth_to_space(operation: ops.DepthToSpace, given: _Operands) -> list[Lengths]:
    (batch, height, width, depth), block = given[0], operation.block
    return [(batch, height * block, width * block, depth // block**2)]


def _space_to_depth(operation: ops.SpaceToDepth, given: _Operands) -> list[Lengths]:
    (batch, height, width, depth), block = given[0], operation.block
    return [(batch, height // block, width // block, depth * block**2)]


_RULES: Mapping[type, _Rule] = {
    ops.BatchMatMul: _matmul,
    ops.Concat: _concat,
    ops.Convolution: _convolution,
    ops.DepthToSpace: _depth_to_space,
    ops.Dequantize: _same,
    ops.Elementwise: _broadcast,
    ops.Expand: _expand,
    ops.FullyConnected: _dense,
    ops.Function: _same,
    ops.Gather: _gather,
    ops.Lookup: _lookup,
    ops.PRelu: _broadcast,
    ops.Pad: _pad,
    ops.Pool: _pool,
    ops.Quantize: _same,
    ops.Reduce: _reduce,
    ops.Requantize: _same,
    ops.Reshape: _reshape,
    ops.Resize: _resize,
    ops.Slice: _slice,
    ops.Softmax: _same,
    ops.SpaceToDepth: _space_to_depth,
    ops.Split: _split,
    ops.Tile: _tile,
    ops.Transpose: _transpose,
    ops.TransposedConvolution: _transposed,
}
