"""Operations that move elements and leave them as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from intact.program import operations as ops
from intact.program.program import Shape
from intact.program.realize.builder import broadcast
from intact.program.realize.graph import Op, Order, Value
from intact.program.realize.part import Part, Realize, known, open_product, plain
from intact.program.realize.pointwise import recoded
from intact.program.realize.requantize import zero_point


def _give(part: Part, value: Value, order: Order | None = None, slot: int = 0) -> None:
    """Put moved elements down, brought to the output's scale where that is another."""
    source, output = part.tensor(0).encoding, part.step.outputs[slot].encoding
    if source is not None and output is not None:
        target = part.encoding(part.step.outputs[slot])
        value = recoded(part, value, part.encoding(part.tensor(0)), target)
    part.give(value, order, slot)


def _lying(values: Sequence[Any], order: Order) -> tuple[Any, ...]:
    """Return values by axis in the order in which the axes lie."""
    return tuple(values[axis] for axis in order)


def reshape(part: Part) -> None:
    """Realize a Reshape, of data as it is stored."""
    operation, data = cast(ops.Reshape, part.step.operation), part.in_order(0)
    shape = _reshaped(operation.shape, data.shape)
    if shape != data.shape:
        data = part.draft.move(Op.RESHAPE, data, shape, lengths=operation.shape)
    _give(part, data)


def _reshaped(wanted: tuple[int, ...], shape: Shape) -> Shape:
    """Return the result's shape: -1 is told where no length is open."""
    if -1 not in wanted or None in shape:
        return tuple(None if length == -1 else length for length in wanted)
    size = int(np.prod([known(length) for length in shape], dtype=np.int64))
    rest = size // max(int(np.prod([n for n in wanted if n != -1], dtype=np.int64)), 1)
    return tuple(rest if length == -1 else length for length in wanted)


def transpose(part: Part) -> None:
    """Realize a Transpose: nothing moves, the axes are called otherwise."""
    operation, order = cast(ops.Transpose, part.step.operation), part.order(0)
    renamed = tuple(operation.permutation.index(axis) for axis in order)
    _give(part, part.read(0, order), renamed)


def slice_(part: Part) -> None:
    """Realize a Slice."""
    operation, order = cast(ops.Slice, part.step.operation), part.order(0)
    parts = [_lying(each, order) for each in (operation.starts, operation.stops, operation.steps)]
    _give(part, _sliced(part, part.read(0, order), *parts), order)


