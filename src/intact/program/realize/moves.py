"""Realizes operations that move elements and leave them as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from intact.program import operations as ops
from intact.program.forms import broadcast, code_of
from intact.program.program import Shape
from intact.program.realize.graph import Op, Order, Value
from intact.program.realize.pointwise import recode
from intact.program.realize.step import REALIZERS, StepBuilder, known, open_product, plain


def _give(step: StepBuilder, value: Value, order: Order | None = None, slot: int = 0) -> None:
    """Put moved elements down, brought to the output's scale where that is another."""
    source, output = step.tensor(0).encoding, step.outputs[slot].encoding
    if source is not None and output is not None:
        target = step.encoding(step.outputs[slot])
        value = recode(step, value, step.encoding(step.tensor(0)), target)
    step.set_result(value, order, slot)


def _by_place(values: Sequence[Any], order: Order) -> tuple[Any, ...]:
    """Return values by axis in the order in which the axes lie."""
    return tuple(values[axis] for axis in order)


@REALIZERS.register(ops.Reshape)
def reshape(step: StepBuilder) -> None:
    """Realize a Reshape, of data as it is stored."""
    # In the axes' own order: a reshape splits and joins neighbours, which another order has not.
    operation, data = cast(ops.Reshape, step.operation), step.in_order(0)
    shape = _result_shape(operation.shape, data.shape)
    if shape != data.shape:
        data = step.builder.move(Op.RESHAPE, data, shape, lengths=operation.shape)
    _give(step, data)


def _result_shape(wanted: tuple[int, ...], shape: Shape) -> Shape:
    """The result's shape: -1 is allowed where no length is open."""
    if -1 not in wanted or None in shape:
        return tuple(None if length == -1 else length for length in wanted)
    size = int(np.prod([known(length) for length in shape], dtype=np.int64))
    rest = size // max(int(np.prod([n for n in wanted if n != -1], dtype=np.int64)), 1)
    return tuple(rest if length == -1 else length for length in wanted)


@REALIZERS.register(ops.Transpose)
def transpose(step: StepBuilder) -> None:
    """Realize a Transpose: nothing moves, the axes are called otherwise."""
    operation, order = cast(ops.Transpose, step.operation), step.order(0)
    # Whoever needs the axes to lie in another order moves them, once and at the last moment.
    renamed = tuple(operation.permutation.index(axis) for axis in order)
    _give(step, step.read(0, order), renamed)


@REALIZERS.register(ops.Slice)
def slice_(step: StepBuilder) -> None:
    """Realize a Slice."""
    operation, order = cast(ops.Slice, step.operation), step.order(0)
    parts = [
        _by_place(each, order) for each in (operation.starts, operation.stops, operation.steps)
    ]
    _give(step, _add_slice(step, step.read(0, order), *parts), order)


def _add_slice(
    step: StepBuilder,
    data: Value,
    starts: Sequence[int | None],
    stops: Sequence[int | None],
    steps: Sequence[int],
) -> Value:
    shape = tuple(
        length
        if (start, stop, step) == (None, None, 1)
        else len(range(*slice(start, stop, step).indices(known(length))))
        for start, stop, step, length in zip(starts, stops, steps, data.shape, strict=True)
    )
    options = {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps)}
    return step.builder.move(Op.SLICE, data, shape, **options)


@REALIZERS.register(ops.Split)
def split(step: StepBuilder) -> None:
    """Realize a Split, as slices."""
    operation, order = cast(ops.Split, step.operation), step.order(0)
    data, place = step.read(0, order), step.order(0).index(operation.axis)
    start, rank = 0, len(order)
    for slot, size in enumerate(operation.sizes):
        starts = [start if at == place else None for at in range(rank)]
        stops = [start + size if at == place else None for at in range(rank)]
        _give(step, _add_slice(step, data, starts, stops, (1,) * rank), order, slot)
        start += size


@REALIZERS.register(ops.Concat)
def concat(step: StepBuilder) -> None:
    """Realize a Concat; every operand comes to the output's scale first."""
    operation, output = cast(ops.Concat, step.operation), step.output.encoding
    slots = range(len(step.inputs))
    # Constants take any order for nothing, so they have no say.
    orders = {step.order(slot) for slot in slots if not step.tensor(slot).is_constant}
    order = orders.pop() if len(orders) == 1 else plain(step.rank(0))
    values = []
    for slot in slots:
        value = step.read(slot, order)
        if output is not None:
            source = step.encoding(step.tensor(slot))
            value = recode(step, value, source, step.encoding(step.output))
        values.append(value)
    place = order.index(operation.axis)
    lengths = [value.shape[place] for value in values]
    total = None if None in lengths else sum(known(length) for length in lengths)
    shape = (*values[0].shape[:place], total, *values[0].shape[place + 1 :])
    ends = min(value.low for value in values), max(value.high for value in values)
    joined = step.builder.emit(Op.CONCAT, values, values[0].dtype, shape, ends, axis=place)
    step.set_result(joined, order)


