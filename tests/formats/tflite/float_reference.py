"""What operations compute in float64, by the plainest NumPy: for tests of what is written."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import erf
from typing import Any, TypeAlias

import numpy as np

from intact.ops import functions
from intact.ops.functions import Unary
from intact.program import Step
from intact.program.operations import (
    BatchMatMul,
    Binary,
    Bounds,
    Concat,
    Convolution,
    DepthToSpace,
    Elementwise,
    Expand,
    FullyConnected,
    Function,
    Gather,
    Pad,
    Pool,
    PoolKind,
    PRelu,
    Reduce,
    Reduction,
    Reshape,
    Resize,
    ResizeMode,
    Slice,
    Softmax,
    SpaceToDepth,
    Split,
    Tile,
    Transpose,
    TransposedConvolution,
)

Floats: TypeAlias = Any
"""Arrays of float64."""

BINARY: dict[Binary, Callable[[Floats, Floats], Floats]] = {
    Binary.ADD: np.add,
    Binary.SUB: np.subtract,
    Binary.MUL: np.multiply,
    Binary.DIV: np.divide,
    Binary.SQUARED_DIFFERENCE: lambda a, b: (a - b) ** 2,
    Binary.MINIMUM: np.minimum,
    Binary.MAXIMUM: np.maximum,
}

UNARY: dict[Unary, Callable[[Floats], Floats]] = {
    functions.clamp: lambda x: x,
    functions.sigmoid: lambda x: 1 / (1 + np.exp(-x)),
    functions.tanh: np.tanh,
    functions.hard_swish: lambda x: x * np.clip(x + 3, 0, 6) / 6,
    functions.gelu: lambda x: x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2,
    functions.mish: lambda x: x * np.tanh(np.log1p(np.exp(x))),
    functions.softplus: lambda x: np.log1p(np.exp(x)),
    functions.rsqrt: lambda x: 1 / np.sqrt(x),
    functions.sqrt: np.sqrt,
    functions.exp: np.exp,
    functions.log: np.log,
    functions.absolute: np.abs,
    functions.negative: np.negative,
    functions.reciprocal: np.reciprocal,
}

REDUCTION: dict[Reduction, Callable[..., Floats]] = {
    Reduction.MEAN: np.mean,
    Reduction.SUM: np.sum,
    Reduction.MAX: np.max,
    Reduction.MIN: np.min,
}


def evaluate(step: Step, inputs: Sequence[Floats | None]) -> list[Floats]:
    """Return the outputs of a step on real numbers, by slot."""
    operation = step.operation
    data = inputs[0]
    assert data is not None
    match operation:
        case Convolution() | TransposedConvolution() | FullyConnected():
            weight, bias = inputs[1], inputs[2] if len(inputs) > 2 else None
            assert weight is not None
            result = _weighted(step, data, weight)
            return [_clamp(result if bias is None else result + bias, operation.bounds)]
        case BatchMatMul(bounds=bounds):
            return [_clamp(data @ inputs[1], bounds)]
        case Elementwise(kind=kind, bounds=bounds):
            other = inputs[1]
            assert other is not None
            return [_clamp(BINARY[kind](data, other), bounds)]
        case Function(kind=functions.leaky_relu, options=(slope,), bounds=bounds):
            return [_clamp(np.where(data < 0, data * slope, data), bounds)]
        case Function(kind=functions.elu, options=(height,), bounds=bounds):
            below = height * np.expm1(np.minimum(data, 0))
            return [_clamp(np.where(data > 0, data, below), bounds)]
        case Function(kind=functions.gelu, options=("tanh",), bounds=bounds):
            inner = np.sqrt(2 / np.pi) * (data + 0.044715 * data**3)
            return [_clamp(data * (1 + np.tanh(inner)) / 2, bounds)]
        case Function(kind=kind, bounds=bounds):
            return [_clamp(UNARY[kind](data), bounds)]
        case PRelu():
            return [np.where(data < 0, data * inputs[1], data)]
        case Softmax(axis=axis, log=log):
            powers = np.exp(data - data.max(axis, keepdims=True))
            shares = powers / powers.sum(axis, keepdims=True)
            return [np.log(shares) if log else shares]
        case Pool():
            return [_clamp(_pool(operation, data, step.outputs[0].shape[1:-1]), operation.bounds)]
        case Reduce(kind=kind, axes=axes, keep_dims=keep):
            return [REDUCTION[kind](data, axis=axes, keepdims=keep)]
        case Resize():
            return [_resize(operation, data)]
    return _moved(operation, data, [each for each in inputs if each is not None])


def _weighted(step: Step, data: Floats, weight: Floats) -> Floats:
    lengths = step.outputs[0].shape[1:-1]
    match step.operation:
        case Convolution():
            return _convolution(step.operation, data, weight, lengths)
        case TransposedConvolution():
            return _transposed(step.operation, data, weight, lengths)
        case _:
            return data @ weight.T


def _moved(operation: object, data: Floats, inputs: list[Floats]) -> list[Floats]:
    match operation:
        case Concat(axis=axis):
            return [np.concatenate(inputs, axis)]
        case Pad(pads=pads):
            return [np.pad(data, pads)]
        case Reshape(shape=shape):
            return [data.reshape(shape)]
        case Transpose(permutation=permutation):
            return [data.transpose(permutation)]
        case Slice(starts=starts, stops=stops, steps=steps):
            return [data[tuple(itertools.starmap(slice, zip(starts, stops, steps, strict=True)))]]
        case Split(axis=axis, sizes=sizes):
            return np.split(data, np.cumsum(sizes)[:-1], axis)
        case Gather(axis=axis, indices=indices):
            return [np.take(data, indices, axis)]
        case Tile(repeats=repeats):
            return [np.tile(data, repeats)]
        case Expand(shape=shape):
            padded = (1,) * (len(shape) - data.ndim) + data.shape
            lengths = [p if n < 0 else n for n, p in zip(shape, padded, strict=True)]
            return [np.broadcast_to(data, lengths)]
        case DepthToSpace(block=b):
            n, h, w, c = data.shape
            split = data.reshape(n, h, w, b, b, c // b // b)
            return [split.transpose(0, 1, 3, 2, 4, 5).reshape(n, h * b, w * b, c // b // b)]
        case SpaceToDepth(block=b):
            n, h, w, c = data.shape
            split = data.reshape(n, h // b, b, w // b, b, c)
            return [split.transpose(0, 1, 3, 2, 4, 5).reshape(n, h // b, w // b, c * b * b)]
        case _:  # Quantize and its like
            return [data]


def _clamp(values: Floats, bounds: Bounds) -> Floats:
    return np.clip(values, bounds.low, bounds.high)


def _windows(
    data: Floats,
    lengths: Sequence[int | None],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Floats:
    """Return ``[N, *out, *kernel, C]``."""
    result: Floats = np.zeros((data.shape[0], *lengths, *kernel, data.shape[-1]))
    for out in itertools.product(*(range(n or 0) for n in lengths)):
        for tap in itertools.product(*map(range, kernel)):
            place = tuple(
                o * s + t * d for o, s, t, d in zip(out, strides, tap, dilations, strict=True)
            )
            result[(slice(None), *out, *tap)] = data[(slice(None), *place)]
    return result


def _convolution(
    operation: Convolution, data: Floats, weight: Floats, lengths: Sequence[int | None]
) -> Floats:
    padded = np.pad(data, ((0, 0), *operation.pads, (0, 0)))
    kernel = weight.shape[1:-1]
    windows = _windows(padded, lengths, kernel, operation.strides, operation.dilations)
    groups = operation.groups
    results = []
    for data_part, weight_part in zip(
        np.split(windows, groups, -1), np.split(weight, groups, 0), strict=True
    ):
        axes = len(kernel) + 1
        over = range(data_part.ndim - axes, data_part.ndim)
        results.append(np.tensordot(data_part, weight_part, (list(over), range(1, axes + 1))))
    return np.concatenate(results, -1)


def _transposed(
    operation: TransposedConvolution, data: Floats, weight: Floats, lengths: Sequence[int | None]
) -> Floats:
    full = [n + sum(p) for n, p in zip((n or 0 for n in lengths), operation.pads, strict=True)]
    result: Floats = np.zeros((data.shape[0], *full, weight.shape[0]))
    inputs = np.split(np.arange(data.shape[-1]), operation.groups)
    outputs = np.split(np.arange(weight.shape[0]), operation.groups)
    for place in itertools.product(*map(range, data.shape[1:-1])):
        for tap in itertools.product(*map(range, weight.shape[1:-1])):
            to = tuple(
                p * s + t * d
                for p, s, t, d in zip(
                    place, operation.strides, tap, operation.dilations, strict=True
                )
            )
            for read, written in zip(inputs, outputs, strict=True):
                taps = weight[(written, *tap)]
                result[(slice(None), *to, written)] += data[(slice(None), *place)][:, read] @ taps.T
    cut = tuple(
        slice(before, before + (n or 0))
        for (before, _), n in zip(operation.pads, lengths, strict=True)
    )
    return result[(slice(None), *cut)]


def _pool(operation: Pool, data: Floats, lengths: Sequence[int | None]) -> Floats:
    pads = ((0, 0), *operation.pads, (0, 0))
    ones = (1,) * len(operation.kernel)
    axes = tuple(range(1 + len(ones), 1 + 2 * len(ones)))

    def windows(values: Floats, fill: float) -> Floats:
        padded = np.pad(values, pads, constant_values=fill)
        return _windows(padded, lengths, operation.kernel, operation.strides, ones)

    if operation.kind is PoolKind.MAX:
        return windows(data, -np.inf).max(axes)
    counted = windows(np.ones_like(data), 1.0 if operation.count_pads else 0.0)
    return windows(data, 0.0).sum(axes) / counted.sum(axes)


def _resize(operation: Resize, data: Floats) -> Floats:
    for axis, count in enumerate(operation.sizes, start=1):
        length = data.shape[axis]
        out = np.arange(count)
        if operation.align_corners:
            at = out * (length - 1) / max(count - 1, 1)
        elif operation.half_pixel:
            at = (out + 0.5) * length / count - 0.5
        else:
            at = out * length / count
        if operation.mode is ResizeMode.NEAREST:
            rounds = operation.align_corners or operation.half_pixel
            low = np.floor(at + 0.5 if rounds else at).astype(int)
            data = np.take(data, np.clip(low, 0, length - 1), axis)
            continue
        at = np.clip(at, 0, length - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, length - 1)
        share = (at - low).reshape(-1, *[1] * (data.ndim - axis - 1))
        data = np.take(data, low, axis) * (1 - share) + np.take(data, high, axis) * share
    return data
