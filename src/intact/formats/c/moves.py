"""Takes operations that only move elements apart into copies between grids of strides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from intact.errors import Unsupported
from intact.formats.c.library import AXES
from intact.program import Step
from intact.program.handlers import Handlers
from intact.program.operations import (
    Concat,
    DepthToSpace,
    Expand,
    Pad,
    Reshape,
    Slice,
    SpaceToDepth,
    Split,
    Tile,
    Transpose,
)
from intact.program.passes.inference import Lengths


@dataclass(frozen=True)
class Grid:
    """Rows of a grid, and a run of elements in each row.

    Attributes:
        lengths: By axis of the rows, at most `AXES`.
        strides: For each operand, by axis of the rows, in elements.
        length: Elements of a row.
        steps: For each operand, the distance between neighbours of a row.
    """

    lengths: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    length: int
    steps: tuple[int, ...]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return math.prod(self.lengths)

    @property
    def is_run(self) -> bool:
        """Whether every operand is one unbroken run."""
        return not self.lengths and all(step == 1 for step in self.steps)


def contiguous(lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor that lies without gaps, in elements.

    >>> contiguous((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(math.prod(lengths[axis + 1 :]) for axis in range(len(lengths)))


def broadcast_strides(lengths: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an operand that is broadcast: 0 where its length is 1.

    >>> broadcast_strides((3, 1), (2, 3, 4))
    (0, 1, 0)
    """
    # Axes that are missing in front count as 1 long, as in NumPy.
    padded = (1,) * (len(target) - len(lengths)) + tuple(lengths)
    strides = contiguous(padded)
    return tuple(
        0 if length == 1 else stride for length, stride in zip(padded, strides, strict=True)
    )


def grid(lengths: Sequence[int], operands: Sequence[Sequence[int]]) -> Grid:
    """Return a grid with the strides of its operands, neighbouring axes joined where they can be.

    Raises:
        Unsupported: More axes are left than the kernels have.
    """
    axes = [
        (length, tuple(operand[axis] for operand in operands))
        for axis, length in enumerate(lengths)
        # Axes of one element step nowhere, and would only keep their neighbours from being joined.
        if length != 1
    ]
    joined: list[tuple[int, tuple[int, ...]]] = []
    for length, strides in axes:
        if joined and _continues(joined[-1][1], length, strides):
            joined[-1] = (joined[-1][0] * length, strides)
        else:
            joined.append((length, strides))
    # A scalar is one row of one element.
    *outer, (length, steps) = joined or [(1, (1,) * len(operands))]
    if len(outer) > AXES:
        raise Unsupported(f"its copy needs {len(outer) + 1} axes", "use fewer")
    return Grid(
        tuple(each for each, _ in outer),
        tuple(tuple(strides[at] for _, strides in outer) for at in range(len(operands))),
        length,
        steps,
    )


def _continues(outer: Sequence[int], length: int, inner: Sequence[int]) -> bool:
    # Two axes are one run where the outer step is the whole inner axis, in every operand.
    return all(far == length * near for far, near in zip(outer, inner, strict=True))


@dataclass(frozen=True)
class Move:
    """Elements of one input that go to one output.

    Attributes:
        source: Slot of the input.
        target: Slot of the output.
        input_start: Where the first one is, in elements.
        output_start: Where the first one goes.
        grid: Its operands are the input and the output.
    """

    source: int
    target: int
    input_start: int
    output_start: int
    grid: Grid


def moves_of(step: Step, shapes: Mapping[str, Lengths]) -> list[Move]:
    """List the moves of a step; elements of the outputs that no move reaches are zero points.

    Raises:
        Unsupported: The operation does more than move, or does it in a way that kernels cannot.
    """
    make = MOVES.get(type(step.operation))
    if make is None:
        raise Unsupported("it does more than move elements", "")
    ins = [() if tensor is None else shapes[tensor.name] for tensor in step.inputs]
    return make(step.operation, ins, [shapes[tensor.name] for tensor in step.outputs])


def view_of(step: Step, slot: int, shapes: Mapping[str, Lengths]) -> int | None:
    """Return where in input 0 an output lies as it is, in elements; None where it does not."""
    if type(step.operation) not in MOVES or len(step.inputs) != 1:
        return None
    try:
        moves = [move for move in moves_of(step, shapes) if move.target == slot]
    except Unsupported:
        return None
    # Gaps or another order need a copy; an unbroken part of the input is read where it lies.
    if len(moves) != 1 or not moves[0].grid.is_run or moves[0].output_start:
        return None
    size = contiguous((1, *shapes[step.outputs[slot].name]))[0]
    return moves[0].input_start if moves[0].grid.length == size else None


_Shapes: TypeAlias = Sequence[Lengths]

