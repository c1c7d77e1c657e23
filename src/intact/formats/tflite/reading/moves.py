"""Operators that give their input another shape or order."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tflite.reading.canvas import Input
from intact.formats.tflite.reading.common import (
    Read,
    axis_in,
    keeps_scale,
    mixes_batch,
    needs_shape,
    optional,
    slot,
)
from intact.formats.tflite.reading.draft import Draft
from intact.formats.tflite.reading.file import Operator
from intact.formats.tflite.reading.layouts import Layout, arranged, channels_first

_MOST_GATHERED = 1 << 16
"""Elements of an axis that is mirrored."""


def reshape(draft: Draft, op: Operator) -> None:
    """RESHAPE, SQUEEZE and EXPAND_DIMS: the shape is the output's.

    Where batch and channels stay what they are, it is a reshape with the channels first too.
    """
    index, output = slot(op, 0), draft.tensor(op.outputs[0])
    data = draft.tensor(index)
    if data.size != output.size:
        raise Unsupported(f"{list(data.shape)} does not become {list(output.shape)}")
    keeps_scale(draft, index, op.outputs[0])
    drawn = draft.drawn.get(draft.alias.get(index, index))
    if drawn is None:
        mixes_batch(draft, True)
        value = draft.reshaped(draft.operand(index), output.shape).value
        draft.write(op.outputs[0], value)
        return
    if not drawn.values:  # no long chain is left to be made at once
        draft.operand(index, next(iter(drawn.sources)))
    sources: dict[Layout, Callable[[], ir.Value]] = {}
    shape, first = output.shape, arranged(output.shape, Layout.FIRST)
    keeps_channels = min(data.rank, output.rank) > 2 and (
        (data.shape[0], data.shape[-1]) == (shape[0], shape[-1])
    )
    if keeps_channels and drawn.has(Layout.FIRST):
        sources[Layout.FIRST] = lambda: (
            draft.reshaped(draft.operand(index, Layout.FIRST), first).value
        )
    if drawn.has(Layout.FILE) or not sources:
        sources[Layout.FILE] = lambda: draft.reshaped(draft.in_file_order(index), shape).value
        if output.rank > 2 and all(length == 1 for length in shape[1:-1]):
            sources[Layout.FIRST] = lambda: draft.reshaped(draft.in_file_order(index), first).value
    draft.offer(op.outputs[0], sources)


def transpose(draft: Draft, op: Operator) -> None:
    """TRANSPOSE; one that only says where the channels lie is none in this graph."""
    index, output = slot(op, 0), op.outputs[0]
    shape, permutation = draft.tensor(index).shape, draft.list_of(slot(op, 1))
    if sorted(permutation) != list(range(len(shape))):
        raise Unsupported(f"its permutation is {list(permutation)}")
    needs_shape(draft, output, [shape[axis] for axis in permutation])
    keeps_scale(draft, index, output)
    permutation = _batch_in_front(permutation, shape) if draft.batch else permutation
    mixes_batch(draft, permutation[:1] != (0,))
    rank = len(shape)
    given, kept = draft.parameters(index), draft.parameters(output)
    drawn = draft.drawn.get(draft.alias.get(index, index))
    may_share = given is None or given.equals(kept)
    may_share &= drawn is not None and rank > 2 and not draft.is_output(output)
    layouts = [Layout.FILE] if drawn is None else [each for each in Layout if each in drawn.values]
    for source in layouts or [Layout.FILE]:
        for target in Layout:
            order = _composed(permutation, source, target)
            if order == tuple(range(rank)) and may_share:
                draft.write(output, draft.operand(index, source).value, target)
                return
    source = (layouts or [Layout.FILE])[0]
    order = _composed(permutation, source, Layout.FILE)
    operand = draft.operand(index, source)
    draft.write(output, draft.node("Transpose", [operand], {"perm": order}))


def _batch_in_front(permutation: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a permutation that moves no data before the batch, if one does the same.

    Among axes of one element any order is the same, and the first of them is taken for the batch.
    """
    ahead = permutation[: permutation.index(0)] if 0 in permutation else ()
    if not all(shape[axis] == 1 for axis in ahead):
        return permutation
    return (0, *(axis for axis in permutation if axis != 0))


