"""Transposed convolutions: convolutions of data with zeros between, and a turned kernel."""

from __future__ import annotations

from typing import cast

import numpy as np

from intact.program.operations import TransposedConvolution
from intact.program.realize.graph import Op, Value, Window
from intact.program.realize.part import Part, Realize, channels_first, known, open_product
from intact.program.realize.products import convolve, finish, weights_of
from intact.program.realize.requantize import zero_point


def transposed_convolution(part: Part) -> None:
    """Realize a transposed convolution: one of data with zeros between, and a turned kernel."""
    operation = cast(TransposedConvolution, part.step.operation)
    weights, rank = weights_of(part), part.rank(0)
    data = part.read(0, channels_first(rank))
    for axis, stride in enumerate(operation.strides, 2):
        data = _spread(part, data, axis, stride)
    kernel = weights.codes.shape[1:-1]
    axes = zip(kernel, operation.dilations, operation.pads, operation.output_padding, strict=True)
    around = tuple(
        ((size - 1) * dilation - before, (size - 1) * dilation - after + more)
        for size, dilation, (before, after), more in axes
    )
    # A pad that would be negative cuts: it is taken off the data before.
    data = _cut(part, data, around)
    pads = tuple((max(before, 0), max(after, 0)) for before, after in around)
    ones = (1,) * len(kernel)
    window = Window(tuple(kernel), ones, pads, operation.dilations, operation.groups)
    turned = np.flip(weights.codes, axis=tuple(range(1, rank - 1)))
    turned = np.ascontiguousarray(np.moveaxis(turned, -1, 1))
    finish(part, convolve(part, data, turned, weights, window), weights, operation.bounds)


def _spread(part: Part, data: Value, axis: int, stride: int) -> Value:
    """Return data with ``stride - 1`` zero points between neighbours of an axis."""
    if stride == 1:
        return data
    zero = zero_point(part.encoding(part.tensor(0)))
    length = known(data.shape[axis])
    ahead, behind = data.shape[:axis], data.shape[axis + 1 :]

    def shaped(value: Value, *middle: int) -> Value:
        shape = (*ahead, *middle, *behind)
        return part.draft.move(Op.RESHAPE, value, shape, lengths=open_product(shape))

    apart = shaped(data, length, 1)
    pads = tuple((0, stride - 1 if at == axis + 1 else 0) for at in range(len(apart.shape)))
    bounds = (min(data.low, zero), max(data.high, zero))
    shape = (*ahead, length, stride, *behind)
    padded = part.draft.emit(Op.PAD, [apart], data.dtype, shape, bounds, pads=pads, number=zero)
    joined = shaped(padded, length * stride)
    return _sliced(part, joined, axis, 0, (length - 1) * stride + 1)


def _sliced(part: Part, data: Value, axis: int, start: int, stop: int) -> Value:
    rank = len(data.shape)
    shape = (*data.shape[:axis], stop - start, *data.shape[axis + 1 :])
    return part.draft.move(
        Op.SLICE,
        data,
        shape,
        starts=tuple(start if at == axis else None for at in range(rank)),
        stops=tuple(stop if at == axis else None for at in range(rank)),
        steps=(1,) * rank,
    )


def _cut(part: Part, data: Value, around: tuple[tuple[int, int], ...]) -> Value:
    for axis, (before, after) in enumerate(around, 2):
        if before < 0 or after < 0:
            length = known(data.shape[axis])
            data = _sliced(part, data, axis, max(-before, 0), length - max(-after, 0))
    return data


TABLE: dict[type, Realize] = {TransposedConvolution: transposed_convolution}
