"""Writes operations that only move values as ncnn layers: Reshape, Permute, Crop and so on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from intact.errors import Unsupported
from intact.formats.ncnn.builder import WRITERS, NcnnBuilder, input_of, name_of
from intact.formats.ncnn.elementwise import LARGEST
from intact.formats.ncnn.model import (
    Parameter,
    Sample,
    all_lengths,
    held,
    lengths,
    rank_of,
    same_size,
    sample,
    shape_in_model,
)
from intact.program import Step, Tensor
from intact.program.float_operations import Flatten, PixelShuffle
from intact.program.operations import (
    Concat,
    DepthToSpace,
    Expand,
    Gather,
    Pad,
    PadMode,
    Reshape,
    Slice,
    SpaceToDepth,
    Split,
    Tile,
    Transpose,
)

_ORDERS = {
    2: "wh hw",
    3: "whc hwc wch cwh hcw chw",
    4: "whdc hwdc wdhc dwhc hdwc dhwc whcd hwcd wchd cwhd hcwd chwd "
    "wdch dwch wcdh cwdh dcwh cdwh hdcw dhcw hcdw chdw dchw cdhw",
}
"""ncnn's ``order_type`` by the axes that it brings to ``w``, ``h``, ``d`` and ``c``."""
_PAD_MODES = {PadMode.CONSTANT: 0, PadMode.EDGE: 1, PadMode.REFLECT: 2}


@WRITERS.register(Flatten)
def _flatten(_operation: Flatten, step: Step, builder: NcnnBuilder) -> None:
    builder.unary("Flatten", step)


@WRITERS.register(Reshape)
def _reshape(_operation: Reshape, step: Step, builder: NcnnBuilder) -> None:
    """Write a Reshape that leaves the batch alone."""
    result = step.outputs[0]
    # A sample that grows or shrinks takes values of its neighbours.
    if not same_size(all_lengths(input_of(step)), all_lengths(result)):
        raise Unsupported("it moves values between samples")
    builder.reshape(name_of(step), builder.read(step), builder.blob(result), held(result))


@WRITERS.register(Transpose)
def _transpose(operation: Transpose, step: Step, builder: NcnnBuilder) -> None:
    """Write a Transpose of the axes of a sample; those that stay together are one."""
    order, data, result = operation.permutation, input_of(step), step.outputs[0]
    # Of one sample, axes of length 1 may be where they like.
    is_one = shape_in_model(data)[:1] == shape_in_model(result)[:1] == (1,)
    if order[0] != 0 and not is_one:
        raise Unsupported(f"it moves the batch: {list(order)}")
    if order[0] == 0 and len(order) - 1 in _ORDERS:
        builder.unary("Permute", step, {0: _order_type([axis - 1 for axis in order[1:]])})
        return
    shape, axes = _joined((1, *all_lengths(data)), order)
    if len(axes) < 2:
        builder.reshape(name_of(step), builder.read(step), builder.blob(result), held(result))
        return
    if len(axes) not in _ORDERS:
        raise Unsupported(f"it has more axes than a blob: {list(order)}")
    joined, turned, name = builder.inner(data), builder.inner(result), name_of(step)
    builder.reshape(f"{name}_joined", builder.read(step), joined, shape)
    builder.emit("Permute", name, [joined], [turned], {0: _order_type(axes)})
    builder.reshape(f"{name}_axes", turned, builder.blob(result), held(result))


def _order_type(order: Sequence[int]) -> int:
    names = {2: "hw", 3: "chw", 4: "cdhw"}[len(order)]
    # ncnn's orders begin with the innermost axis, `w`.
    brought = "".join(names[axis] for axis in reversed(order))
    return _ORDERS[len(order)].split().index(brought)


def _joined(shape: Sample, order: Sequence[int]) -> tuple[Sample, list[int]]:
    """Return a shape and order of few axes that move the same values.

    >>> _joined((2, 4, 2, 4, 8), (0, 2, 1, 3, 4))
    ((2, 4, 2, 32), [0, 2, 1, 3])
    """
    runs: list[list[int]] = []
    for axis in order:
        if shape[axis] == 1:
            continue
        follows = runs and all(shape[k] == 1 for k in range(runs[-1][-1] + 1, axis))
        if follows and runs[-1][-1] < axis:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    given = sorted(runs)
    lengths_of = tuple(math.prod(shape[axis] for axis in run) for run in given)
    return lengths_of, [given.index(run) for run in runs]


@WRITERS.register(Concat)
def _concat(operation: Concat, step: Step, builder: NcnnBuilder) -> None:
    axis = _axis_of_sample(operation.axis, step)
    bottoms = [
        builder.constant(tensor, sample(tensor))
        if tensor is not None and tensor.is_constant
        else builder.read(step, slot)
        for slot, tensor in enumerate(step.inputs)
    ]
    builder.emit("Concat", name_of(step), bottoms, [builder.blob(step.outputs[0])], {0: axis})


