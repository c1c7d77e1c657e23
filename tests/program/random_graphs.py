"""Random models: operators of any kind one after the other, over tensors of any rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
import onnx

from tests.models import ModelBuilder

Value: TypeAlias = tuple[str, tuple[int, ...]]
"""A tensor and its shape, for a batch of two."""

BATCH = 2
_LARGEST = 4000


@dataclass
class RandomGraph:
    """A model that grows by one operator at a time.

    Attributes:
        builder: What was written so far.
        random: Where every choice comes from.
        values: All tensors, the newest last.
        dynamic: The batch has no length of its own, and stays in front.
    """

    builder: ModelBuilder
    random: np.random.Generator
    values: list[Value]
    dynamic: bool

    def below(self, *shape: int) -> str:
        """A constant of normal numbers."""
        return self.builder.constant(self.random.normal(size=shape).astype(np.float32))

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def among(self, low: int, high: int, count: int) -> list[int]:
        return [int(number) for number in self.random.integers(low, high, count)]

    def axis(self, shape: tuple[int, ...]) -> int:
        """An axis that is not a dynamic batch; the last one where there is no other."""
        return int(self.random.integers(min(int(self.dynamic), len(shape) - 1), len(shape)))

    def either_way(self, axis: int, shape: tuple[int, ...]) -> int:
        """The same axis, perhaps counted from the end."""
        return axis - len(shape) if self.chance(0.5) else axis


Grow: TypeAlias = Callable[[RandomGraph, str, tuple[int, ...]], Value | None]
"""Adds an operator that reads a tensor; None where it does not take such a one."""


def convolution(g: RandomGraph, x: str, shape: tuple[int, ...]) -> Value | None:
    if len(shape) not in {3, 4}:
        return None
    groups = shape[1] if g.chance(0.3) else 1
    channels = groups * int(g.random.integers(1, 4))
    kernel = [min(size, length) for size, length in zip(g.among(1, 4, 9), shape[2:], strict=False)]
    pads, strides = g.among(0, 2, 2 * len(kernel)), g.among(1, 3, len(kernel))
    weight = g.below(channels, shape[1] // groups, *kernel)
    bias = [g.below(channels)] if g.chance(0.5) else []
    name = g.builder.node("Conv", x, weight, *bias, group=groups, pads=pads, strides=strides)
    return name, (shape[0], channels, *_windows(shape[2:], kernel, pads, strides))


def pool(g: RandomGraph, x: str, shape: tuple[int, ...]) -> Value | None:
    if len(shape) not in {3, 4, 5}:
        return None
    kernel = [min(size, length) for size, length in zip(g.among(1, 4, 9), shape[2:], strict=False)]
    strides = g.among(1, 3, len(kernel))
    pads = [int(g.random.integers(size)) for size in kernel * 2]
    kind = "AveragePool" if g.chance(0.5) else "MaxPool"
    options: dict[str, Any] = (
        {"count_include_pad": 1} if kind == "AveragePool" and g.chance(0.4) else {}
    )
    name = g.builder.node(kind, x, kernel_shape=kernel, pads=pads, strides=strides, **options)
    return name, (*shape[:2], *_windows(shape[2:], kernel, pads, strides))


def _windows(
    lengths: tuple[int, ...], kernel: list[int], pads: list[int], strides: list[int]
) -> list[int]:
    rank = len(kernel)
    padded = [length + pads[k] + pads[k + rank] for k, length in enumerate(lengths)]
    return [(n - k) // s + 1 for n, k, s in zip(padded, kernel, strides, strict=True)]


def transpose(g: RandomGraph, x: str, shape: tuple[int, ...]) -> Value:
    first = int(g.dynamic)
    order = [*range(first), *(int(axis) for axis in g.random.permutation(range(first, len(shape))))]
    return g.builder.node("Transpose", x, perm=order), tuple(shape[axis] for axis in order)


def reshape(g: RandomGraph, x: str, shape: tuple[int, ...]) -> Value:
    """Split the elements, but for a dynamic batch, into up to four lengths."""
    first = int(g.dynamic)
    left, lengths = prod(shape[first:]), []
    for _ in range(int(g.random.integers(4))):
        lengths.append(int(g.random.choice([n for n in range(1, left + 1) if left % n == 0])))
        left //= lengths[-1]
    lengths.append(left)
    wanted = [-1, *lengths] if first else lengths
    return g.builder.node("Reshape", x, g.builder.ints(*wanted)), (*shape[:first], *lengths)


def concat(g: RandomGraph, x: str, shape: tuple[int, ...]) -> Value:
    axis = g.axis(shape)
    alike = [
        (name, other)
        for name, other in g.values
        if len(other) == len(shape)
        and all(a == b for k, (a, b) in enumerate(zip(shape, other, strict=True)) if k != axis)
    ]
    parts = [(x, shape), alike[int(g.random.integers(len(alike)))]]
    if g.chance(0.25) and not g.dynamic:
        other = (*shape[:axis], 2, *shape[axis + 1 :])
        parts.append((g.below(*other), other))
    total = sum(other[axis] for _, other in parts)
    name = g.builder.node("Concat", *(n for n, _ in parts), axis=g.either_way(axis, shape))
    return name, (*shape[:axis], total, *shape[axis + 1 :])


def cut(g: RandomGraph, x: str, shape: tuple[int, ...]) -> Value | None:
    """Slice an axis forwards or backwards, with limits that lie beyond it at times."""
    axis = g.axis(shape)
    if axis < int(g.dynamic):
        return None
    length, far = shape[axis], [2**63 - 1, -(2**63)]
    step = int(g.random.choice([1, 1, 2, -1, -2]))
    start, stop = (int(n) for n in g.random.choice([*range(-length - 2, length + 3), *far], 2))
    first, last = (n + length if n < 0 else n for n in (start, stop))
    if step > 0:
        taken = range(min(max(first, 0), length), min(max(last, 0), length), step)
    else:
        taken = range(min(max(first, 0), length - 1), min(max(last, -1), length - 1), step)
    if not taken:
        return None
    limits = [g.builder.ints(n) for n in (start, stop, g.either_way(axis, shape), step)]
    name = g.builder.node("Slice", x, *limits)
    return name, (*shape[:axis], len(taken), *shape[axis + 1 :])


def pad(g: RandomGraph, x: str, shape: tuple[int, ...]) -> Value:
    first, rank = int(g.dynamic), len(shape)
    before, after = ([0] * first + g.among(0, 3, rank - first) for _ in range(2))
    name = g.builder.node("Pad", x, g.builder.ints(*before, *after))
    return name, tuple(n + a + b for n, a, b in zip(shape, before, after, strict=True))


def reduction(g: RandomGraph, x: str, shape: tuple[int, ...]) -> Value | None:
    axis, keeps = g.axis(shape), int(g.random.integers(2))
    if axis < int(g.dynamic) or (len(shape) == 1 and not keeps):
        return None
    kind = str(g.random.choice(["ReduceMean", "ReduceMax", "ReduceMin"]))
    axes = [g.either_way(axis, shape)]
    name = g.builder.with_axes(kind, x, axes, input_since=18, keepdims=keeps)
    return name, (*shape[:axis], *[1] * keeps, *shape[axis + 1 :])


def with_constant(g: RandomGraph, x: str, shape: tuple[int, ...]) -> Value:
    """Add and the like with a constant of lower, equal or higher rank."""
    tail = shape[int(g.random.integers(int(g.dynamic), len(shape) + 1)) :]
    lengths = [length if g.chance(0.6) else 1 for length in tail]
    if len(lengths) == len(shape) < 4 and not g.dynamic and g.chance(0.3):
        lengths = [2, *lengths]
    pair = [x, g.below(*lengths)]
    g.random.shuffle(pair)
    kind = str(g.random.choice(["Add", "Sub", "Mul", "Max"]))
    return g.builder.node(kind, *pair), np.broadcast_shapes(shape, tuple(lengths))


def with_another(g: RandomGraph, x: str, shape: tuple[int, ...]) -> Value:
    """Add and the like of two activations, of different ranks where the batch is none."""
    fitting = [(x, shape)]
    for name, other in g.values:
        pairs = zip(reversed(shape), reversed(other), strict=False)
        if all(a == b or 1 in {a, b} for a, b in pairs) and (
            len(other) == len(shape) or not g.dynamic
        ):
            fitting.append((name, other))
    name, other = fitting[int(g.random.integers(len(fitting)))]
    kind = str(g.random.choice(["Add", "Sub", "Mul", "Min"]))
    return g.builder.node(kind, x, name), np.broadcast_shapes(shape, other)


def function(g: RandomGraph, x: str, shape: tuple[int, ...]) -> Value:
    kinds = ["Relu", "Sigmoid", "Tanh", "LeakyRelu", "Abs", "Erf", "Identity"]
    return g.builder.node(str(g.random.choice(kinds)), x), shape


def prelu(g: RandomGraph, x: str, shape: tuple[int, ...]) -> Value:
    tail = shape[int(g.random.integers(1, len(shape) + 1)) :] or (1,)
    return g.builder.node("PRelu", x, g.below(*(n if g.chance(0.6) else 1 for n in tail))), shape


def softmax(g: RandomGraph, x: str, shape: tuple[int, ...]) -> Value:
    axis = g.axis(shape)
    return g.builder.node("Softmax", x, axis=g.either_way(axis, shape)), shape


def dense(g: RandomGraph, x: str, shape: tuple[int, ...]) -> Value | None:
    if len(shape) < 2:
        return None
    columns = int(g.random.integers(1, 6))
    return g.builder.node("MatMul", x, g.below(shape[-1], columns)), (*shape[:-1], columns)


def gather(g: RandomGraph, x: str, shape: tuple[int, ...]) -> Value | None:
    axis = g.axis(shape)
    size = [(), (2,), (2, 2)][int(g.random.integers(3))]
    if axis < int(g.dynamic) or not 1 < len(shape) + len(size) - 1 < 6:
        return None
    indices = g.random.integers(-shape[axis], shape[axis], size)
    constant = g.builder.constant(np.asarray(indices, np.int64))
    name = g.builder.node("Gather", x, constant, axis=g.either_way(axis, shape))
    return name, (*shape[:axis], *size, *shape[axis + 1 :])


def expand(g: RandomGraph, x: str, shape: tuple[int, ...]) -> Value:
    first = int(g.dynamic)
    lengths = [1] * first + [n if n > 1 else int(g.random.integers(1, 4)) for n in shape[first:]]
    return g.builder.node("Expand", x, g.builder.ints(*lengths)), np.broadcast_shapes(
        shape, tuple(lengths)
    )


GROW: tuple[Grow, ...] = (
    convolution, pool, transpose, transpose, reshape, concat, cut, pad, reduction, with_constant,
    with_constant, with_another, function, prelu, softmax, dense, gather, expand,
)  # fmt: skip


def random_graph(seed: int, operators: int) -> onnx.ModelProto:
    """A model of up to so many operators; what nobody reads is an output, and some that is read."""
    random = np.random.default_rng(seed)
    builder = ModelBuilder(int(random.choice([13, 17, 18])), seed=seed)
    dynamic = bool(random.integers(2))
    shape = (
        BATCH,
        *(int(n) for n in random.integers(2, 6, int(random.choice([1, 2, 3, 3, 3, 4])))),
    )
    x = builder.input("x", ["batch" if dynamic else BATCH, *shape[1:]])
    g = RandomGraph(builder, random, [(x, shape)], dynamic)
    while len(builder.nodes) < operators:
        back = min(int(random.geometric(0.6)), len(g.values))
        grown = GROW[int(random.integers(len(GROW)))](g, *g.values[-back])
        if grown is None:
            continue
        g.values.append(grown)
        if prod(grown[1]) > _LARGEST:
            break
    read = {name for node in builder.nodes for name in node.input}
    for name, _ in g.values[1:]:
        if name not in read or g.chance(0.1):
            builder.output(name)
    return builder.build()
