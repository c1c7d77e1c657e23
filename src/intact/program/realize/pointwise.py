"""Realizes operations on each element: sums, products, functions, other scales."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from intact.errors import Unsupported
from intact.numerics.fixed_point import power_of_two_exponent, quantize_multiplier
from intact.program.arithmetic.functions import function_of_codes
from intact.program.arithmetic.requantize import code_bounds, real_multiplier
from intact.program.operations import (
    Binary,
    Bounds,
    Elementwise,
    Function,
    PRelu,
    Requantize,
)
from intact.program.program import Array, Encoding
from intact.program.realize.builder import IntegerBuilder
from intact.program.realize.graph import Order, Value
from intact.program.realize.requantize import (
    multiply_fixed,
    refuse_floats,
    requantize_sums,
    steps_of,
)
from intact.program.realize.step import REALIZERS, StepBuilder, plain, type_range
from intact.targets import Arithmetic, FixedPoint, Multiplier, Product

_SQUARE_BITS = 30
"""Operands of a squared difference are scaled to at most half of it, as the engine does."""
_LARGEST_SHIFT = 62
_WIDEST_TABLE = 2
"""Bytes of codes that have a table."""


def recode(
    step: StepBuilder,
    codes: Value,
    source: Encoding,
    target: Encoding,
    bounds: Bounds | None = None,
) -> Value:
    """Return codes at another scale and zero point; themselves where nothing changes."""
    bounds = Bounds() if bounds is None else bounds
    if target.same_as(source) and bounds == Bounds():
        return codes
    refuse_floats(step.arithmetic)
    multiplier = real_multiplier(step.arithmetic, [source.scale], target)
    steps = steps_of(step.builder, codes, source)
    return requantize_sums(step.builder, steps, step.arithmetic, multiplier, target, bounds)


@REALIZERS.register(Requantize)
def requantize(step: StepBuilder) -> None:
    """Realize a change of scale."""
    source, target = step.encoding(step.tensor(0)), step.encoding(step.output)
    order = step.order(0)
    step.set_result(recode(step, step.read(0, order), source, target), order)


def operands(step: StepBuilder) -> tuple[list[Value], Order]:
    """Return both operands with axes that lie alike, and how they lie.

    What has fewer axes gets them in front, as broadcasting does.
    """
    rank = max(step.rank(0), step.rank(1))
    orders = {
        step.order(slot)
        for slot in range(2)
        if step.rank(slot) == rank and not step.tensor(slot).is_constant
    }
    # Broadcasting puts new axes in front, which is right for the model's own order alone.
    short = any(step.rank(at) < rank and not step.tensor(at).is_constant for at in range(2))
    order = orders.pop() if len(orders) == 1 and not short else plain(rank)
    return [_operand(step, slot, order) for slot in range(2)], order


def _operand(step: StepBuilder, slot: int, order: Order) -> Value:
    data, rank = step.tensor(slot).data, len(order)
    if data is None:
        return step.read(slot, order if step.rank(slot) == rank else None)
    full = data.reshape((1,) * (rank - data.ndim) + data.shape)
    return step.builder.constant(full.transpose(order), "constant")


@REALIZERS.register(Elementwise)
def elementwise(step: StepBuilder) -> None:
    """Realize an operation on two operands."""
    operation, arithmetic = cast(Elementwise, step.operation), step.arithmetic
    encodings = [step.encoding(step.tensor(slot)) for slot in range(2)]
    output, kind, builder = step.encoding(step.output), operation.kind, step.builder
    if kind is Binary.DIV:
        raise Unsupported("there is no division of codes", "leave the node out of the integer part")
    values, order = operands(step)
    if kind in (Binary.MINIMUM, Binary.MAXIMUM):
        sides = [recode(step, v, e, output) for v, e in zip(values, encodings, strict=True)]
        choose = builder.minimum if kind is Binary.MINIMUM else builder.maximum
        # Wide: ONNX Runtime has no Min and Max of int16.
        chosen = choose(builder.wide(sides[0]), builder.wide(sides[1]))
        low, high = code_bounds(arithmetic, output, operation.bounds)
        step.set_result(builder.cast(builder.clip(chosen, low, high), output.dtype), order)
        return
    refuse_floats(arithmetic)
    steps = [steps_of(builder, v, e) for v, e in zip(values, encodings, strict=True)]
    if kind is Binary.MUL:
        scales = [encoding.scale for encoding in encodings]
        multiplier = real_multiplier(arithmetic, scales, output)
        found = builder.mul(*steps)
    elif kind is Binary.SQUARED_DIFFERENCE:
        found, multiplier = _squared_difference(builder, arithmetic, steps, encodings, output)
    else:
        sides, multiplier = _bring_to_one_scale(builder, arithmetic, steps, encodings, output)
        found = (builder.add if kind is Binary.ADD else builder.sub)(*sides)
    codes = requantize_sums(builder, found, arithmetic, multiplier, output, operation.bounds)
    step.set_result(codes, order)


def _squared_difference(
    builder: IntegerBuilder,
    arithmetic: Arithmetic,
    steps: list[Value],
    encodings: list[Encoding],
    output: Encoding,
) -> tuple[Value, Array]:
    widest = 8 * max(encoding.dtype.itemsize for encoding in encodings)
    # The square doubles the bits: a shift as wide as for a sum would overflow int32.
    most = max((_SQUARE_BITS - 2 * widest) // 2, 0)
    sides, unit = _shift_or_align(builder, arithmetic, steps, encodings, most)
    difference = builder.sub(*sides)
    square = builder.mul(difference, difference)
    return square, np.asarray(unit**2 / np.float64(output.scale.item()))


def _bring_to_one_scale(
    builder: IntegerBuilder,
    arithmetic: Arithmetic,
    steps: list[Value],
    encodings: list[Encoding],
    output: Encoding,
) -> tuple[list[Value], Array]:
    """Return both operands at one scale, and the multiplier from there to the output."""
    way = arithmetic.requantize
    if isinstance(way, FixedPoint) and way.product is Product.SINGLE:
        return _common_exponent(builder, way, steps, encodings, output)
    sides, unit = _shift_or_align(builder, arithmetic, steps, encodings)
    return sides, np.asarray(unit / np.float64(output.scale.item()))


def _shift_or_align(
    builder: IntegerBuilder,
    arithmetic: Arithmetic,
    steps: list[Value],
    encodings: list[Encoding],
    most: int = _LARGEST_SHIFT,
) -> tuple[list[Value], float]:
    """Return both operands at one scale, shifted left by ``most`` bits at most, and that scale."""
    way = arithmetic.requantize
    if not isinstance(way, FixedPoint):
        return _align(builder, steps, encodings)
    shift = min(way.addition_shift, most)
    return _shift_and_multiply(builder, arithmetic, steps, encodings, shift)


def _align(
    builder: IntegerBuilder, steps: list[Value], encodings: list[Encoding]
) -> tuple[list[Value], float]:
    """Bring the operand of the coarser power of two to the finer one."""
    exponents = [int(power_of_two_exponent(encoding.scale).item()) for encoding in encodings]
    finer = min(exponents)
    left = [exponent - finer for exponent in exponents]
    # 1 << 63 is no int64.
    if max(left) > _LARGEST_SHIFT:
        raise Unsupported("its operands' scales are too far apart", "quantize them to nearer ones")
    sides = [builder.mul(value, 1 << bits) for value, bits in zip(steps, left, strict=True)]
    return sides, 2.0**finer


def _shift_and_multiply(
    builder: IntegerBuilder,
    arithmetic: Arithmetic,
    steps: list[Value],
    encodings: list[Encoding],
    shift: int,
) -> tuple[list[Value], float]:
    """Shift both left and multiply by their share of twice the larger scale (TFLite's ADD)."""
    narrow = arithmetic.multiplier is Multiplier.FLOAT32
    real = np.float32 if narrow else np.float64
    # Twice: both multipliers are at most a half, so that the sum of two operands does not overflow.
    twice = real(2) * max(real(encoding.scale.item()) for encoding in encodings)
    sides = []
    for value, encoding in zip(steps, encodings, strict=True):
        multiplier, exponent = quantize_multiplier(real(encoding.scale.item()) / twice)
        moved = builder.mul(value, 1 << shift)
        sides.append(multiply_fixed(builder, moved, multiplier, exponent, arithmetic))
    return sides, float(twice) * 2.0**-shift


def _common_exponent(
    builder: IntegerBuilder,
    way: FixedPoint,
    steps: list[Value],
    encodings: list[Encoding],
    output: Encoding,
) -> tuple[list[Value], Array]:
    """Multiply both by integers of one exponent (XNNPACK's add)."""
    scale = np.float32(output.scale.item())
    ratios = [float(np.float32(encoding.scale.item()) / scale) for encoding in encodings]
    # The larger factor is from 2 ** addition_shift to twice that, whatever the scales are.
    bits = way.addition_shift - (math.frexp(max(ratios))[1] - 1)
    factors = [int(np.rint(math.ldexp(ratio, bits))) for ratio in ratios]
    sides = [builder.mul(value, factor) for value, factor in zip(steps, factors, strict=True)]
    return sides, np.asarray(math.ldexp(1.0, -bits))


@REALIZERS.register(Function)
def function(step: StepBuilder) -> None:
    """Realize a function of codes: a table with an entry for each."""
    operation = cast(Function, step.operation)
    source, output = step.encoding(step.tensor(0)), step.encoding(step.output)
    if source.dtype.itemsize > _WIDEST_TABLE:
        raise Unsupported(f"it is a function of {source.dtype}", "quantize its input to 16 bits")
    low, high = type_range(source)
    codes = np.arange(low, high + 1, dtype=np.int64)
    table = function_of_codes(operation, step.arithmetic, codes, source, output)
    order, builder = step.order(0), step.builder
    # Tables begin with the lowest code.
    index = builder.sub(builder.wide(step.read(0, order)), low)
    step.set_result(builder.take(table, index), order)


@REALIZERS.register(PRelu)
def prelu(step: StepBuilder) -> None:
    """Realize a slope below 0: both sides are computed, and one is taken."""
    arithmetic, builder = step.arithmetic, step.builder
    refuse_floats(arithmetic)
    data, slopes = (step.encoding(step.tensor(slot)) for slot in range(2))
    output = step.encoding(step.output)
    values, order = operands(step)
    steps = steps_of(builder, values[0], data)
    sloped = builder.mul(steps, steps_of(builder, values[1], slopes))
    factors = [data.scale, slopes.scale]
    below = real_multiplier(arithmetic, factors, output)
    above = real_multiplier(arithmetic, factors[:1], output)
    left = builder.wide(requantize_sums(builder, sloped, arithmetic, below, output))
    right = builder.wide(requantize_sums(builder, steps, arithmetic, above, output))
    # A product with 0 or 1 in place of Where, which integer runtimes seldom have.
    moved = builder.mul(builder.is_negative(steps), builder.sub(left, right))
    chosen = builder.clip(builder.add(right, moved), output.quant_min, output.quant_max)
    step.set_result(builder.cast(chosen, output.dtype), order)
