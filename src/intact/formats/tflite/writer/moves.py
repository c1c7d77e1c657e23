"""Writes TFLite's operators that move elements and compute nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from intact.errors import Unsupported
from intact.formats.tflite.spellings import SELECTIONS, rows_by_code
from intact.formats.tflite.writer.builder import (
    WRITERS,
    FileBuilder,
    Options,
    add_cast,
    data_of,
    require_type,
    type_of,
)
from intact.program import Shape, Step, Tensor
from intact.program.forms import code_of, has_blocks
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

_Bound: TypeAlias = int | None

_TOP = rows_by_code(SELECTIONS)["TOPK_V2"]

_FURTHEST = (1 << 31) - 1

_MOST_JOINED = 10
"""Inputs that TensorFlow Lite Micro's CONCATENATION takes (measured)."""


def version_of(tensor: Tensor, *, of_int8: int = 2) -> int:
    """Return the version of an operator that takes this tensor's type."""
    return 1 if tensor.encoding is None else of_int8


def add_reshape(builder: FileBuilder, source: Tensor, output: Tensor) -> None:
    """Add a RESHAPE to the output's shape, whose batch may be open."""
    lengths = [-1 if length is None else length for length in output.shape]
    if lengths.count(-1) > 1:
        raise Unsupported(f"{output.name!r} has more than one open axis")
    _add_reshape(builder, source, output, lengths)


def _add_reshape(builder: FileBuilder, source: Tensor, output: Tensor, lengths: list[int]) -> None:
    shape = builder.integers(f"{output.name}_shape", lengths)
    options = Options("ReshapeOptions", {"newShape": lengths})
    builder.operator("RESHAPE", (source, shape), (output,), options)


@WRITERS.register(Reshape)
def _write_reshape(operation: Reshape, step: Step, builder: FileBuilder) -> None:
    """Write RESHAPE: what the batch grows to must be the -1, so that the file can be resized."""
    output = step.outputs[0]
    lengths = list(operation.shape)
    open_axes = [axis for axis, length in enumerate(output.shape) if length is None]
    if len(open_axes) > 1:
        raise Unsupported(f"{output.name!r} has more than one open axis")
    for axis in open_axes:
        # A shape may have one -1, which has to be the batch.
        lengths = [_known(n, k, output.shape) for k, n in enumerate(lengths)]
        lengths[axis] = -1
    _add_reshape(builder, data_of(step), output, lengths)


def _known(length: int, axis: int, shape: Shape) -> int:
    known = shape[axis]
    return known if length == -1 and known is not None else length


@WRITERS.register(Transpose)
def _write_transpose(operation: Transpose, step: Step, builder: FileBuilder) -> None:
    """Write TRANSPOSE."""
    add_transpose(builder, data_of(step), step.outputs[0], operation.permutation)


def add_transpose(
    builder: FileBuilder, source: Tensor, output: Tensor, permutation: Sequence[int]
) -> None:
    """Add a TRANSPOSE."""
    axes = builder.integers(f"{output.name}_permutation", permutation)
    options = Options("TransposeOptions")
    builder.operator("TRANSPOSE", (source, axes), (output,), options, version=version_of(output))


@WRITERS.register(Concat)
def _write_concat(operation: Concat, step: Step, builder: FileBuilder) -> None:
    """Write CONCATENATION, of as many at once as kernels of microcontrollers take."""
    output, parts = step.outputs[0], [part for part in step.inputs if part is not None]
    while len(parts) > _MOST_JOINED:
        groups = [parts[k : k + _MOST_JOINED] for k in range(0, len(parts), _MOST_JOINED)]
        parts = [
            each[0] if len(each) == 1 else _joined(builder, each, output, operation.axis)
            for each in groups
        ]
    options, version = _along(operation.axis), version_of(output)
    builder.operator("CONCATENATION", parts, (output,), options, version=version)


@WRITERS.register(Pad)
def _write_pad(operation: Pad, step: Step, builder: FileBuilder) -> None:
    """Write PAD, which fills with the zero point, that is with real 0; PADV2 fills with another."""
    if any(min(pair) < 0 for pair in operation.pads):
        raise Unsupported(f"negative pads {operation.pads}: TFLite cannot cut with a PAD")
    pads = builder.constant(f"{step.name}/pads", np.asarray(operation.pads, np.int32))
    data, output = data_of(step), step.outputs[0]
    version = version_of(output)
    if not operation.value:
        options = Options("PadOptions")
        builder.operator("PAD", (data, pads), (output,), options, version=version)
        return
    code = np.array([code_of(operation.value, output.encoding)], type_of(data))
    filler = builder.constant(f"{step.name}/value", code, output.encoding)
    options = Options("PadV2Options")
    builder.operator("PADV2", (data, pads, filler), (output,), options, version=version)