@REALIZERS.register(ops.Pad)
def pad(step: StepBuilder) -> None:
    """Realize a Pad with a number."""
    operation, order = cast(ops.Pad, step.operation), step.order(0)
    source, output = step.encoding(step.tensor(0)), step.encoding(step.output)
    data = recode(step, step.read(0, order), source, output)
    pads = _by_place(operation.pads, order)
    filler = int(code_of(operation.value, step.encoding(step.output)))
    shape = tuple(
        length if pair == (0, 0) else known(length) + sum(pair)
        for length, pair in zip(data.shape, pads, strict=True)
    )
    ends = min(data.low, filler), max(data.high, filler)
    padded = step.builder.emit(Op.PAD, [data], data.dtype, shape, ends, pads=pads, number=filler)
    step.set_result(padded, order)


@REALIZERS.register(ops.Gather)
def gather(step: StepBuilder) -> None:
    """Realize a Gather with constant indices."""
    operation = cast(ops.Gather, step.operation)
    keeps_rank = operation.indices.ndim == 1
    # An index of another rank than 1 adds or removes axes, and the order would name others.
    order = step.order(0) if keeps_rank else plain(step.rank(0))
    data, place = step.read(0, order), order.index(operation.axis)
    index = step.builder.constant(operation.indices.astype(np.int64), "indices")
    _give(step, take_slices(step, data, index, place), order if keeps_rank else None)


def take_slices(step: StepBuilder, data: Value, index: Value, axis: int) -> Value:
    """Return slices of data along an axis."""
    shape = (*data.shape[:axis], *index.shape, *data.shape[axis + 1 :])
    ends = data.low, data.high
    return step.builder.emit(Op.TAKE, [data, index], data.dtype, shape, ends, axis=axis)


@REALIZERS.register(ops.Lookup)
def lookup(step: StepBuilder) -> None:
    """Realize a Lookup; an index below 0 counts from the end."""
    operation, builder = cast(ops.Lookup, step.operation), step.builder
    data, index = step.read(0), step.read(1)
    entries = known(data.shape[operation.axis])
    # Its own bounds, so that the sum below needs no wider type.
    index = replace(index, low=-entries, high=entries - 1)  # what else there is runtimes refuse
    wraps = builder.mul(builder.is_negative(index), entries)
    _give(step, take_slices(step, data, builder.add(index, wraps), operation.axis))


@REALIZERS.register(ops.Tile)
def tile(step: StepBuilder) -> None:
    """Realize a Tile."""
    operation, order = cast(ops.Tile, step.operation), step.order(0)
    data, repeats = step.read(0, order), _by_place(operation.repeats, order)
    shape = tuple(
        length if times == 1 else known(length) * times
        for length, times in zip(data.shape, repeats, strict=True)
    )
    _give(step, step.builder.move(Op.TILE, data, shape, repeats=repeats), order)


@REALIZERS.register(ops.Expand)
def expand(step: StepBuilder) -> None:
    """Realize an Expand."""
    operation, data = cast(ops.Expand, step.operation), step.read(0)
    rank = max(len(operation.shape), len(data.shape))
    wanted = (1,) * (rank - len(operation.shape)) + operation.shape
    wanted = tuple(1 if length == -1 else length for length in wanted)
    shape = broadcast(data.shape, wanted)
    _give(step, step.builder.move(Op.EXPAND, data, shape, lengths=wanted))


@REALIZERS.register(ops.DepthToSpace)
def depth_to_space(step: StepBuilder) -> None:
    """Realize a DepthToSpace: blocks as axes of their own, moved between the spatial ones."""
    block = cast(ops.DepthToSpace, step.operation).block
    batch, height, width, depth = step.shape(0)
    cells = (batch, height, width, block, block, known(depth) // block**2)
    wide = (batch, known(height) * block, known(width) * block, cells[-1])
    _blocks(step, cells, (0, 1, 3, 2, 4, 5), wide)


@REALIZERS.register(ops.SpaceToDepth)
def space_to_depth(step: StepBuilder) -> None:
    """Realize a SpaceToDepth, the inverse."""
    block = cast(ops.SpaceToDepth, step.operation).block
    batch, height, width, depth = step.shape(0)
    rows, columns = known(height) // block, known(width) // block
    cells = (batch, rows, block, columns, block, depth)
    _blocks(step, cells, (0, 1, 3, 2, 4, 5), (batch, rows, columns, block**2 * known(depth)))


def _blocks(step: StepBuilder, cells: Shape, permutation: Order, shape: Shape) -> None:
    builder = step.builder
    apart = builder.move(Op.RESHAPE, step.read(0), cells, lengths=open_product(cells))
    turned = tuple(cells[axis] for axis in permutation)
    moved = builder.move(Op.TRANSPOSE, apart, turned, permutation=permutation)
    _give(step, builder.move(Op.RESHAPE, moved, shape, lengths=open_product(shape)))
