"""What the makers of operators draw from: tensors, choices and the model so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.models import ModelBuilder

Shape = tuple[int, ...]
"""Without the batch."""
_Choice = TypeVar("_Choice")

MOST = 2048
"""Elements of a sample; larger results are not made."""


@dataclass
class Draw:
    """The model that is built, and the numbers that decide.

    Attributes:
        b: The model so far.
        shapes: Tensors by name, in the order in which they were made.
        codes: Numbers from 0 to 255, used one after the other and then again.
    """

    b: ModelBuilder
    shapes: dict[str, Shape]
    codes: Sequence[int] = (0,)
    used: int = field(default=0)

    def number(self, below: int) -> int:
        code = self.codes[self.used % len(self.codes)]
        self.used += 1
        return code % below

    def choice(self, among: Sequence[_Choice]) -> _Choice:
        return among[self.number(len(among))]

    def data(self, *ranks: int, where: Callable[[Shape], bool] = lambda _: True) -> str | None:
        """A tensor of one of these ranks, the batch included; newer ones are first choices."""
        fit = [n for n, s in self.shapes.items() if len(s) + 1 in (ranks or (2, 3, 4)) and where(s)]
        return self.choice(fit[::-1]) if fit else None

    def made(self, op_type: str, *inputs: str, shape: Shape, **attributes: Any) -> str:
        """Add a node whose result can be read by others."""
        out = self.b.node(op_type, *inputs, **attributes)
        self.shapes[out] = shape
        return out

    def positive(self, x: str) -> str:
        """Not below 0.5: what logarithms and quotients take."""
        return self.b.node("Add", self.b.node("Abs", x), self.b.scalar(0.5))

    def bounded(self, x: str) -> str:
        """Between -0.9 and 0.9."""
        return self.b.node("Mul", self.b.node("Tanh", x), self.b.scalar(0.9))


Maker = Callable[[Draw, str], str | None]
"""Adds the operator of this name."""
OPERATORS: dict[str, Maker] = {}


def makes(names: str) -> Callable[[Maker], Maker]:
    """Register a function for the operators of these names."""

    def register(function: Maker) -> Maker:
        OPERATORS.update(dict.fromkeys(names.split(), function))
        return function

    return register