def _composed(permutation: tuple[int, ...], source: Layout, target: Layout) -> tuple[int, ...]:
    """Return the permutation from a layout of the input to one of the output."""
    rank = len(permutation)
    order = channels_first(rank) if source is Layout.FIRST else tuple(range(rank))
    return tuple(order.index(axis) for axis in arranged(permutation, target))


def gather(draft: Draft, op: Operator) -> None:
    """GATHER, by stored indices or by those that the caller feeds."""
    index, chosen = slot(op, 0), slot(op, 1)
    shape, indices = draft.tensor(index).shape, draft.tensor(chosen)
    if op.options["batch_dims"]:
        raise Unsupported("it gathers by sample")
    axis = axis_in(int(op.options["axis"]), len(shape))
    mixes_batch(draft, axis == 0 and not draft.is_constant(index))
    mixes_batch(draft, draft.is_constant(index) and draft.is_constant(chosen))
    needs_shape(draft, op.outputs[0], (*shape[:axis], *indices.shape, *shape[axis + 1 :]))
    keeps_scale(draft, index, op.outputs[0])
    if draft.is_constant(chosen):
        numbers = draft.list_of(chosen)
        if not all(0 <= number < shape[axis] for number in numbers):
            raise Unsupported("an index lies outside its axis")
    mixes_batch(draft, axis != 0 and not draft.is_constant(chosen))
    value = draft.node("Gather", [draft.operand(index), draft.operand(chosen)], {"axis": axis})
    draft.write(op.outputs[0], value)


def tile(draft: Draft, op: Operator) -> None:
    """TILE."""
    index, repeats = slot(op, 0), draft.list_of(slot(op, 1))
    shape = draft.tensor(index).shape
    if len(repeats) != len(shape) or min(repeats, default=1) < 1:
        raise Unsupported(f"its repeats are {list(repeats)}")
    needs_shape(draft, op.outputs[0], [n * k for n, k in zip(shape, repeats, strict=True)])
    keeps_scale(draft, index, op.outputs[0])
    mixes_batch(draft, repeats[:1] != (1,))
    layout = draft.layout_of(index)
    counts = draft.integers(*arranged(repeats, layout))
    draft.write(op.outputs[0], draft.node("Tile", [draft.operand(index, layout), counts]), layout)


def broadcast_to(draft: Draft, op: Operator) -> None:
    """BROADCAST_TO: the shape is the output's."""
    index, output = slot(op, 0), draft.tensor(op.outputs[0])
    shape = draft.tensor(index).shape
    ahead = (1,) * (output.rank - len(shape))
    if len(shape) > output.rank or any(
        length not in (1, wanted)
        for length, wanted in zip((*ahead, *shape), output.shape, strict=True)
    ):
        raise Unsupported(f"{list(shape)} does not broadcast to {list(output.shape)}")
    keeps_scale(draft, index, op.outputs[0])
    mixes_batch(draft, bool(ahead) or draft.is_constant(index))
    layout = Layout.FILE if ahead else draft.layout_of(index)
    lengths = draft.integers(*arranged(output.shape, layout))
    inputs: list[Input] = [draft.operand(index, layout), lengths]
    draft.write(op.outputs[0], draft.node("Expand", inputs), layout)


def pad(draft: Draft, op: Operator) -> None:
    """PAD and PADV2: with zeros, or with a stored number."""
    index, pads = slot(op, 0), _pads(draft, op)
    keeps_scale(draft, index, op.outputs[0])
    layout = draft.layout_of(index)
    sides = [arranged([each[side] for each in pads], layout) for side in (0, 1)]
    inputs: list[Input] = [
        draft.operand(index, layout),
        draft.integers(*sides[0], *sides[1]),
    ]
    filler = _filler(draft, optional(op, 2))
    if filler:
        inputs.append(draft.number(filler))
    draft.write(op.outputs[0], draft.node("Pad", inputs), layout)