MOVES: Handlers[Callable[[Any, _Shapes, _Shapes], list[Move]]] = Handlers(
    "intact writes no {} as C"
)
"""Operations that only move elements: from the shapes of inputs and outputs to the moves."""


def _one(lengths: Lengths, inputs: Sequence[int], outputs: Sequence[int], start: int = 0) -> Move:
    return Move(0, 0, start, 0, grid(lengths, [inputs, outputs]))


@MOVES.register(Reshape)
def _reshape(_: Reshape, ins: _Shapes, __: _Shapes) -> list[Move]:
    return [_one(ins[0], contiguous(ins[0]), contiguous(ins[0]))]


@MOVES.register(Transpose)
def _transpose(operation: Transpose, ins: _Shapes, outs: _Shapes) -> list[Move]:
    strides = contiguous(ins[0])
    return [_one(outs[0], [strides[axis] for axis in operation.permutation], contiguous(outs[0]))]


@MOVES.register(Slice)
def _slice(operation: Slice, ins: _Shapes, outs: _Shapes) -> list[Move]:
    strides = contiguous(ins[0])
    ranges = [
        # Python resolves ends that are negative, absent or beyond the axis as ONNX does.
        range(*slice(first, last, step).indices(length))
        for first, last, step, length in zip(
            operation.starts, operation.stops, operation.steps, ins[0], strict=True
        )
    ]
    start = sum(each.start * stride for each, stride in zip(ranges, strides, strict=True))
    steps = [each.step * stride for each, stride in zip(ranges, strides, strict=True)]
    return [_one(outs[0], steps, contiguous(outs[0]), start)]


@MOVES.register(Split)
def _split(operation: Split, ins: _Shapes, outs: _Shapes) -> list[Move]:
    strides = contiguous(ins[0])
    starts = itertools.accumulate(operation.sizes, initial=0)
    return [
        Move(0, slot, start * strides[operation.axis], 0, grid(out, [strides, contiguous(out)]))
        for slot, (start, out) in enumerate(zip(starts, outs, strict=False))
    ]


@MOVES.register(Concat)
def _concat(operation: Concat, ins: _Shapes, outs: _Shapes) -> list[Move]:
    strides = contiguous(outs[0])
    starts = itertools.accumulate((each[operation.axis] for each in ins), initial=0)
    return [
        Move(slot, 0, 0, start * strides[operation.axis], grid(each, [contiguous(each), strides]))
        for slot, (start, each) in enumerate(zip(starts, ins, strict=False))
    ]


@MOVES.register(Pad)
def _pad(operation: Pad, ins: _Shapes, outs: _Shapes) -> list[Move]:
    if any(count < 0 for pair in operation.pads for count in pair):
        # The copy would begin in front of the output's memory.
        raise Unsupported("a pad is negative", "cut with a Slice")
    strides = contiguous(outs[0])
    start = sum(
        before * stride for (before, _), stride in zip(operation.pads, strides, strict=True)
    )
    return [Move(0, 0, 0, start, grid(ins[0], [contiguous(ins[0]), strides]))]


@MOVES.register(Tile)
def _tile(operation: Tile, ins: _Shapes, _: _Shapes) -> list[Move]:
    pairs = zip(operation.repeats, ins[0], strict=True)
    # Each axis in two: how often it repeats, with a step of 0, and the axis itself.
    lengths = tuple(itertools.chain.from_iterable(pairs))
    strides = tuple(itertools.chain.from_iterable((0, each) for each in contiguous(ins[0])))
    return [_one(lengths, strides, contiguous(lengths))]


@MOVES.register(Expand)
def _expand(_: Expand, ins: _Shapes, outs: _Shapes) -> list[Move]:
    return [_one(outs[0], broadcast_strides(ins[0], outs[0]), contiguous(outs[0]))]


def _blocks(lengths: Lengths, block: int) -> tuple[Lengths, tuple[int, ...], tuple[int, ...]]:
    """Return ``[N, H, block, W, block, C]`` of a deep tensor, and strides there: deep and wide."""
    batch, height, width, depth = lengths
    channels = depth // (block * block)
    cells = (batch, height, block, width, block, channels)
    row, pixel = width * depth, depth
    deep = (height * row, row, block * channels, pixel, channels, 1)
    return cells, deep, contiguous(cells)


@MOVES.register(DepthToSpace)
def _depth_to_space(operation: DepthToSpace, ins: _Shapes, _: _Shapes) -> list[Move]:
    cells, deep, wide = _blocks(ins[0], operation.block)
    return [_one(cells, deep, wide)]


@MOVES.register(SpaceToDepth)
def _space_to_depth(operation: SpaceToDepth, _: _Shapes, outs: _Shapes) -> list[Move]:
    cells, deep, wide = _blocks(outs[0], operation.block)
    return [_one(cells, wide, deep)]
