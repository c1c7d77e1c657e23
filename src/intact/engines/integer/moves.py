"""Makes the kernels that move elements, and rescale them where the output's scale differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, TypeVar

import numpy as np

from intact.engines.integer.kernel import (
    KERNELS,
    Kernel,
    Overflows,
    constants_inserter,
    kernel_of,
    operation_of,
)
from intact.engines.integer.pointwise.conversions import recoder
from intact.errors import DataError
from intact.program import Array, Step
from intact.program.forms import code_of, dequantize_constant, has_blocks
from intact.program.operations import (
    Concat,
    DepthToSpace,
    Expand,
    Gather,
    Lookup,
    Pad,
    Reshape,
    Slice,
    SpaceToDepth,
    Split,
    Tile,
    TopK,
    Transpose,
)

OperationT = TypeVar("OperationT")

Move: TypeAlias = Callable[[OperationT, Array], Array]


def _moves(kind: type[OperationT]) -> Callable[[Move[OperationT]], Move[OperationT]]:
    """Register the kernel of an operation that moves the elements of one tensor."""

    def decorate(move: Move[OperationT]) -> Move[OperationT]:
        @KERNELS.register(kind)
        def prepare(step: Step, _: Overflows) -> Kernel:
            operation = operation_of(step, kind)
            source = step.inputs[0].encoding if step.inputs[0] is not None else None
            recode = recoder(step.arithmetic, source, step.outputs[0].encoding)
            return kernel_of(step, lambda array: recode(move(operation, array)))

        return move

    return decorate


@_moves(Reshape)
def _reshape(operation: Reshape, array: Array) -> Array:
    return array.reshape(operation.shape)


@_moves(Transpose)
def _transpose(operation: Transpose, array: Array) -> Array:
    # Contiguous at once: whoever reads it reads it so, and perhaps more than once.
    return np.asarray(array.transpose(operation.permutation), order="C")


@_moves(Slice)
def _slice(operation: Slice, array: Array) -> Array:
    parts = zip(operation.starts, operation.stops, operation.steps, strict=True)
    sliced: Array = array[tuple(slice(*part) for part in parts)]
    return sliced


@_moves(Gather)
def _gather(operation: Gather, array: Array) -> Array:
    taken: Array = np.take(array, operation.indices, axis=operation.axis)
    return taken


@_moves(Tile)
def _tile(operation: Tile, array: Array) -> Array:
    return np.tile(array, operation.repeats)


@_moves(Expand)
def _expand(operation: Expand, array: Array) -> Array:
    """Broadcast both ways, as ONNX does: the longer of two lengths wins."""
    rank = max(len(operation.shape), array.ndim)
    lengths = (1,) * (rank - array.ndim) + array.shape
    wanted = (1,) * (rank - len(operation.shape)) + operation.shape
    pairs = zip(wanted, lengths, strict=True)
    shape = tuple(old if new in (-1, 1) else new for new, old in pairs)
    # A view: kernels do not write to what they are given.
    return np.broadcast_to(array, shape)


@_moves(DepthToSpace)
def _depth_to_space(operation: DepthToSpace, array: Array) -> Array:
    batch, height, width, depth = array.shape
    block = operation.block
    channels = depth // block**2
    # DCR: the depth is (block row, block column, channel).
    blocks = array.reshape(batch, height, width, block, block, channels)
    moved = blocks.transpose(0, 1, 3, 2, 4, 5)
    return moved.reshape(batch, height * block, width * block, channels)


@_moves(SpaceToDepth)
def _space_to_depth(operation: SpaceToDepth, array: Array) -> Array:
    batch, height, width, channels = array.shape
    block = operation.block
    rows, columns = height // block, width // block
    blocks = array.reshape(batch, rows, block, columns, block, channels)
    moved = blocks.transpose(0, 1, 3, 2, 4, 5)
    return moved.reshape(batch, rows, columns, block * block * channels)


@KERNELS.register(Pad)
def _pad(step: Step, _: Overflows) -> Kernel:
    """Return the kernel of Pad."""
    operation = operation_of(step, Pad)
    source = step.inputs[0].encoding if step.inputs[0] is not None else None
    target = step.outputs[0].encoding
    recode = recoder(step.arithmetic, source, target)
    filler = code_of(operation.value, target)

    def pad(array: Array) -> Array:
        # Recoded first, so that the pad is a code of the output and not of the input's scale.
        return np.pad(recode(array), operation.pads, constant_values=filler)

    return kernel_of(step, pad)


@KERNELS.register(Concat)
def _concat(step: Step, _: Overflows) -> Kernel:
    operation = operation_of(step, Concat)
    target = step.outputs[0].encoding
    tensors = [tensor for tensor in step.inputs if tensor is not None]
    recoders = [recoder(step.arithmetic, tensor.encoding, target) for tensor in tensors]

    def concat(*arrays: Array) -> Array:
        parts = [recode(array) for recode, array in zip(recoders, arrays, strict=True)]
        return np.concatenate(parts, axis=operation.axis)

    return kernel_of(step, concat)


@KERNELS.register(Split)
def _split(step: Step, _: Overflows) -> Kernel:
    operation = operation_of(step, Split)
    source = step.inputs[0].encoding if step.inputs[0] is not None else None
    recoders = [recoder(step.arithmetic, source, output.encoding) for output in step.outputs]
    borders = np.cumsum(operation.sizes)[:-1]
    with_constants = constants_inserter(step)

    def split(*activations: Array) -> tuple[Array, ...]:
        (array,) = with_constants(activations)
        parts = np.split(array, borders, axis=operation.axis)
        return tuple(recode(part) for recode, part in zip(recoders, parts, strict=True))

    return split


@KERNELS.register(TopK)
def _top(step: Step, _: Overflows) -> Kernel:
    operation = operation_of(step, TopK)
    source = None if step.inputs[0] is None else step.inputs[0].encoding
    recode = recoder(step.arithmetic, source, step.outputs[0].encoding)
    with_constants, kind = constants_inserter(step), step.outputs[1].plain

    def top(*activations: Array) -> tuple[Array, ...]:
        (array,) = with_constants(activations)
        axis = operation.axis
        # Sorted by what is larger the smaller an element is, so that a stable order has the first
        # of equal ones first; wide, as the lowest code has no magnitude of its own type.
        falling = -array.astype(np.int64) if array.dtype.kind in "iu" else -array
        order = np.argsort(falling, axis=axis, kind="stable")
        places = order.take(range(operation.count), axis=axis)
        return recode(np.take_along_axis(array, places, axis)), places.astype(kind)

    return top


@KERNELS.register(Lookup)
def _lookup(step: Step, _: Overflows) -> Kernel:
    operation, table = operation_of(step, Lookup), step.inputs[0]
    if table is not None and has_blocks(table):
        table = dequantize_constant(table)
        step = replace(step, inputs=(table, *step.inputs[1:]))
    source = None if table is None else table.encoding
    recode = recoder(step.arithmetic, source, step.outputs[0].encoding)

    def lookup(data: Array, indices: Array) -> Array:
        try:
            return recode(np.take(data, indices, axis=operation.axis))
        except IndexError as error:
            raise DataError(
                f"step {step.name!r}: an index is beyond the {data.shape[operation.axis]} entries",
                remedy="check the data: tokens have to be those of the model's vocabulary",
            ) from error

    return kernel_of(step, lookup)
