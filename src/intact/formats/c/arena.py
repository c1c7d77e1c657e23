"""Where buffers lie in one static arena: those that live at the same time do not overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

ALIGNMENT = 4
"""Bytes: what kernels that read words (CMSIS-NN's do) want of a buffer's start."""


@dataclass(frozen=True)
class Buffer:
    """Memory that something needs for a while.

    Attributes:
        name: Of what lies in it.
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
