"""Random networks of cheap steps that share, split and reuse memory in every way."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from intact.program import Program, Step, Tensor
from intact.program import operations as ops
from intact.program.operations import Binary, PoolKind
from tests.formats.c.cases import DOUBLE
from tests.program.one_step import int8

ENCODING = int8(0.05, 3)


class _Network:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.steps: list[Step] = []
        self.tensors: list[Tensor] = []

    def tensor(self, shape: tuple[int, ...]) -> Tensor:
        made = Tensor(f"t{len(self.tensors)}", (None, *shape[1:]), ENCODING)
        self.tensors.append(made)
        return made

    def pick(self, like: tuple[int, ...] | None = None) -> Tensor:
        """Return a tensor, a late one rather than an early one."""
        fits = [t for t in self.tensors if like is None or shape_of(t) == like]
        return self.random.choice(fits[-4:])

    def add(self, operation: ops.Operation, inputs: list[Tensor], *shapes: tuple[int, ...]) -> None:
        results = tuple(self.tensor(shape) for shape in shapes)
        self.steps.append(Step(f"s{len(self.steps)}", operation, tuple(inputs), results, DOUBLE))

    def grow(self) -> None:
        self.random.choice(_GROWTHS)(self)


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    return tuple(1 if length is None else length for length in tensor.shape)


def _reshape(net: _Network) -> None:
    source = net.pick()
    rest = math.prod(shape_of(source))
    height = net.random.choice([each for each in (1, 2, 3, 4) if rest % each == 0])
    net.add(ops.Reshape((-1, height, rest // height)), [source], (1, height, rest // height))


def _pair(net: _Network) -> None:
    first = net.pick()
    second = net.pick(shape_of(first))
    kind = net.random.choice([Binary.ADD, Binary.SUB, Binary.MAXIMUM])
    net.add(ops.Elementwise(kind), [first, second], shape_of(first))


def _broadcast(net: _Network) -> None:
    source = net.pick()
    *lead, last = shape_of(source)
    open_ends = (None,) * len(lead)
    first = ops.Slice((*open_ends, 0), (*open_ends, 1), (1,) * (len(lead) + 1))
    net.add(first, [source], (*lead, 1))
    net.add(ops.Elementwise(Binary.SUB), [source, net.tensors[-1]], (*lead, last))


def _split(net: _Network) -> None:
    source = net.pick()
    shape = shape_of(source)
    axis = net.random.randrange(1, len(shape))
    if shape[axis] < 2:
        return
    cut = net.random.randrange(1, shape[axis])
    sizes = (cut, shape[axis] - cut)
    parts = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
    net.add(ops.Split(axis, sizes), [source], *parts)


def _concat(net: _Network) -> None:
    first = net.pick()
    second = net.pick(shape_of(first))
    shape = shape_of(first)
    axis = len(shape) - 1
    if shape[axis] > 60:
        return
    net.add(ops.Concat(axis), [first, second], (*shape[:axis], 2 * shape[axis]))


def _turn(net: _Network) -> None:
    source = net.pick()
    shape = shape_of(source)
    order = (0, *net.random.sample(range(1, len(shape)), len(shape) - 1))
    net.add(ops.Transpose(order), [source], tuple(shape[axis] for axis in order))


def _pool(net: _Network) -> None:
    source = net.pick()
    shape = shape_of(source)
    if len(shape) != 3 or shape[1] < 2:
        return
    pool = ops.Pool(PoolKind.MAX, (2,), (1,), ((0, 0),))
    net.add(pool, [source], (1, shape[1] - 1, shape[2]))


_GROWTHS: list[Callable[[_Network], None]] = [
    *(_reshape, _pair, _pair, _broadcast, _split, _concat, _turn, _pool),
]


def random_program(seed: int, steps: int = 14) -> Program:
    """Return a network; its inputs, and results that others read, may be outputs too."""
    net = _Network(seed)
    inputs = [net.tensor((1, 4, 6)), net.tensor((1, 24))]
    while len(net.steps) < steps:
        net.grow()
    read = {tensor.name for step in net.steps for tensor in step.activations}
    outputs = [tensor for tensor in net.tensors[2:] if tensor.name not in read]
    outputs += net.random.sample(net.tensors, 3)
    return Program(
        {tensor.name: tensor for tensor in inputs},
        {f"o{at}": tensor for at, tensor in enumerate(outputs)},
        tuple(net.steps),
    )