def _sliced(
    part: Part,
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
    return part.draft.move(Op.SLICE, data, shape, **options)


def split(part: Part) -> None:
    """Realize a Split, as slices."""
    operation, order = cast(ops.Split, part.step.operation), part.order(0)
    data, place = part.read(0, order), part.order(0).index(operation.axis)
    start, rank = 0, len(order)
    for slot, size in enumerate(operation.sizes):
        starts = [start if at == place else None for at in range(rank)]
        stops = [start + size if at == place else None for at in range(rank)]
        _give(part, _sliced(part, data, starts, stops, (1,) * rank), order, slot)
        start += size


def concat(part: Part) -> None:
    """Realize a Concat; every operand comes to the output's scale first."""
    operation, output = cast(ops.Concat, part.step.operation), part.output.encoding
    slots = range(len(part.step.inputs))
    orders = {part.order(slot) for slot in slots if not part.tensor(slot).is_constant}
    order = orders.pop() if len(orders) == 1 else plain(part.rank(0))
    values = []
    for slot in slots:
        value = part.read(slot, order)
        if output is not None:
            source = part.encoding(part.tensor(slot))
            value = recoded(part, value, source, part.encoding(part.output))
        values.append(value)
    place = order.index(operation.axis)
    lengths = [value.shape[place] for value in values]
    total = None if None in lengths else sum(known(length) for length in lengths)
    shape = (*values[0].shape[:place], total, *values[0].shape[place + 1 :])
    ends = min(value.low for value in values), max(value.high for value in values)
    joined = part.draft.emit(Op.CONCAT, values, values[0].dtype, shape, ends, axis=place)
    part.give(joined, order)


def pad(part: Part) -> None:
    """Realize a Pad with the real number 0."""
    operation, order = cast(ops.Pad, part.step.operation), part.order(0)
    source, output = part.encoding(part.tensor(0)), part.encoding(part.output)
    data = recoded(part, part.read(0, order), source, output)
    pads, zero = _lying(operation.pads, order), zero_point(output)
    shape = tuple(
        length if pair == (0, 0) else known(length) + sum(pair)
        for length, pair in zip(data.shape, pads, strict=True)
    )
    ends = min(data.low, zero), max(data.high, zero)
    padded = part.draft.emit(Op.PAD, [data], data.dtype, shape, ends, pads=pads, number=zero)
    part.give(padded, order)


def gather(part: Part) -> None:
    """Realize a Gather with constant indices."""
    operation = cast(ops.Gather, part.step.operation)
    keeps_rank = operation.indices.ndim == 1
    order = part.order(0) if keeps_rank else plain(part.rank(0))
    data, place = part.read(0, order), order.index(operation.axis)
    index = part.draft.constant(operation.indices.astype(np.int64), "indices")
    _give(part, taken(part, data, index, place), order if keeps_rank else None)


def taken(part: Part, data: Value, index: Value, axis: int) -> Value:
    """Return slices of data along an axis."""
    shape = (*data.shape[:axis], *index.shape, *data.shape[axis + 1 :])
    ends = data.low, data.high
    return part.draft.emit(Op.TAKE, [data, index], data.dtype, shape, ends, axis=axis)


def lookup(part: Part) -> None:
    """Realize a Lookup; an index below 0 counts from the end."""
    operation, draft = cast(ops.Lookup, part.step.operation), part.draft
    data, index = part.read(0), part.read(1)
    entries = known(data.shape[operation.axis])
    index = replace(index, low=-entries, high=entries - 1)  # what else there is runtimes refuse
    wraps = draft.mul(draft.is_negative(index), entries)
    _give(part, taken(part, data, draft.add(index, wraps), operation.axis))


def tile(part: Part) -> None:
    """Realize a Tile."""
    operation, order = cast(ops.Tile, part.step.operation), part.order(0)
    data, repeats = part.read(0, order), _lying(operation.repeats, order)
    shape = tuple(
        length if times == 1 else known(length) * times
        for length, times in zip(data.shape, repeats, strict=True)
    )
    _give(part, part.draft.move(Op.TILE, data, shape, repeats=repeats), order)


def expand(part: Part) -> None:
    """Realize an Expand."""
    operation, data = cast(ops.Expand, part.step.operation), part.read(0)
    rank = max(len(operation.shape), len(data.shape))
    wanted = (1,) * (rank - len(operation.shape)) + operation.shape
    wanted = tuple(1 if length == -1 else length for length in wanted)
    shape = broadcast(data.shape, wanted)
    _give(part, part.draft.move(Op.EXPAND, data, shape, lengths=wanted))


def depth_to_space(part: Part) -> None:
    """Realize a DepthToSpace: blocks as axes of their own, moved between the spatial ones."""
    block = cast(ops.DepthToSpace, part.step.operation).block
    batch, height, width, depth = part.shape(0)
    cells = (batch, height, width, block, block, known(depth) // block**2)
    wide = (batch, known(height) * block, known(width) * block, cells[-1])
    _blocks(part, cells, (0, 1, 3, 2, 4, 5), wide)


def space_to_depth(part: Part) -> None:
    """Realize a SpaceToDepth, the inverse."""
    block = cast(ops.SpaceToDepth, part.step.operation).block
    batch, height, width, depth = part.shape(0)
    rows, columns = known(height) // block, known(width) // block
    cells = (batch, rows, block, columns, block, depth)
    _blocks(part, cells, (0, 1, 3, 2, 4, 5), (batch, rows, columns, block**2 * known(depth)))


def _blocks(part: Part, cells: Shape, permutation: Order, shape: Shape) -> None:
    draft = part.draft
    apart = draft.move(Op.RESHAPE, part.read(0), cells, lengths=open_product(cells))
    turned = tuple(cells[axis] for axis in permutation)
    moved = draft.move(Op.TRANSPOSE, apart, turned, permutation=permutation)
    _give(part, draft.move(Op.RESHAPE, moved, shape, lengths=open_product(shape)))


TABLE: dict[type, Realize] = {
    ops.Concat: concat,
    ops.DepthToSpace: depth_to_space,
    ops.Expand: expand,
    ops.Gather: gather,
    ops.Lookup: lookup,
    ops.Pad: pad,
    ops.Reshape: reshape,
    ops.Slice: slice_,
    ops.SpaceToDepth: space_to_depth,
    ops.Split: split,
    ops.Tile: tile,
    ops.Transpose: transpose,
}
