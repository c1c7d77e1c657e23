"""Random nets: a list of instructions, each an operator and some numbers, is a model.

Leaving out an instruction gives another model, so that what fails can be made small.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import onnx

from tests.models import ModelBuilder
from tests.nets.draw import MOST, Draw, Shape
from tests.nets.findings import shorter
from tests.nets.operators import OPERATORS
from tests.plans import Arrays

INPUTS: tuple[Shape, ...] = ((3, 8, 8), (4, 6, 5), (5, 6), (4, 8), (12,))
"""Shapes of the first input, without the batch."""

COMMON = ("Conv", "Conv", "Conv", "Relu", "Add", "MatMul", "Gemm", "Concat", "Mul", "MaxPool")
"""Drawn more often than others: what nets are made of."""

_CODES = 12


@dataclass(frozen=True)
class Instruction:
    """An operator and the numbers that decide its arguments."""

    operator: str
    codes: tuple[int, ...]


@dataclass(frozen=True)
class Net:
    """A random net.

    Attributes:
        first: Which of `INPUTS`.
        instructions: In order; what finds no tensor that fits is left out.
        seed: Of weights and samples.
    """

    first: int
    instructions: tuple[Instruction, ...]
    seed: int = 0

    @property
    def shape(self) -> Shape:
        """Of the input, without the batch."""
        return INPUTS[self.first % len(INPUTS)]

    def model(self) -> onnx.ModelProto:
        """The model; whatever nothing reads is an output."""
        b = ModelBuilder(seed=self.seed)
        draw = Draw(b, {b.input("x", ["batch", *self.shape]): self.shape})
        for each in self.instructions:
            _add(draw, each)
        read = {name for node in b.nodes for name in node.input}
        ends = [name for name in draw.shapes if name not in read]
        for name in ends:
            b.output(name, ["batch", *draw.shapes[name]])
        return b.build()

    def samples(self, count: int, seed: int = 1) -> Arrays:
        """Normal inputs, each with a level of its own."""
        random = np.random.default_rng((self.seed, seed))
        level = random.normal(size=(count, *(1 for _ in self.shape)))
        array = random.normal(size=(count, *self.shape)) + level
        return {"x": array.astype(np.float32)}

    def operators(self) -> set[str]:
        """Return what the net is made of."""
        return {each.operator for each in self.instructions}

    def without(self, operators: Collection[str]) -> Net:
        """Return the net that is left without some operators."""
        left = tuple(each for each in self.instructions if each.operator not in operators)
        return replace(self, instructions=left)


def _add(draw: Draw, instruction: Instruction) -> None:
    """Add an operator; undone where nothing fits or the result is too large."""
    b = draw.b
    before = len(b.nodes), len(b.initializers), dict(draw.shapes)
    draw.codes, draw.used = instruction.codes, 0
    out = OPERATORS[instruction.operator](draw, instruction.operator)
    sizes = [int(np.prod(draw.shapes[name])) for name in draw.shapes if name not in before[2]]
    if out is None or max(sizes, default=0) > MOST or min(sizes, default=1) < 1:
        del b.nodes[before[0] :], b.initializers[before[1] :]
        draw.shapes = before[2]


def random_net(seed: int, most: int = 9) -> Net:
    """A net from a seed."""
    random = Random(seed)
    names = (*sorted(OPERATORS), *COMMON * 8)
    instructions = tuple(
        Instruction(random.choice(names), tuple(random.randrange(256) for _ in range(_CODES)))
        for _ in range(random.randint(1, most))
    )
    return Net(random.randrange(len(INPUTS)), instructions, seed % 1000)


def smaller(net: Net) -> Iterator[Net]:
    """Yield the nets with fewer instructions."""
    return (Net(net.first, left, net.seed) for left in shorter(net.instructions))