@WRITERS.register(TopK)
def _write_top(operation: TopK, step: Step, builder: FileBuilder) -> None:
    """Write TOPK_V2, which sorts along the last axis, to which another is brought first.

    The smallest elements are the largest of what is negated.
    """
    data, (values, places) = data_of(step), step.outputs
    require_type(data, _TOP.onnx, "float32", "int8", "int16", "int32", "int64")
    order = list(range(len(data.shape)))
    order[operation.axis], order[-1] = order[-1], order[operation.axis]
    swaps, minus = order != sorted(order), Options("NegOptions")

    def like(tensor: Tensor, name: str, *, swapped: bool = False, kind: Any = None) -> Tensor:
        shape = tuple(tensor.shape[axis] for axis in order) if swapped else tensor.shape
        name, kind = f"{tensor.name}_{name}", tensor.plain if kind is None else kind
        return builder.intermediate(name, shape, tensor.encoding, tensor, plain=kind)

    # 1. What is sorted.
    source = data
    if swaps:
        source = like(data, "swapped", swapped=True)
        add_transpose(builder, data, source, order)
    if not operation.largest:
        source, before = like(source, "negative"), source
        builder.operator("NEG", (before,), (source,), minus)
    # 2. Both results, as the kernel gives them.
    found = values
    if swaps or not operation.largest:
        found = like(values, "sorted", swapped=True)
    at = like(places, "int32", swapped=True, kind=np.int32)
    count = builder.integers(f"{step.name}/k", operation.count)
    options, version = Options(_TOP.table), version_of(data)
    builder.operator(_TOP.code, (source, count), (found, at), options, version=version)
    # 3. Both as they are asked for; what nobody reads has no value to stand for.
    if found is not values and values.value:
        if not operation.largest:
            negative, found = found, like(found, "negative") if swaps else values
            builder.operator("NEG", (negative,), (found,), minus)
        if swaps:
            add_transpose(builder, found, values, order)
    if places.value:
        if swaps:
            swapped, at = at, like(places, "place", kind=np.int32)
            add_transpose(builder, swapped, at, order)
        add_cast(builder, at, places)


@WRITERS.register(Slice)
def _write_slice(operation: Slice, step: Step, builder: FileBuilder) -> None:
    """Write STRIDED_SLICE, between two RESHAPE where its kernel has fewer axes."""
    data, output = data_of(step), step.outputs[0]
    groups = _joined_axes(operation, data.shape)
    if len(groups) == len(data.shape) or not builder.has_fewer_axes("STRIDED_SLICE", data):
        _add_slice(operation, step.name, data, output, builder)
        return
    source, result = (_with_joined(builder, tensor, groups) for tensor in (data, output))
    add_reshape(builder, data, source)
    # An axis alone is cut as before, and of several nothing is cut off.
    joined = Slice(
        tuple(operation.starts[group[0]] for group in groups),
        tuple(operation.stops[group[0]] if len(group) == 1 else None for group in groups),
        tuple(operation.steps[group[0]] for group in groups),
    )
    _add_slice(joined, step.name, source, result, builder)
    add_reshape(builder, result, output)


def _joined_axes(operation: Slice, shape: Shape) -> list[list[int]]:
    """Return the axes of a slice, with neighbours together of which nothing is cut off."""
    groups: list[list[int]] = []
    was_whole = False
    ends = zip(operation.starts, operation.stops, operation.steps, shape, strict=True)
    for axis, (start, stop, step, length) in enumerate(ends):
        reaches = stop is None or (length is not None and stop >= length)
        is_whole = reaches and not start and step == 1
        if is_whole and was_whole:
            groups[-1].append(axis)
        else:
            groups.append([axis])
        was_whole = is_whole
    return groups