@WRITERS.register(Slice)
def _slice(operation: Slice, step: Step, builder: NcnnBuilder) -> None:
    """Write a Slice as ``Crop``; axes with steps are taken one by one before."""
    shape = list(sample(input_of(step)))
    ends = list(zip(operation.starts, operation.stops, operation.steps, strict=True))
    if ends[0] not in ((None, None, 1), (0, None, 1)):
        raise Unsupported("it takes some of the samples")
    inner = [axis for axis, each in enumerate(ends[1:]) if each != (None, None, 1)]
    places = {axis: range(shape[axis])[slice(*ends[axis + 1])] for axis in inner}
    if not all(map(len, places.values())):
        raise Unsupported("it takes nothing")
    bottom, top, result = builder.read(step), builder.blob(step.outputs[0]), step.outputs[0]
    ranges = {axis: each for axis, each in places.items() if each.step == 1}
    for axis in inner:
        if axis in ranges:
            continue
        is_last = not ranges and axis == inner[-1]
        taken = top if is_last else builder.inner(result)
        source = _Source(bottom, tuple(shape), axis)
        shape[axis] = len(places[axis])
        _take(builder, name_of(step), source, list(places[axis]), (taken, tuple(shape)))
        bottom = taken
    if ranges or not inner:
        pairs = [(each.start, each.stop) for each in ranges.values()]
        first, last = (tuple(pair[k] for pair in pairs) for k in (0, 1))
        cut: dict[int, Parameter] = {9: first, 10: last, 11: tuple(ranges)}
        builder.emit("Crop", name_of(step), [bottom], [top], cut)


@WRITERS.register(Gather)
def _gather(operation: Gather, step: Step, builder: NcnnBuilder) -> None:
    """Write constant indices as ``Crop`` and what else `_take` needs."""
    result, axis = step.outputs[0], _axis_of_sample(operation.axis, step)
    source = _Source(builder.read(step), sample(input_of(step)), axis)
    # ``Crop`` does not count from the end as ONNX does.
    places = [int(index) % source.shape[axis] for index in operation.indices.reshape(-1)]
    if not places:
        raise Unsupported("it takes nothing")
    _take(builder, name_of(step), source, places, (builder.blob(result), sample(result)))


@dataclass(frozen=True)
class _Source:
    """A blob, its shape, and the axis along which is taken."""

    blob: str
    shape: Sample
    axis: int


_Target: TypeAlias = tuple[str, Sample]
"""A blob and its shape."""

_MOST_CUTS = 16
"""So many layers cost less than a product with ones and zeros; a guess."""


def _take(
    builder: NcnnBuilder, name: str, source: _Source, places: list[int], target: _Target
) -> None:
    """Add layers that take places along an axis.

    Neighbours are one ``Crop``. Places at equal distances are those of a column once the axis is
    two. A few runs are joined by ``Concat``; of many, a product with ones and zeros takes them.
    """
    steps = set(np.diff(places).tolist())
    starts = [k for k, place in enumerate(places) if not k or place != places[k - 1] + 1]
    runs = [places[k:end] for k, end in zip(starts, [*starts[1:], len(places)], strict=True)]
    if len(runs) == 1:
        inner = builder.inner_of(target[0])
        _crop(builder, name, source, runs[0], inner)
        builder.reshape(f"{name}_axes", inner, *target)
    elif len(steps) == 1 and min(steps) > 1:
        _take_column(builder, name, source, places, target)
    elif len(runs) <= _MOST_CUTS:
        parts = [builder.inner_of(target[0]) for _ in runs]
        for run, part in zip(runs, parts, strict=True):
            _crop(builder, name, source, run, part)
        joined = builder.inner_of(target[0])
        builder.emit("Concat", name, parts, [joined], {0: source.axis})
        builder.reshape(f"{name}_axes", joined, *target)
    else:
        _take_by_product(builder, name, source, places, target)


def _crop(builder: NcnnBuilder, name: str, source: _Source, run: list[int], top: str) -> None:
    cut: dict[int, Parameter] = {9: (run[0],), 10: (run[-1] + 1,), 11: (source.axis,)}
    builder.emit("Crop", name, [source.blob], [top], cut)


def _rows(builder: NcnnBuilder, name: str, source: _Source) -> _Source:
    """Give a blob three axes, the one along which is taken in the middle."""
    front, back = source.shape[: source.axis], source.shape[source.axis + 1 :]
    shape = (math.prod(front), source.shape[source.axis], math.prod(back))
    rows = builder.inner_of(source.blob)
    builder.reshape(f"{name}_rows", source.blob, rows, shape)
    return _Source(rows, shape, 1)


