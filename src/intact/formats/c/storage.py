"""Decides where the tensors of a C program lie: with the caller, in the arena, in each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from intact.formats.c.moves import view_of
from intact.program import Program, Step, Tensor
from intact.program.operations import ELEMENTWISE, Softmax
from intact.program.passes.inference import Lengths

ALIGNMENT = 4
"""Bytes: what kernels that read words (CMSIS-NN's do) want of a buffer's start."""


@dataclass(frozen=True)
class Buffer:
    """Memory that something needs for a while.

    Attributes:
        name: What lies in it.
        size: Bytes, not negative.
        first: The step that writes it first.
        last: The last step that reads it, not before ``first``; both ends count as lived.
    """

    name: str
    size: int
    first: int
    last: int

    @property
    def room(self) -> int:
        """Bytes that it takes: its size, rounded up to the alignment."""
        return -(-self.size // ALIGNMENT) * ALIGNMENT

    def meets(self, other: Buffer) -> bool:
        """Whether both live at one time."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Arena:
    """A plan of memory.

    Attributes:
        size: Bytes of the arena.
        lower_bound: Bytes below which no plan can be: the most that live at one time.
        offsets: Where each buffer starts, by name.
    """

    size: int
    lower_bound: int
    offsets: dict[str, int]


def plan_arena(buffers: Sequence[Buffer]) -> Arena:
    """Place buffers; the same ones in the same order always lie alike.

    Buffers are placed one by one, each into the smallest gap that holds it between those already
    placed that it meets (greedy by best fit; Pisarchyk and Lee, "Efficient Memory Management for
    Deep Neural Net Inference", 2020). What is best placed first differs from net to net, so
    several orders are tried and the smallest arena is taken.
    """
    bound = _most_alive(buffers)
    best: Arena | None = None
    for order in _ORDERS:
        offsets = _place(sorted(buffers, key=order))
        size = max((offsets[each.name] + each.room for each in buffers), default=0)
        if best is None or size < best.size:
            best = Arena(size, bound, offsets)
        # No plan can be smaller.
        if size == bound:
            break
    return best if best is not None else Arena(0, 0, {})


def _lifetime(buffer: Buffer) -> int:
    return buffer.last - buffer.first + 1


_ORDERS: tuple[Callable[[Buffer], tuple[int, ...]], ...] = (
    lambda each: (-each.room, each.first),
    lambda each: (-each.room * _lifetime(each), each.first),
    lambda each: (-_lifetime(each), -each.room, each.first),
    lambda each: (each.first, -each.room),
    lambda each: (-each.last, -each.room),
)


def _most_alive(buffers: Sequence[Buffer]) -> int:
    """Return the most bytes alive at one time; the most are alive when some buffer begins."""
    starts = {each.first for each in buffers}
    return max(
        (sum(each.room for each in buffers if each.first <= at <= each.last) for at in starts),
        default=0,
    )


def _place(ordered: Sequence[Buffer]) -> dict[str, int]:
    offsets: dict[str, int] = {}
    placed: list[Buffer] = []
    for buffer in ordered:
        taken = sorted(
            (offsets[each.name], offsets[each.name] + each.room)
            for each in placed
            if each.meets(buffer)
        )
        offsets[buffer.name] = _smallest_gap(taken, buffer.room)
        placed.append(buffer)
    return offsets


def _smallest_gap(taken: Sequence[tuple[int, int]], room: int) -> int:
    """Return the start of the smallest gap of at least ``room`` bytes; the end is the last resort.

    >>> _smallest_gap([(0, 8), (16, 20), (24, 32)], 4)
    20
    """
    best, best_width, end = -1, 0, 0
    for start, stop in taken:
        width = start - end
        if width >= room and (best < 0 or width < best_width):
            best, best_width = end, width
        end = max(end, stop)
    return best if best >= 0 else end


_IN_PLACE = (*ELEMENTWISE, Softmax)
"""Their kernels read an element for the last time before they write the one in its place."""


@dataclass(frozen=True)
class Location:
    """Where a tensor starts: so many elements into another one, its root (which may be itself)."""

    root: str
    start: int = 0


@dataclass(frozen=True)
class Places:
    """Where every tensor lies.

    Attributes:
        arena: Where the roots lie that are neither the caller's nor constant.
        buffers: What the arena holds.
        copies: Outputs that lie elsewhere and are copied to the caller last, by output name.
    """

    arena: Arena
    buffers: tuple[Buffer, ...]
    copies: tuple[str, ...]
    _spots: Mapping[str, Location]
    _callers: Mapping[str, str]

    def pointer(self, name: str) -> str:
        """Return an expression that points to the first element of an activation."""
        spot = self._spots[name]
        base = self._callers.get(spot.root)
        start = spot.start
        if base is None:
            base, start = "arena", start + self.arena.offsets[spot.root]
        return f"{base} + {start}" if start else base


def plan_places(
    program: Program,
    shapes: Mapping[str, Lengths],
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
) -> Places:
    """Decide where the tensors of a program lie.

    Args:
        program: The program.
        shapes: Lengths of its tensors, by name.
        inputs: The parameter that points to an input, by input name.
        outputs: The parameter that points to an output, by output name.
    """
    planner = _Planner(program, shapes)
    callers = {program.inputs[name].name: parameter for name, parameter in inputs.items()}
    copies = []
    planner.views(set(callers))
    for name, parameter in outputs.items():
        tensor = program.outputs[name]
        # An output that is a constant lies nowhere, and is copied from flash.
        spot = planner.spots.get(tensor.name)
        whole = spot is not None and planner.size(spot.root) == planner.size(tensor.name)
        # A part of something larger cannot lie with the caller, nor what an input or another output
        # holds already.
        if spot is None or not whole or spot.root in callers:
            copies.append(name)
        else:
            callers[spot.root] = parameter
    # In this order: a result may only take the place of what is not copied out at the end.
    planner.keep({program.outputs[name].name for name in copies})
    planner.in_place(set(callers))
    buffers = planner.buffers(set(callers))
    return Places(plan_arena(buffers), buffers, tuple(copies), planner.spots, callers)


class _Planner:
    def __init__(self, program: Program, shapes: Mapping[str, Lengths]) -> None:
        self.spots: dict[str, Location] = {}
        self._steps = program.steps
        self._shapes = shapes
        self._last: dict[str, int] = {}
        self._first: dict[str, int] = {}
        for tensor in program.inputs.values():
            self.spots[tensor.name] = Location(tensor.name)

    def size(self, name: str) -> int:
        return math.prod(self._shapes[name])

    def views(self, inputs: set[str]) -> None:
        """Find roots, and how long each lives."""
        for name in inputs:
            # Inputs are written before the first step, and belong to the caller: nothing may
            # overwrite them.
            self._first[name] = self._last[name] = -1
        for index, step in enumerate(self._steps):
            for tensor in step.activations:
                self._last[self.spots[tensor.name].root] = index
            for slot, tensor in enumerate(step.outputs):
                self.spots[tensor.name] = self._view(step, slot) or Location(tensor.name)
                root = self.spots[tensor.name].root
                # A view lengthens the life of what it lies in.
                self._first.setdefault(root, index)
                self._last[root] = index

    def _view(self, step: Step, slot: int) -> Location | None:
        source = step.inputs[0] if step.inputs else None
        if source is None or source.is_constant:
            return None
        start = view_of(step, slot, self._shapes)
        if start is None:
            return None
        spot = self.spots[source.name]
        return Location(spot.root, spot.start + start)

    def keep(self, names: set[str]) -> None:
        """Let what is copied to the caller live to the end."""
        for name in names & self.spots.keys():
            self._last[self.spots[name].root] = len(self._steps)

    def in_place(self, callers: set[str]) -> None:
        """Let results take the place of operands that nothing reads afterwards."""
        for index, step in enumerate(self._steps):
            if not isinstance(step.operation, _IN_PLACE):
                continue
            result = step.outputs[0]
            # A view needs no place, and what the caller gets has one.
            if self.spots[result.name].root != result.name or result.name in callers:
                continue
            for operand in step.activations:
                if self._may_take(operand, result, step, index, callers):
                    self._join(result.name, self.spots[operand.name].root)
                    break

    def _may_take(
        self, operand: Tensor, result: Tensor, step: Step, index: int, callers: set[str]
    ) -> bool:
        spot = self.spots[operand.name]
        return (
            self._shapes[operand.name] == self._shapes[result.name]
            and spot.start == 0
            and self.size(spot.root) == self.size(result.name)
            and self._last[spot.root] == index
            and spot.root not in callers
            and all(
                other.name == operand.name or self.spots[other.name].root != spot.root
                for other in step.activations
            )
        )

    def _join(self, name: str, root: str) -> None:
        for each, spot in self.spots.items():
            if spot.root == name:
                self.spots[each] = Location(root, spot.start)
        self._last[root] = self._last[name]

    def buffers(self, callers: set[str]) -> tuple[Buffer, ...]:
        roots = dict.fromkeys(spot.root for spot in self.spots.values())
        return tuple(
            Buffer(root, self.size(root), self._first[root], self._last[root])
            for root in roots
            if root not in callers
        )
