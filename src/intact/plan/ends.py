"""Names of the places where a tensor can be quantised: one end of one edge of the graph."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from intact.errors import PlanError


class Direction(StrEnum):
    """Whether an end is where a node reads a tensor or where it writes one."""

    INPUT = "input"
    OUTPUT = "output"


@dataclass(frozen=True, order=True)
class TensorEnd:
    """One input or output slot of one node.

    Configs belong to ends and not to tensors, because two consumers may quantise the same
    tensor differently (PPQ document, "Tensor Quantization Config").

    >>> str(TensorEnd("conv1", Direction.INPUT, 0))
    'conv1.input[0]'
    >>> TensorEnd.parse("block/conv.1.output[0]").node
    'block/conv.1'
    """

    node: str
    direction: Direction
    slot: int

    @staticmethod
    def input(node: str, slot: int) -> TensorEnd:
        """Return the end where ``node`` reads its input ``slot``."""
        return TensorEnd(node, Direction.INPUT, slot)

    @staticmethod
    def output(node: str, slot: int = 0) -> TensorEnd:
        """Return the end where ``node`` writes its output ``slot``."""
        return TensorEnd(node, Direction.OUTPUT, slot)

    @staticmethod
    def parse(text: str) -> TensorEnd:
        """Read the form that ``str`` writes.

        Raises:
            PlanError: The text is not of the form ``NODE.input[K]`` or ``NODE.output[K]``.
        """
        for direction in Direction:
            head, mark, tail = text.rpartition(f".{direction}[")
            if mark and head and tail.endswith("]") and tail[:-1].isdecimal():
                return TensorEnd(head, direction, int(tail[:-1]))
        raise PlanError(
            f"{text!r} does not name a tensor end", remedy="write NODE.input[K] or NODE.output[K]"
        )

    def __str__(self) -> str:
        return f"{self.node}.{self.direction}[{self.slot}]"
