"""Realizes convolutions, dense layers and matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from intact.errors import Unsupported
from intact.program.arithmetic.requantize import real_multiplier
from intact.program.forms import broadcast
from intact.program.operations import (
    BatchMatMul,
    Bounds,
    Convolution,
    FullyConnected,
    TransposedConvolution,
)
from intact.program.program import Array, Encoding, Shape, Tensor
from intact.program.realize.graph import Op, Value, Window
from intact.program.realize.requantize import refuse_floats, requantize_sums, wrap, zero_point
from intact.program.realize.step import (
    REALIZERS,
    StepBuilder,
    along,
    channels_first,
    known,
    open_product,
    type_range,
)

_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, eq=False)
class Weights:
    """Constant weights.

    Attributes:
        codes: int8 or uint8, as the program stores them.
        zero: What is taken off every one.
        magnitudes: Largest sum of magnitudes less the zero point of an output channel.
        scale: ``[]`` or ``[O]``.
    """

    codes: Array
    zero: int
    magnitudes: int
    scale: Array


def refuse_other_sums(step: StepBuilder) -> None:
    """Refuse a step whose sums are none of integers, or saturate on the way."""
    refuse_floats(step.arithmetic)
    if step.arithmetic.pairs is not None:
        raise Unsupported("pairs of products saturate", "choose a target whose sums do not")


def byte_encoding(step: StepBuilder, tensor: Tensor) -> Encoding:
    """Return the encoding of a tensor of 8-bit codes."""
    encoding = step.encoding(tensor)
    if encoding.dtype.itemsize != 1:
        raise Unsupported(f"{tensor.name!r} is {encoding.dtype}", "quantize it to 8 bits")
    return encoding


def weights_of(step: StepBuilder) -> Weights:
    """Return the constant weights of a step that sums integers only."""
    refuse_other_sums(step)
    if any(tensor is not None for tensor in step.inputs[3:]):
        raise Unsupported("it adds another activation to its sums", "choose a target that does not")
    byte_encoding(step, step.tensor(0))
    weight = step.tensor(1)
    encoding = weight.encoding
    if weight.data is None or encoding is None:
        raise Unsupported("its weights are no constant codes", "leave the node in float")
    if weight.data.dtype.itemsize != 1:
        raise Unsupported(f"its weights are {weight.data.dtype}", "quantize them to 8 bits")
    if encoding.axis not in (None, 0):
        raise Unsupported(f"its weights have scales along axis {encoding.axis}", "use axis 0")
    zeros = np.unique(encoding.zero_point)
    if zeros.size > 1:
        raise Unsupported("its weights have several zero points", "use symmetric weights")
    zero = int(zeros[0])
    values = np.abs(weight.data.astype(np.int64) - zero).reshape(len(weight.data), -1)
    magnitudes = int(values.sum(axis=1).max(initial=0))
    return Weights(weight.data, zero, magnitudes, encoding.scale)


def _largest(step: StepBuilder) -> int:
    """Return the largest magnitude of data less its zero point."""
    encoding = step.encoding(step.tensor(0))
    zero = zero_point(encoding)
    return max(abs(code - zero) for code in type_range(encoding))


def _sums(step: StepBuilder, magnitudes: int) -> tuple[int, int]:
    """Return the range of sums in int32, which wrap if they leave it.

    Raises:
        Unsupported: They may leave it, and the hardware's do not wrap there.
    """
    largest = magnitudes * _largest(step)
    # A proof by the weights at hand: most layers are far below the bound of their depth.
    if largest <= _INT32.max:
        return -largest, largest
    arithmetic = step.arithmetic
    if not (arithmetic.wraps and arithmetic.accumulator.bits <= 32):
        raise Unsupported("its sums may leave 32 bits", "choose a target whose sums wrap there")
    return _INT32.min, _INT32.max


def convolve(
    step: StepBuilder, data: Value, kernel: Array, weights: Weights, window: Window
) -> Value:
    """Add a convolution of data ``[N, C, *S]``."""
    held = step.builder.constant(kernel, "weight")
    lengths = tuple(
        None if length is None else _windows(length, window, axis)
        for axis, length in enumerate(data.shape[2:])
    )
    return step.builder.emit(
        Op.CONVOLVE,
        [data, held],
        np.int32,
        (data.shape[0], kernel.shape[0], *lengths),
        _sums(step, weights.magnitudes),
        zero=zero_point(step.encoding(step.tensor(0))),
        weight_zero=weights.zero,
        window=window,
    )


def _windows(length: int, window: Window, axis: int) -> int:
    reach = (window.kernel[axis] - 1) * window.dilations[axis] + 1
    return (length + sum(window.pads[axis]) - reach) // window.strides[axis] + 1


def product(
    step: StepBuilder, data: Value, other: Value, shape: Shape, magnitudes: int, zero: int
) -> Value:
    """Add a product of matrices.

    Args:
        step: The step.
        data: ``[..., M, K]``.
        other: ``[..., K, N]``.
        shape: The shape of the result.
        magnitudes: Largest sum of magnitudes of the other less its zero point along K.
        zero: The zero point of the other.
    """
    return step.builder.emit(
        Op.MULTIPLY,
        [data, other],
        np.int32,
        shape,
        _sums(step, magnitudes),
        zero=zero_point(step.encoding(step.tensor(0))),
        weight_zero=zero,
    )


def accumulate(step: StepBuilder, sums: Value) -> Value:
    """Return sums as the accumulator holds them."""
    arithmetic = step.arithmetic
    if arithmetic.wraps:
        return wrap(step.builder, sums, arithmetic.accumulator.bits)
    return sums


def finish(
    step: StepBuilder, sums: Value, weights: Weights, bounds: Bounds, *, channels_last: bool = False
) -> None:
    """Add the bias, and make codes of the sums."""
    rank, channels = len(sums.shape), weights.codes.shape[0]
    axis = rank - 1 if channels_last else 1
    bias = _bias(step, channels)
    if bias.any():
        sums = step.builder.add(sums, along(bias, axis, rank))
    sums = accumulate(step, sums)
    output = step.encoding(step.output)
    scale = step.encoding(step.tensor(0)).scale
    multiplier = real_multiplier(
        step.arithmetic, [scale.reshape(()), weights.scale.reshape(-1)], output
    )
    factors = along(multiplier, axis, rank)
    codes = requantize_sums(step.builder, sums, step.arithmetic, factors, output, bounds)
    step.set_result(codes, None if channels_last else channels_first(rank))


def _bias(step: StepBuilder, channels: int) -> Array:
    """Return the bias less its zero point, int64 ``[channels]``."""
    bias = step.inputs[2] if len(step.inputs) > 2 else None
    if bias is None:
        return np.zeros(channels, np.int64)
    if bias.data is None or bias.encoding is None:
        raise Unsupported("its bias is no constant of codes", "quantize it to int32")
    flat = np.broadcast_to(bias.data.reshape(-1), (channels,)).astype(np.int64)
    return np.asarray(flat - np.broadcast_to(bias.encoding.zero_point, (channels,)))


@REALIZERS.register(Convolution)
def convolution(step: StepBuilder) -> None:
    """Realize a convolution."""
    operation = cast(Convolution, step.operation)
    weights, rank = weights_of(step), step.rank(0)
    window = Window(
        tuple(weights.codes.shape[1:-1]),
        operation.strides,
        operation.pads,
        operation.dilations,
        operation.groups,
    )
    data = step.read(0, channels_first(rank))
    kernel = np.ascontiguousarray(np.moveaxis(weights.codes, -1, 1))
    finish(step, convolve(step, data, kernel, weights, window), weights, operation.bounds)


@REALIZERS.register(FullyConnected)
def fully_connected(step: StepBuilder) -> None:
    """Realize a fully connected layer."""
    operation = cast(FullyConnected, step.operation)
    weights, data = weights_of(step), step.read(0)
    shape = (*data.shape[:-1], weights.codes.shape[0])
    held = step.builder.constant(np.ascontiguousarray(weights.codes.T), "weight")
    sums = product(step, data, held, shape, weights.magnitudes, weights.zero)
    finish(step, sums, weights, operation.bounds, channels_last=True)


@REALIZERS.register(BatchMatMul)
def batch_matmul(step: StepBuilder) -> None:
    """Realize a product of two activations."""
    operation = cast(BatchMatMul, step.operation)
    refuse_other_sums(step)
    first, second = step.read(0), step.read(1)
    encodings = [byte_encoding(step, step.tensor(slot)) for slot in range(2)]
    lead = broadcast(first.shape[:-2], second.shape[:-2])
    shape = (*lead, first.shape[-2], second.shape[-1])
    zero = zero_point(encodings[1])
    largest = max(abs(code - zero) for code in type_range(encodings[1]))
    depth = known(first.shape[-1])
    sums = product(step, first, second, shape, depth * largest, zero)
    output = step.encoding(step.output)
    factors = [encoding.scale for encoding in encodings]
    multiplier = real_multiplier(step.arithmetic, factors, output)
    sums = accumulate(step, sums)
    step.set_result(
        requantize_sums(step.builder, sums, step.arithmetic, multiplier, output, operation.bounds)
    )


@REALIZERS.register(TransposedConvolution)
def transposed_convolution(step: StepBuilder) -> None:
    """Realize a transposed convolution: one of data with zeros between, and a turned kernel."""
    operation = cast(TransposedConvolution, step.operation)
    weights, rank = weights_of(step), step.rank(0)
    data = step.read(0, channels_first(rank))
    for axis, stride in enumerate(operation.strides, 2):
        data = _spread_with_zeros(step, data, axis, stride)
    kernel = weights.codes.shape[1:-1]
    axes = zip(kernel, operation.dilations, operation.pads, operation.output_padding, strict=True)
    around = tuple(
        ((size - 1) * dilation - before, (size - 1) * dilation - after + more)
        for size, dilation, (before, after), more in axes
    )
    # A pad that would be negative cuts: it is taken off the data before.
    data = _cut(step, data, around)
    pads = tuple((max(before, 0), max(after, 0)) for before, after in around)
    ones = (1,) * len(kernel)
    window = Window(tuple(kernel), ones, pads, operation.dilations, operation.groups)
    # A transposed convolution is the gradient of one: each input element adds the kernel to the
    # output, which is a convolution with the kernel turned around.
    turned = np.flip(weights.codes, axis=tuple(range(1, rank - 1)))
    turned = np.ascontiguousarray(np.moveaxis(turned, -1, 1))
    finish(step, convolve(step, data, turned, weights, window), weights, operation.bounds)


def _spread_with_zeros(step: StepBuilder, data: Value, axis: int, stride: int) -> Value:
    """Return data with ``stride - 1`` zero points between neighbours of an axis."""
    if stride == 1:
        return data
    zero = zero_point(step.encoding(step.tensor(0)))
    length = known(data.shape[axis])
    ahead, behind = data.shape[:axis], data.shape[axis + 1 :]

    def reshape(value: Value, *middle: int) -> Value:
        shape = (*ahead, *middle, *behind)
        return step.builder.move(Op.RESHAPE, value, shape, lengths=open_product(shape))

    apart = reshape(data, length, 1)
    pads = tuple((0, stride - 1 if at == axis + 1 else 0) for at in range(len(apart.shape)))
    bounds = (min(data.low, zero), max(data.high, zero))
    shape = (*ahead, length, stride, *behind)
    padded = step.builder.emit(Op.PAD, [apart], data.dtype, shape, bounds, pads=pads, number=zero)
    joined = reshape(padded, length * stride)
    return _add_slice(step, joined, axis, 0, (length - 1) * stride + 1)


def _add_slice(step: StepBuilder, data: Value, axis: int, start: int, stop: int) -> Value:
    rank = len(data.shape)
    shape = (*data.shape[:axis], stop - start, *data.shape[axis + 1 :])
    return step.builder.move(
        Op.SLICE,
        data,
        shape,
        starts=tuple(start if at == axis else None for at in range(rank)),
        stops=tuple(stop if at == axis else None for at in range(rank)),
        steps=(1,) * rank,
    )


def _cut(step: StepBuilder, data: Value, around: tuple[tuple[int, int], ...]) -> Value:
    for axis, (before, after) in enumerate(around, 2):
        if before < 0 or after < 0:
            length = known(data.shape[axis])
            data = _add_slice(step, data, axis, max(-before, 0), length - max(-after, 0))
    return data
