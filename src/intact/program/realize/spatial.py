"""Realizes windows, reductions and resizing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np

from intact.config import Rounding
from intact.errors import Unsupported
from intact.numerics.fixed_point import power_of_two_exponent, quantize_multiplier
from intact.program.arithmetic.requantize import code_bounds, real_multiplier
from intact.program.operations import Pool, PoolKind, Reduce, Reduction, Resize, ResizeMode
from intact.program.program import Array, Encoding, Shape
from intact.program.realize.graph import Op, Value, Window
from intact.program.realize.moves import take_slices
from intact.program.realize.pointwise import recode
from intact.program.realize.requantize import (
    multiply_fixed,
    quotient,
    refuse_floats,
    requantize_sums,
    zero_point,
)
from intact.program.realize.step import REALIZERS, StepBuilder, channels_first, known
from intact.targets import Product, Shift, ZeroPointOrder


@REALIZERS.register(Pool)
def pool(step: StepBuilder) -> None:
    """Realize a pool."""
    operation = cast(Pool, step.operation)
    source, target = step.encoding(step.tensor(0)), step.encoding(step.output)
    order = channels_first(step.rank(0))
    data = step.read(0, order)
    if source.dtype.itemsize != 1:
        raise Unsupported(f"it pools {source.dtype}", "quantize its input to 8 bits")
    ones = (1,) * len(operation.kernel)
    window = Window(operation.kernel, operation.strides, operation.pads, ones)
    shape = _pooled_shape(data.shape, operation)
    if operation.kind is PoolKind.MAX:
        largest = step.builder.move(Op.MAX_POOL, data, shape, window=window)
        step.set_result(recode(step, largest, source, target, operation.bounds), order)
        return
    refuse_floats(step.arithmetic)
    sums = _sums(step, data, source, replace(window, groups=known(data.shape[1])), shape)
    counts = _divisors(data.shape, operation)
    if source.same_as(target):
        step.set_result(_mean_of_codes(step, sums, counts, target, operation), order)
    else:
        ratio = real_multiplier(step.arithmetic, [source.scale], target)
        arguments = step.arithmetic, np.asarray(ratio / counts), target, operation.bounds
        step.set_result(requantize_sums(step.builder, sums, *arguments), order)


def _pooled_shape(shape: Shape, operation: Pool) -> Shape:
    lengths = tuple(
        None if length is None else max((length + sum(pads) - size) // stride + 1, 0)
        for length, pads, size, stride in zip(
            shape[2:], operation.pads, operation.kernel, operation.strides, strict=True
        )
    )
    return (*shape[:2], *lengths)


def _sums(step: StepBuilder, data: Value, source: Encoding, window: Window, shape: Shape) -> Value:
    """Return sums of windows of codes less their zero point: a convolution with ones."""
    ones = np.ones((window.groups, 1, *window.kernel), np.int8)
    zero = zero_point(source)
    info, taps = np.iinfo(source.dtype), math.prod(window.kernel)
    ends = min(0, int(info.min) - zero) * taps, max(0, int(info.max) - zero) * taps
    options: dict[str, Any] = {"zero": zero, "weight_zero": 0, "window": window}
    held = step.builder.constant(ones, "ones")
    return step.builder.emit(Op.CONVOLVE, [data, held], np.int32, shape, ends, **options)


def _divisors(shape: Shape, operation: Pool) -> Array:
    """Count the values in each window: ``[]``, or ``[*S]`` where windows differ."""
    counts = np.ones((1,) * len(operation.kernel), np.int64)
    for axis, size in enumerate(operation.kernel):
        pads, stride, length = operation.pads[axis], operation.strides[axis], shape[axis + 2]
        if operation.count_pads or not any(pads):
            counts = counts * size
            continue
        length = known(length)
        starts = np.arange((length + sum(pads) - size) // stride + 1) * stride - pads[0]
        inside = np.minimum(starts + size, length) - np.maximum(starts, 0)
        along = [-1 if at == axis else 1 for at in range(counts.ndim)]
        counts = counts * np.maximum(inside, 0).reshape(along)
    counts = np.maximum(counts, 1)
    return counts.reshape(()) if counts.size == 1 else counts


def _mean_of_codes(
    step: StepBuilder, sums: Value, counts: Array, encoding: Encoding, operation: Pool
) -> Value:
    """Divide sums of codes less their zero point, which is added before or after rounding."""
    builder, arithmetic = step.builder, step.arithmetic
    zero = zero_point(encoding)
    low, high = code_bounds(arithmetic, encoding, operation.bounds)
    if arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING:
        sums, zero = builder.add(sums, counts * zero), 0
    mean = quotient(builder, sums, counts, arithmetic.rounding)
    limited = builder.clip(mean, low - zero, high - zero)
    return builder.cast(builder.add(limited, zero), encoding.dtype)


@REALIZERS.register(Reduce)
def reduce(step: StepBuilder) -> None:
    """Realize a reduction over axes."""
    operation, builder = cast(Reduce, step.operation), step.builder
    source, target = step.encoding(step.tensor(0)), step.encoding(step.output)
    order = step.order(0)
    data, axes = step.read(0, order), operation.axes
    places = tuple(place for place, axis in enumerate(order) if axis in axes)
    count = math.prod(known(data.shape[place]) for place in places)
    shape = tuple(
        1 if place in places else length
        for place, length in enumerate(data.shape)
        if operation.keep_dims or place not in places
    )
    kept = [axis for axis in order if operation.keep_dims or axis not in axes]
    ranks = sorted(kept)
    left = tuple(ranks.index(axis) for axis in kept)
    options: dict[str, Any] = {"axes": places, "keep": operation.keep_dims}
    if operation.kind in (Reduction.MAX, Reduction.MIN):
        if count == 0:
            raise Unsupported("it reduces no elements", "leave the node out")
        op = Op.LARGEST if operation.kind is Reduction.MAX else Op.SMALLEST
        found = builder.move(op, builder.wide(data), shape, **options)
        step.set_result(recode(step, builder.cast(found, source.dtype), source, target), left)
        return
    refuse_floats(step.arithmetic)
    wide = builder.wide(data)
    # By the range of the codes and not of what they hold: it must be right for every input.
    if max(abs(wide.low), abs(wide.high)) * count > np.iinfo(np.int32).max:
        wide = builder.cast(data, np.int64)
    ends = wide.low * count, wide.high * count
    sums = builder.emit(Op.SUM, [wide], wide.dtype, shape, ends, **options)
    steps = builder.sub(sums, count * zero_point(source))
    if operation.kind is Reduction.SUM:
        ratio = real_multiplier(step.arithmetic, [source.scale], target)
        step.set_result(requantize_sums(builder, steps, step.arithmetic, ratio, target), left)
        return
    step.set_result(_mean(step, steps, source, target, max(count, 1)), left)


def _mean(step: StepBuilder, steps: Value, source: Encoding, target: Encoding, count: int) -> Value:
    """Return the mean of ``count`` codes, whose sum less zero points is given."""
    builder, arithmetic = step.builder, step.arithmetic
    if isinstance(arithmetic.requantize, Shift):
        ratio = power_of_two_exponent(source.scale) - power_of_two_exponent(target.scale)
        left, right = max(ratio.item(), 0), max(-ratio.item(), 0)
        moved = builder.mul(steps, 1 << left)
        mean = quotient(builder, moved, count << right, arithmetic.rounding)
    else:
        ratio = real_multiplier(arithmetic, [source.scale], target)
        multiplier, exponent = (each.item() for each in quantize_multiplier(ratio))
        # As TFLite's reduction: the multiplier is divided by the count, shifted left before so far
        # that its digits stay, but never beyond 64 bits.
        kept = min(count.bit_length() - 1, 32, 31 + exponent)
        divided = (multiplier << kept) // count
        mean = multiply_fixed(builder, steps, divided, exponent - kept, arithmetic)
    zero = zero_point(target)
    limited = builder.clip(mean, target.quant_min - zero, target.quant_max - zero)
    return builder.cast(builder.add(limited, zero), target.dtype)


_BITS = 10

"""Fraction bits of a weight in TFLite's integer kernels."""


