"""Elements at equal distances: several operands over one grid, with as few axes as possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from intact.formats.c.library import AXES
from intact.formats.c.refusal import Refusal


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
    padded = (1,) * (len(target) - len(lengths)) + tuple(lengths)
    strides = contiguous(padded)
    return tuple(
        0 if length == 1 else stride for length, stride in zip(padded, strides, strict=True)
    )


def grid(lengths: Sequence[int], operands: Sequence[Sequence[int]]) -> Grid:
    """Return a grid with the strides of its operands, neighbouring axes joined where they can be.

    Raises:
        Refusal: More axes are left than the kernels have.
    """
    axes = [
        (length, tuple(operand[axis] for operand in operands))
        for axis, length in enumerate(lengths)
        if length != 1
    ]
    joined: list[tuple[int, tuple[int, ...]]] = []
    for length, strides in axes:
        if joined and _continues(joined[-1][1], length, strides):
            joined[-1] = (joined[-1][0] * length, strides)
        else:
            joined.append((length, strides))
    *outer, (length, steps) = joined or [(1, (1,) * len(operands))]
    if len(outer) > AXES:
        raise Refusal(f"it takes {len(outer) + 1} axes to say which elements move", "use fewer")
    return Grid(
        tuple(each for each, _ in outer),
        tuple(tuple(strides[at] for _, strides in outer) for at in range(len(operands))),
        length,
        steps,
    )


def _continues(outer: Sequence[int], length: int, inner: Sequence[int]) -> bool:
    return all(far == length * near for far, near in zip(outer, inner, strict=True))
