"""Operations that make one element of many: pools over windows, reductions over axes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np

from intact.errors import Unsupported
from intact.numerics.fixed_point import power_of_two_exponent, quantize_multiplier
from intact.program.arithmetic.requantize import code_bounds, real_multiplier
from intact.program.operations import Pool, PoolKind, Reduce, Reduction
from intact.program.program import Array, Encoding, Shape
from intact.program.realize.graph import Op, Value, Window
from intact.program.realize.part import Part, Realize, channels_first, known
from intact.program.realize.pointwise import recoded
from intact.program.realize.requantize import (
    multiply_fixed,
    quotient,
    refuse_floats,
    requantized,
    zero_point,
)
from intact.targets import Requantize, ZeroPointOrder


def pool(part: Part) -> None:
    """Realize a pool."""
    operation = cast(Pool, part.step.operation)
    source, target = part.encoding(part.tensor(0)), part.encoding(part.output)
    order = channels_first(part.rank(0))
    data = part.read(0, order)
    if source.dtype.itemsize != 1:
        raise Unsupported(f"it pools {source.dtype}", "quantize its input to 8 bits")
    ones = (1,) * len(operation.kernel)
    window = Window(operation.kernel, operation.strides, operation.pads, ones)
    shape = _pooled(data.shape, operation)
    if operation.kind is PoolKind.MAX:
        largest = part.draft.move(Op.MAX_POOL, data, shape, window=window)
        part.give(recoded(part, largest, source, target, operation.bounds), order)
        return
    refuse_floats(part.step.arithmetic)
    sums = _sums(part, data, source, replace(window, groups=known(data.shape[1])), shape)
    counts = _divisors(data.shape, operation)
    if source.same_as(target):
        part.give(_mean_of_codes(part, sums, counts, target, operation), order)
    else:
        ratio = real_multiplier(part.step.arithmetic, [source.scale], target)
        arguments = part.step.arithmetic, np.asarray(ratio / counts), target, operation.bounds
        part.give(requantized(part.draft, sums, *arguments), order)


def _pooled(shape: Shape, operation: Pool) -> Shape:
    lengths = tuple(
        None if length is None else max((length + sum(pads) - size) // stride + 1, 0)
        for length, pads, size, stride in zip(
            shape[2:], operation.pads, operation.kernel, operation.strides, strict=True
        )
    )
    return (*shape[:2], *lengths)


def _sums(part: Part, data: Value, source: Encoding, window: Window, shape: Shape) -> Value:
    """Return sums of windows of codes less their zero point: a convolution with ones."""
    ones = np.ones((window.groups, 1, *window.kernel), np.int8)
    zero = zero_point(source)
    info, taps = np.iinfo(source.dtype), math.prod(window.kernel)
    ends = min(0, int(info.min) - zero) * taps, max(0, int(info.max) - zero) * taps
    options: dict[str, Any] = {"zero": zero, "weight_zero": 0, "window": window}
    held = part.draft.constant(ones, "ones")
    return part.draft.emit(Op.CONVOLVE, [data, held], np.int32, shape, ends, **options)


def _divisors(shape: Shape, operation: Pool) -> Array:
    """Return what sums of windows are divided by: ``[]``, or ``[*S]`` where windows differ."""
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
    part: Part, sums: Value, counts: Array, encoding: Encoding, operation: Pool
) -> Value:
    """Divide sums of codes less their zero point, which is added before or after rounding."""
    draft, arithmetic = part.draft, part.step.arithmetic
    zero = zero_point(encoding)
    low, high = code_bounds(arithmetic, encoding, operation.bounds)
    if arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING:
        sums, zero = draft.add(sums, counts * zero), 0
    mean = quotient(draft, sums, counts, arithmetic.rounding)
    limited = draft.clip(mean, low - zero, high - zero)
    return draft.cast(draft.add(limited, zero), encoding.dtype)


def reduce(part: Part) -> None:
    """Realize a reduction over axes."""
    operation, draft = cast(Reduce, part.step.operation), part.draft
    source, target = part.encoding(part.tensor(0)), part.encoding(part.output)
    order = part.order(0)
    data, axes = part.read(0, order), operation.axes
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
        found = draft.move(op, draft.wide(data), shape, **options)
        part.give(recoded(part, draft.cast(found, source.dtype), source, target), left)
        return
    refuse_floats(part.step.arithmetic)
    wide = draft.wide(data)
    if max(abs(wide.low), abs(wide.high)) * count > np.iinfo(np.int32).max:
        wide = draft.cast(data, np.int64)
    ends = wide.low * count, wide.high * count
    sums = draft.emit(Op.SUM, [wide], wide.dtype, shape, ends, **options)
    steps = draft.sub(sums, count * zero_point(source))
    if operation.kind is Reduction.SUM:
        ratio = real_multiplier(part.step.arithmetic, [source.scale], target)
        part.give(requantized(draft, steps, part.step.arithmetic, ratio, target), left)
        return
    part.give(_mean(part, steps, source, target, max(count, 1)), left)


def _mean(part: Part, steps: Value, source: Encoding, target: Encoding, count: int) -> Value:
    """Return the mean of ``count`` codes, whose sum less zero points is given."""
    draft, arithmetic = part.draft, part.step.arithmetic
    if arithmetic.requantize is Requantize.SHIFT:
        ratio = power_of_two_exponent(source.scale) - power_of_two_exponent(target.scale)
        left, right = max(ratio.item(), 0), max(-ratio.item(), 0)
        moved = draft.mul(steps, 1 << left)
        mean = quotient(draft, moved, count << right, arithmetic.rounding)
    else:
        ratio = real_multiplier(arithmetic, [source.scale], target)
        multiplier, exponent = (each.item() for each in quantize_multiplier(ratio))
        kept = min(count.bit_length() - 1, 32, 31 + exponent)
        divided = (multiplier << kept) // count
        mean = multiply_fixed(draft, steps, divided, exponent - kept, arithmetic)
    zero = zero_point(target)
    limited = draft.clip(mean, target.quant_min - zero, target.quant_max - zero)
    return draft.cast(draft.add(limited, zero), target.dtype)


TABLE: dict[type, Realize] = {Pool: pool, Reduce: reduce}