def _with_joined(builder: FileBuilder, tensor: Tensor, groups: list[list[int]]) -> Tensor:
    """Return a new tensor with groups of axes as one."""
    inside = builder.lengths(tensor)
    shape: list[int | None] = []
    length = None
    for group in groups:
        together = math.prod(inside[axis] for axis in group)
        is_open = any(tensor.shape[axis] is None for axis in group)
        shape.append(None if is_open else together)
        length = together if is_open else length
    return builder.intermediate(
        f"{tensor.name}_joined",
        tuple(shape),
        tensor.encoding,
        tensor,
        plain=type_of(tensor),
        length=length,
    )


def _add_slice(
    operation: Slice, name: str, data: Tensor, output: Tensor, builder: FileBuilder
) -> None:
    """Add STRIDED_SLICE, whose masks are the open ends."""
    begins, open_begins = _ends(operation.starts)
    ends, open_ends = _ends(operation.stops)
    # ONNX says "to the end" with the largest int64, files have int32.
    steps = [min(max(each, -_FURTHEST), _FURTHEST) for each in operation.steps]
    parts = [
        builder.integers(f"{name}/{part}", values)
        for part, values in (("begin", begins), ("end", ends), ("stride", steps))
    ]
    options = Options("StridedSliceOptions", {"beginMask": open_begins, "endMask": open_ends})
    # More than four axes came with version 4 (``op_version.cc``).
    version = version_of(data) if len(data.shape) <= 4 else 4
    builder.operator("STRIDED_SLICE", (data, *parts), (output,), options, version=version)


def _ends(values: Sequence[_Bound]) -> tuple[list[int], int]:
    mask = sum(1 << axis for axis, value in enumerate(values) if value is None)
    known = [0 if value is None else value for value in values]
    return [min(max(value, -_FURTHEST), _FURTHEST) for value in known], mask


@WRITERS.register(Split)
def _write_split(operation: Split, step: Step, builder: FileBuilder) -> None:
    """Write SPLIT into equal parts, SPLIT_V into others."""
    data = data_of(step)
    axis = builder.integers(f"{step.name}/axis", operation.axis)
    count = len(operation.sizes)
    # SPLIT is in every runtime; SPLIT_V came later.
    if len(set(operation.sizes)) == 1:
        options = Options("SplitOptions", {"numSplits": count})
        version = version_of(data)
        builder.operator("SPLIT", (axis, data), step.outputs, options, version=version)
        return
    sizes = builder.integers(f"{step.name}/sizes", operation.sizes)
    options = Options("SplitVOptions", {"numSplits": count})
    version = version_of(data)
    builder.operator("SPLIT_V", (data, sizes, axis), step.outputs, options, version=version)


@WRITERS.register(Gather)
def _write_gather(operation: Gather, step: Step, builder: FileBuilder) -> None:
    """Write GATHER with constant indices."""
    data = data_of(step)
    # TensorFlow Lite Micro reads indices of int32 only.
    indices = builder.constant(f"{step.name}/indices", operation.indices.astype(np.int32))
    options = Options("GatherOptions", {"axis": operation.axis})
    builder.operator("GATHER", (data, indices), step.outputs, options, version=version_of(data))


@WRITERS.register(Lookup)
def _write_lookup(operation: Lookup, step: Step, builder: FileBuilder) -> None:
    """Write GATHER with computed indices."""
    data, indices = data_of(step), step.inputs[1]
    if indices is None or indices.dtype not in (np.int32, np.int64):
        raise Unsupported("its indices are neither int32 nor int64")
    if has_blocks(data):
        _add_embedding(builder, data, indices, step.outputs[0])
        return
    options = Options("GatherOptions", {"axis": operation.axis})
    builder.operator("GATHER", (data, indices), step.outputs, options, version=version_of(data))


def _add_embedding(builder: FileBuilder, table: Tensor, indices: Tensor, output: Tensor) -> None:
    """Add EMBEDDING_LOOKUP, which takes a vector of int32; version 4 reads codes of 4 bits."""
    if indices.dtype != np.int32:
        whole = builder.intermediate(
            f"{indices.name}_int32", indices.shape, None, indices, plain=np.int32
        )
        add_cast(builder, indices, whole)
        indices = whole
    is_open, count = None in indices.shape, math.prod(builder.lengths(indices))
    shape: Shape = (None,) if is_open else (count,)
    vector = builder.intermediate(
        f"{indices.name}_vector", shape, None, indices, plain=np.int32, length=count
    )
    rows = builder.intermediate(f"{output.name}_rows", (*shape, table.shape[1]), None, vector)
    add_reshape(builder, indices, vector)
    builder.operator("EMBEDDING_LOOKUP", (vector, table), (rows,), version=4)
    add_reshape(builder, rows, output)


