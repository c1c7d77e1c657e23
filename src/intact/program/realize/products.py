"""Convolutions, dense layers and matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from intact.errors import Unsupported
from intact.program.arithmetic.requantize import real_multiplier
from intact.program.operations import BatchMatMul, Bounds, Convolution, FullyConnected
from intact.program.program import Array, Encoding, Shape, Tensor
from intact.program.realize.builder import broadcast
from intact.program.realize.graph import Op, Value, Window
from intact.program.realize.part import Part, Realize, along, channels_first, known, type_range
from intact.program.realize.requantize import refuse_floats, requantized, wrapped, zero_point
from intact.targets import Overflow

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


def refuse_other_sums(part: Part) -> None:
    """Refuse a step whose sums are none of integers, or saturate on the way."""
    refuse_floats(part.step.arithmetic)
    if part.step.arithmetic.accumulator_overflow is Overflow.PAIR_SATURATE:
        raise Unsupported("pairs of products saturate", "choose a target whose sums do not")


def of_bytes(part: Part, tensor: Tensor) -> Encoding:
    """Return the encoding of a tensor of 8-bit codes."""
    encoding = part.encoding(tensor)
    if encoding.dtype.itemsize != 1:
        raise Unsupported(f"{tensor.name!r} is {encoding.dtype}", "quantize it to 8 bits")
    return encoding


def weights_of(part: Part) -> Weights:
    """Return the constant weights of a step that sums integers only."""
    refuse_other_sums(part)
    if any(tensor is not None for tensor in part.step.inputs[3:]):
        raise Unsupported("it adds another activation to its sums", "choose a target that does not")
    of_bytes(part, part.tensor(0))
    weight = part.tensor(1)
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


def _largest(part: Part) -> int:
    """Return the largest magnitude of data less its zero point."""
    encoding = part.encoding(part.tensor(0))
    zero = zero_point(encoding)
    return max(abs(code - zero) for code in type_range(encoding))


def _sums(part: Part, magnitudes: int) -> tuple[int, int]:
    """Return the range of sums in int32, which wrap if they leave it.

    Raises:
        Unsupported: They may leave it, and the hardware's do not wrap there.
    """
    largest = magnitudes * _largest(part)
    if largest <= _INT32.max:
        return -largest, largest
    arithmetic = part.step.arithmetic
    wraps = arithmetic.accumulator_overflow is Overflow.WRAP and arithmetic.accumulator_bits <= 32
    if not wraps:
        raise Unsupported("its sums may leave 32 bits", "choose a target whose sums wrap there")
    return _INT32.min, _INT32.max


def convolve(part: Part, data: Value, kernel: Array, weights: Weights, window: Window) -> Value:
    """Draw a convolution of data ``[N, C, *S]``."""
    held = part.draft.constant(kernel, "weight")
    lengths = tuple(
        None if length is None else _windows(length, window, axis)
        for axis, length in enumerate(data.shape[2:])
    )
    return part.draft.emit(
        Op.CONVOLVE,
        [data, held],
        np.int32,
        (data.shape[0], kernel.shape[0], *lengths),
        _sums(part, weights.magnitudes),
        zero=zero_point(part.encoding(part.tensor(0))),
        weight_zero=weights.zero,
        window=window,
    )


def _windows(length: int, window: Window, axis: int) -> int:
    reach = (window.kernel[axis] - 1) * window.dilations[axis] + 1
    return (length + sum(window.pads[axis]) - reach) // window.strides[axis] + 1


def product(
    part: Part, data: Value, other: Value, shape: Shape, magnitudes: int, zero: int
) -> Value:
    """Draw a product of matrices.

    Args:
        part: Of the step.
        data: ``[..., M, K]``.
        other: ``[..., K, N]``.
        shape: Of the result.
        magnitudes: Largest sum of magnitudes of the other less its zero point along K.
        zero: The zero point of the other.
    """
    return part.draft.emit(
        Op.MULTIPLY,
        [data, other],
        np.int32,
        shape,
        _sums(part, magnitudes),
        zero=zero_point(part.encoding(part.tensor(0))),
        weight_zero=zero,
    )


def accumulated(part: Part, sums: Value) -> Value:
    """Return sums as the accumulator holds them."""
    arithmetic = part.step.arithmetic
    if arithmetic.accumulator_overflow is Overflow.WRAP:
        return wrapped(part.draft, sums, arithmetic.accumulator_bits)
    return sums


def finish(
    part: Part, sums: Value, weights: Weights, bounds: Bounds, *, channels_last: bool = False
) -> None:
    """Add the bias, and make codes of the sums."""
    rank, channels = len(sums.shape), weights.codes.shape[0]
    axis = rank - 1 if channels_last else 1
    bias = _bias(part, channels)
    if bias.any():
        sums = part.draft.add(sums, along(bias, axis, rank))
    sums = accumulated(part, sums)
    output = part.encoding(part.output)
    scale = part.encoding(part.tensor(0)).scale
    multiplier = real_multiplier(
        part.step.arithmetic, [scale.reshape(()), weights.scale.reshape(-1)], output
    )
    factors = along(multiplier, axis, rank)
    codes = requantized(part.draft, sums, part.step.arithmetic, factors, output, bounds)
    part.give(codes, None if channels_last else channels_first(rank))


def _bias(part: Part, channels: int) -> Array:
    """Return the bias less its zero point, int64 ``[channels]``."""
    bias = part.step.inputs[2] if len(part.step.inputs) > 2 else None
    if bias is None:
        return np.zeros(channels, np.int64)
    if bias.data is None or bias.encoding is None:
        raise Unsupported("its bias is no constant of codes", "quantize it to int32")
    flat = np.broadcast_to(bias.data.reshape(-1), (channels,)).astype(np.int64)
    return np.asarray(flat - np.broadcast_to(bias.encoding.zero_point, (channels,)))


def convolution(part: Part) -> None:
    """Realize a convolution."""
    operation = cast(Convolution, part.step.operation)
    weights, rank = weights_of(part), part.rank(0)
    window = Window(
        tuple(weights.codes.shape[1:-1]),
        operation.strides,
        operation.pads,
        operation.dilations,
        operation.groups,
    )
    data = part.read(0, channels_first(rank))
    kernel = np.ascontiguousarray(np.moveaxis(weights.codes, -1, 1))
    finish(part, convolve(part, data, kernel, weights, window), weights, operation.bounds)


def fully_connected(part: Part) -> None:
    """Realize a fully connected layer."""
    operation = cast(FullyConnected, part.step.operation)
    weights, data = weights_of(part), part.read(0)
    shape = (*data.shape[:-1], weights.codes.shape[0])
    held = part.draft.constant(np.ascontiguousarray(weights.codes.T), "weight")
    sums = product(part, data, held, shape, weights.magnitudes, weights.zero)
    finish(part, sums, weights, operation.bounds, channels_last=True)


def batch_matmul(part: Part) -> None:
    """Realize a product of two activations."""
    operation = cast(BatchMatMul, part.step.operation)
    refuse_other_sums(part)
    first, second = part.read(0), part.read(1)
    encodings = [of_bytes(part, part.tensor(slot)) for slot in range(2)]
    lead = broadcast(first.shape[:-2], second.shape[:-2])
    shape = (*lead, first.shape[-2], second.shape[-1])
    zero = zero_point(encodings[1])
    largest = max(abs(code - zero) for code in type_range(encodings[1]))
    depth = known(first.shape[-1])
    sums = product(part, first, second, shape, depth * largest, zero)
    output = part.encoding(part.output)
    factors = [encoding.scale for encoding in encodings]
    multiplier = real_multiplier(part.step.arithmetic, factors, output)
    sums = accumulated(part, sums)
    part.give(
        requantized(part.draft, sums, part.step.arithmetic, multiplier, output, operation.bounds)
    )


TABLE: dict[type, Realize] = {
    BatchMatMul: batch_matmul,
    Convolution: convolution,
    FullyConnected: fully_connected,
}