def _filler(draft: Draft, index: int) -> float:
    """Return the number that a pad is filled with."""
    if index < 0:
        return 0.0
    parameters, array = draft.parameters(index), draft.array(index)
    if array.size != 1 or (parameters is not None and parameters.axis is not None):
        raise Unsupported("it is filled with more than one number")
    numbers = array if parameters is None else parameters.numbers(array)
    return float(numbers.reshape(-1)[0])


def mirror_pad(draft: Draft, op: Operator) -> None:
    """MIRROR_PAD, as a Gather along each axis that grows: ONNX mirrors in one way only."""
    index, pads = slot(op, 0), _pads(draft, op)
    keeps_scale(draft, index, op.outputs[0])
    with_edge = int(op.options["mode"]) == 1
    operand = draft.operand(index)
    grown = list(operand.shape)
    for axis, (before, after) in enumerate(pads):
        if not (before or after):
            continue
        length = grown[axis]
        if max(before, after) > length - (not with_edge) or length > _MOST_GATHERED:
            raise Unsupported(f"{before} and {after} elements are no mirror of {length}")
        start = 0 if with_edge else 1
        indices = [
            *range(before - 1 + start, start - 1, -1),
            *range(length),
            *range(length - 1 - start, length - 1 - start - after, -1),
        ]
        draft.charge(len(indices))
        grown[axis] = len(indices)
        inputs: list[Input] = [operand, draft.integers(*indices)]
        operand = draft.moved("Gather", inputs, {"axis": axis}, tuple(grown))
    if operand.value.name is not None:
        operand = draft.moved("Identity", [operand], None, operand.shape)
    draft.write(op.outputs[0], operand.value)


def _pads(draft: Draft, op: Operator) -> list[tuple[int, int]]:
    """Return what is added before and behind each axis."""
    shape, flat = draft.tensor(slot(op, 0)).shape, draft.list_of(slot(op, 1))
    if len(flat) != 2 * len(shape) or min(flat, default=0) < 0:
        raise Unsupported(f"its pads are {list(flat)}")
    pads = list(zip(flat[::2], flat[1::2], strict=True))
    needs_shape(draft, op.outputs[0], [n + sum(p) for n, p in zip(shape, pads, strict=True)])
    mixes_batch(draft, any(pads[0]))
    return pads


def requantize(draft: Draft, op: Operator) -> None:
    """QUANTIZE and DEQUANTIZE: the same numbers at another end, or as floats.

    A float input of the graph needs no node: it is quantized where it is read.
    """
    index, output = slot(op, 0), op.outputs[0]
    needs_shape(draft, output, draft.tensor(index).shape)
    index = draft.alias.get(index, index)
    if draft.alias.get(output) == index:
        return
    if draft.is_constant(index):
        parameters = draft.parameters(index)
        if op.name != "DEQUANTIZE":
            raise Unsupported("it quantizes a constant")
        array = draft.array(index)
        draft.charge(array.size)
        draft.known[output] = array if parameters is None else parameters.numbers(array)
        return
    drawn = draft.drawn.get(index)
    is_port = drawn is not None and drawn.values.get(Layout.FILE) in draft.inputs
    if is_port and draft.parameters(index) is None and not draft.is_output(output):
        draft.stand_for(output, index)
        return
    layout = draft.layout_of(index)
    draft.write(output, draft.node("Identity", [draft.operand(index, layout)]), layout)


TABLE: dict[str, Read] = {
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS"), reshape),
    "TRANSPOSE": transpose,
    "GATHER": gather,
    "TILE": tile,
    "BROADCAST_TO": broadcast_to,
    "PAD": pad,
    "PADV2": pad,
    "MIRROR_PAD": mirror_pad,
    "QUANTIZE": requantize,
    "DEQUANTIZE": requantize,
}