@WRITERS.register(Tile)
def _write_tile(operation: Tile, step: Step, builder: FileBuilder) -> None:
    """Write CONCATENATION of copies along each axis: TensorFlow Lite Micro has no TILE."""
    _add_copies(builder, data_of(step), step.outputs[0], operation.repeats)


@WRITERS.register(Expand)
def _write_expand(_: Expand, step: Step, builder: FileBuilder) -> None:
    """Write BROADCAST_TO, or copies where the batch is open: its shape would be fixed."""
    data, output = data_of(step), step.outputs[0]
    if None not in output.shape:
        shape = builder.integers(f"{step.name}/shape", [n for n in output.shape if n is not None])
        options = Options("BroadcastToOptions")
        version = 2 if output.encoding is None else 3
        builder.operator("BROADCAST_TO", (data, shape), (output,), options, version=version)
        return
    missing = len(output.shape) - len(data.shape)
    if missing:
        longer = builder.intermediate(
            f"{data.name}_longer", (1,) * missing + data.shape, data.encoding, data
        )
        add_reshape(builder, data, longer)
        data = longer
    repeats = [
        1 if before == after or after is None else after
        for before, after in zip(data.shape, output.shape, strict=True)
    ]
    _add_copies(builder, data, output, repeats)


def _add_copies(builder: FileBuilder, data: Tensor, output: Tensor, repeats: Sequence[int]) -> None:
    """Repeat a tensor along its axes."""
    counts = [(axis, count) for axis, count in enumerate(repeats) if count != 1]
    if any(count == 0 for _, count in counts):
        raise Unsupported(f"repeats {tuple(repeats)}: nothing is left")
    if not counts:
        # Nothing is repeated, but the output needs an operator that writes it.
        add_reshape(builder, data, output)
        return
    *others, (last, count) = counts
    for axis, each in others:
        data = _joined(builder, _copies(builder, data, output, axis, each), output, axis)
    parts = _copies(builder, data, output, last, count)
    builder.operator("CONCATENATION", parts, (output,), _along(last), version=version_of(output))


def _copies(
    builder: FileBuilder, data: Tensor, output: Tensor, axis: int, count: int
) -> list[Tensor]:
    """Return what joined is so many copies of a tensor; no more parts than kernels take."""
    if count <= _MOST_JOINED:
        return [data] * count
    many = _joined(builder, [data] * _MOST_JOINED, output, axis)
    whole, rest = divmod(count, _MOST_JOINED)
    if whole > 1:
        many = _joined(builder, _copies(builder, many, output, axis, whole), output, axis)
    return [many, *[data] * rest]


def _joined(builder: FileBuilder, parts: Sequence[Tensor], output: Tensor, axis: int) -> Tensor:
    """Add a CONCATENATION whose result is needed for ``output``, and return it."""
    lengths = [part.shape[axis] for part in parts]
    joined = None if None in lengths else sum(length or 0 for length in lengths)
    shape = tuple(joined if k == axis else length for k, length in enumerate(parts[0].shape))
    name, kind = f"{output.name}_joined", output.plain.type
    result = builder.intermediate(name, shape, output.encoding, output, plain=kind)
    builder.operator("CONCATENATION", parts, (result,), _along(axis), version=version_of(output))
    return result


def _along(axis: int) -> Options:
    return Options("ConcatenationOptions", {"axis": axis})


@WRITERS.register(DepthToSpace)
def _write_depth_to_space(operation: DepthToSpace, step: Step, builder: FileBuilder) -> None:
    """Write DEPTH_TO_SPACE, whose reference kernel has version 1 only, which takes int8."""
    options = Options("DepthToSpaceOptions", {"blockSize": operation.block})
    builder.operator("DEPTH_TO_SPACE", (data_of(step),), step.outputs, options)


@WRITERS.register(SpaceToDepth)
def _write_space_to_depth(operation: SpaceToDepth, step: Step, builder: FileBuilder) -> None:
    """Write SPACE_TO_DEPTH."""
    options = Options("SpaceToDepthOptions", {"blockSize": operation.block})
    version = version_of(step.outputs[0])
    builder.operator("SPACE_TO_DEPTH", (data_of(step),), step.outputs, options, version=version)