def _take_column(
    builder: NcnnBuilder, name: str, source: _Source, places: list[int], target: _Target
) -> None:
    rows, step, first = _rows(builder, name, source), places[1] - places[0], places[0]
    front, length, back = rows.shape
    last = first + step * len(places)
    blob = rows.blob
    if last > length:  # the last of them has fewer behind it
        padded = builder.inner_of(blob)
        builder.emit("Padding", f"{name}_pad", [blob], [padded], {1: last - length})
        blob = padded
    cut, parted, column = (builder.inner_of(blob) for _ in range(3))
    _crop(builder, name, _Source(blob, rows.shape, 1), list(range(first, last)), cut)
    builder.reshape(f"{name}_parts", cut, parted, (front, len(places), step * back))
    parts = _Source(parted, (front, len(places), step * back), 2)
    _crop(builder, f"{name}_column", parts, list(range(back)), column)
    builder.reshape(f"{name}_axes", column, *target)


def _take_by_product(
    builder: NcnnBuilder, name: str, source: _Source, places: list[int], target: _Target
) -> None:
    rows = _rows(builder, name, source)
    ones = np.zeros((1, len(places), rows.shape[1]), np.float32)
    ones[0, np.arange(len(places)), places] = 1
    chosen, product = f"{name}_places_{source.axis}", builder.inner_of(target[0])
    blob = builder.constant(Tensor(chosen, ones.shape, data=ones, value=chosen), ones.shape)
    builder.emit("MatMul", name, [blob, rows.blob], [product])
    builder.reshape(f"{name}_axes", product, *target)


@WRITERS.register(Split)
def _split(operation: Split, step: Step, builder: NcnnBuilder) -> None:
    """Write a Split as ``Slice``."""
    axis = _axis_of_sample(operation.axis, step)
    tops = [builder.blob(tensor) for tensor in step.outputs]
    bottoms = [builder.read(step)]
    builder.emit("Slice", name_of(step), bottoms, tops, {0: operation.sizes, 1: axis})


@WRITERS.register(Pad)
def _pad(operation: Pad, step: Step, builder: NcnnBuilder) -> None:
    """Write pads of images, of rows of numbers and of single numbers."""
    batch, *inner = operation.pads
    if not 1 <= len(inner) <= 3:
        raise Unsupported("only one to three axes are padded")
    if min(map(min, operation.pads)) < 0 or any(batch):
        raise Unsupported("it cuts off, or pads the batch")
    none = (0, 0)
    channels, rows, columns = (*(none,) * (3 - len(inner)), *inner)
    # ncnn repeats or mirrors within an image.
    if operation.mode is not PadMode.CONSTANT and any(channels):
        raise Unsupported("it pads channels by more than constants")
    parameters: dict[int, Parameter] = {0: rows[0], 1: rows[1], 2: columns[0], 3: columns[1]}
    value = float(np.clip(operation.value, -LARGEST, LARGEST))  # its text holds no infinity
    parameters |= {4: _PAD_MODES[operation.mode], 5: value}
    parameters |= {7: channels[0], 8: channels[1]}
    builder.unary("Padding", step, parameters)


@WRITERS.register(DepthToSpace)
def _depth_to_space(operation: DepthToSpace, step: Step, builder: NcnnBuilder) -> None:
    # Mode 1 has the block in front of the channels (DCR), mode 0 behind them (CRD).
    builder.unary("PixelShuffle", step, {0: operation.block, 1: 1})


@WRITERS.register(SpaceToDepth)
def _space_to_depth(operation: SpaceToDepth, step: Step, builder: NcnnBuilder) -> None:
    builder.unary("Reorg", step, {0: operation.block, 1: 1})


@WRITERS.register(Tile)
def _tile(operation: Tile, step: Step, builder: NcnnBuilder) -> None:
    _repeat(operation.repeats, step, builder)


@WRITERS.register(Expand)
def _expand(operation: Expand, step: Step, builder: NcnnBuilder) -> None:
    """Write an Expand that adds no axes as ``Tile``."""
    rank = rank_of(input_of(step))
    if len(operation.shape) != rank:
        raise Unsupported("it adds axes")
    shape = (1, *sample(input_of(step)))
    pairs = zip(shape, operation.shape, strict=True)
    _repeat(tuple(n if n > 0 and own == 1 else 1 for own, n in pairs), step, builder)


def _repeat(repeats: tuple[int, ...], step: Step, builder: NcnnBuilder) -> None:
    if len(repeats) != rank_of(input_of(step)) or repeats[0] != 1:
        raise Unsupported("it repeats samples")
    builder.unary("Tile", step, {2: repeats[1:]})


@WRITERS.register(PixelShuffle)
def _pixel_shuffle(operation: PixelShuffle, step: Step, builder: NcnnBuilder) -> None:
    builder.unary("PixelShuffle", step, {0: operation.block, 1: 0})


def _axis_of_sample(axis: int, step: Step) -> int:
    """Find the axis of a sample along which a step works."""
    if axis == 0:
        raise Unsupported("it works along the batch")
    # Asked for its refusal only.
    lengths((1,) * (rank_of(input_of(step)) - 1))
    return axis - 1