@REALIZERS.register(Resize)
def resize(step: StepBuilder) -> None:
    """Realize a Resize of data with its channels anywhere."""
    operation = cast(Resize, step.operation)
    source, target = step.encoding(step.tensor(0)), step.encoding(step.output)
    order = channels_first(step.rank(0))
    data = step.read(0, order)
    if operation.mode is ResizeMode.NEAREST:
        for axis, size in enumerate(operation.sizes, 2):
            places = _nearest(operation, known(data.shape[axis]), size)
            data = take_slices(step, data, step.builder.constant(places, "places"), axis)
    else:
        data = _linear(step, operation, data)
    step.set_result(recode(step, data, source, target), order)


def _linear(step: StepBuilder, operation: Resize, data: Value) -> Value:
    """Blend neighbours with integer weights, and round once."""
    arithmetic, builder = step.arithmetic, step.builder
    refuse_floats(arithmetic)
    if arithmetic.product is Product.SINGLE:
        raise Unsupported("it interpolates with weights of floats", "resize to the nearest")
    encoding = step.encoding(step.tensor(0))
    for axis, size in enumerate(operation.sizes, 2):
        first, second, weights = _positions(operation, known(data.shape[axis]), size)
        along = [-1 if at == axis else 1 for at in range(len(data.shape))]
        sides = []
        for places, share in ((first, (1 << _BITS) - weights), (second, weights)):
            side = take_slices(step, data, builder.constant(places, "places"), axis)
            sides.append(builder.mul(side, share.reshape(along)))
        data = builder.add(*sides)
    shifts = isinstance(arithmetic.requantize, Shift)
    rounding = arithmetic.rounding if shifts else Rounding.HALF_AWAY_FROM_ZERO
    mean = quotient(builder, data, 1 << _BITS * len(operation.sizes), rounding)
    return builder.cast(builder.clip(mean, encoding.quant_min, encoding.quant_max), encoding.dtype)


def _nearest(operation: Resize, length: int, size: int) -> Array:
    """Return which element each output takes, computed in float32 as TFLite does."""
    spans = (length - 1, size - 1) if operation.align_corners and size > 1 else (length, size)
    places = np.arange(size, dtype=np.float32)
    if operation.half_pixel:
        places += np.float32(0.5)
    places = places * (np.float32(spans[0]) / np.float32(spans[1]))
    if operation.align_corners:
        places = places + np.float32(0.5)
    return np.clip(np.floor(places), 0, length - 1).astype(np.int64)


def _positions(operation: Resize, length: int, size: int) -> tuple[Array, Array, Array]:
    """Return two elements and the second's weight, sampled in integers as TFLite does."""
    one = 1 << _BITS
    spans = (length - 1, size - 1) if operation.align_corners and size > 1 else (length, size)
    step = (one * spans[0] + spans[1] // 2) // max(spans[1], 1)
    places = np.arange(size, dtype=np.int64) * step
    if operation.half_pixel:
        places += step // 2 - one // 2
    first = np.clip(places >> _BITS, 0, length - 1)
    second = np.clip((places + one - 1) >> _BITS, 0, length - 1)
    return first, second, places - (first << _BITS)
