"""A slow reference of what steps compute: exact fractions, one element at a time.

It shares nothing with the integer engine but the description of a step, and says how far a code
lies from the real number that it rounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from intact.program import Encoding, Step, Tensor
from intact.program.operations import (
    BatchMatMul,
    Binary,
    Bounds,
    Convolution,
    Elementwise,
    FullyConnected,
    Pool,
    PoolKind,
)

Codes = np.ndarray[Any, Any]
Place = tuple[int, ...]


def _real(tensor: Tensor, array: Codes, place: Place) -> Fraction:
    """What an element stands for."""
    encoding, element = tensor.encoding, array[place]
    if encoding is None:
        return Fraction(float(element))
    at = () if encoding.axis is None else (place[encoding.axis % array.ndim],)
    return (int(element) - int(encoding.zero_point[at])) * Fraction(float(encoding.scale[at]))


class _Operands:
    """The inputs of a step as reals, by slot."""

    def __init__(self, step: Step, values: dict[str, Codes]) -> None:
        self._tensors = step.inputs
        self.arrays = [
            None if t is None else (t.data if t.data is not None else values[t.name])
            for t in step.inputs
        ]

    def __call__(self, slot: int, place: Place) -> Fraction:
        tensor, array = self._tensors[slot], self.arrays[slot]
        assert tensor is not None
        assert array is not None
        return _real(tensor, array, place)

    def has(self, slot: int) -> bool:
        return len(self.arrays) > slot and self.arrays[slot] is not None

    def shape(self, slot: int) -> Place:
        array = self.arrays[slot]
        assert array is not None
        return array.shape


def _added(x: _Operands, channel: int, place: Place) -> Fraction:
    """Bias and residual."""
    bias = x(2, (channel,)) if x.has(2) else Fraction(0)
    return bias + (x(3, place) if x.has(3) else 0)


def _convolution(step: Step, x: _Operands, place: Place) -> Fraction:
    o = step.operation
    assert isinstance(o, Convolution)
    n, *at, channel = place
    outputs, *kernel, depth = x.shape(1)
    first = channel // (outputs // o.groups) * depth
    sizes = x.shape(0)[1:-1]
    total = _added(x, channel, place)
    for tap in itertools.product(*map(range, kernel)):
        spots = [
            a * s + t * d - p[0]
            for a, s, t, d, p in zip(at, o.strides, tap, o.dilations, o.pads, strict=True)
        ]
        if all(0 <= spot < size for spot, size in zip(spots, sizes, strict=True)):
            for c in range(depth):
                total += x(0, (n, *spots, first + c)) * x(1, (channel, *tap, c))
    return total


def _fully_connected(_step: Step, x: _Operands, place: Place) -> Fraction:
    *outer, channel = place
    products = (x(0, (*outer, k)) * x(1, (channel, k)) for k in range(x.shape(1)[1]))
    return sum(products, _added(x, channel, place))


def _batch_matmul(_step: Step, x: _Operands, place: Place) -> Fraction:
    *outer, row, column = place
    lefts, rights = (x.shape(slot)[:-2] for slot in (0, 1))
    left = _broadcast(tuple(outer), lefts)
    right = _broadcast(tuple(outer), rights)
    inner = range(x.shape(0)[-1])
    return sum((x(0, (*left, row, k)) * x(1, (*right, k, column)) for k in inner), Fraction(0))


def _broadcast(place: Place, shape: Place) -> Place:
    """The element of an operand that is read at a place of the result."""
    last = place[len(place) - len(shape) :]
    return tuple(0 if size == 1 else at for at, size in zip(last, shape, strict=True))


_BINARY: dict[Binary, Callable[[Fraction, Fraction], Fraction]] = {
    Binary.ADD: lambda a, b: a + b,
    Binary.SUB: lambda a, b: a - b,
    Binary.MUL: lambda a, b: a * b,
}


def _elementwise(step: Step, x: _Operands, place: Place) -> Fraction | None:
    assert isinstance(step.operation, Elementwise)
    kind = _BINARY.get(step.operation.kind)
    a, b = (x(slot, _broadcast(place, x.shape(slot))) for slot in (0, 1))
    return None if kind is None else kind(a, b)


def _pool(step: Step, x: _Operands, place: Place) -> Fraction | None:
    o = step.operation
    assert isinstance(o, Pool)
    n, *at, channel = place
    sizes = x.shape(0)[1:-1]
    spans = [
        range(max(0, a * s - p[0]), min(size, a * s - p[0] + k))
        for a, s, p, k, size in zip(at, o.strides, o.pads, o.kernel, sizes, strict=True)
    ]
    window = [x(0, (n, *spots, channel)) for spots in itertools.product(*spans)]
    if not window or o.count_pads:
        return None
    return max(window) if o.kind is PoolKind.MAX else sum(window, Fraction(0)) / len(window)


_REFERENCES: dict[type, Callable[[Step, _Operands, Place], Fraction | None]] = {
    Convolution: _convolution,
    FullyConnected: _fully_connected,
    BatchMatMul: _batch_matmul,
    Elementwise: _elementwise,
    Pool: _pool,
}


def distances(step: Step, values: dict[str, Codes]) -> Iterator[tuple[Place, float]]:
    """How far each code of a step lies from the real number that it stands for, in steps.

    A code at the end of its range, or of the activation's, stands for all numbers beyond.

    Args:
        step: One whose result has codes; others give nothing.
        values: Every tensor of the program, by name.
    """
    reference, (output, *_) = _REFERENCES.get(type(step.operation)), step.outputs
    encoding = output.encoding
    held = [tensor for tensor in step.inputs[:2] if tensor is not None]
    if reference is None or encoding is None or any(t.encoding is None for t in held):
        return
    operands, array = _Operands(step, values), values[output.name]
    bounds = getattr(step.operation, "bounds", Bounds())
    for place in np.ndindex(array.shape):
        real = reference(step, operands, place)
        if real is not None:
            yield place, abs(float(_clamped(real, bounds, encoding, place) - int(array[place])))


def _clamped(real: Fraction, bounds: Bounds, encoding: Encoding, place: Place) -> Fraction:
    """A real number in steps, clamped as codes are."""
    at = () if encoding.axis is None else (place[encoding.axis % len(place)],)
    scale, zero = Fraction(float(encoding.scale[at])), int(encoding.zero_point[at])
    if np.isfinite(bounds.low):
        real = max(real, Fraction(float(bounds.low)))
    if np.isfinite(bounds.high):
        real = min(real, Fraction(float(bounds.high)))
    steps = real / scale + zero
    return min(max(steps, Fraction(encoding.quant_min)), Fraction(encoding.quant_max))
