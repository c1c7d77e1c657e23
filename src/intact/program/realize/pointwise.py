"""Realizes operations on each element: sums, products, functions, softmax, other scales."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import numpy as np

from intact.config import Rounding
from intact.errors import Unsupported
from intact.numerics.fixed_point import (
    INT32_MAX,
    INT32_MIN,
    Integers,
    multiply_by_quantized_multiplier,
    power_of_two_exponent,
    quantize_multiplier,
    rounding_divide_by_pot,
)
from intact.numerics.fixed_point_functions import constant, exp_on_negative_values
from intact.program.arithmetic.fixed_functions import fraction_bits, input_multiplier
from intact.program.arithmetic.functions import function_of_codes
from intact.program.arithmetic.requantize import code_bounds, real_multiplier
from intact.program.operations import (
    Binary,
    Bounds,
    Elementwise,
    Function,
    PRelu,
    Requantize,
    Softmax,
)
from intact.program.program import Array, Encoding
from intact.program.realize.builder import IntegerBuilder
from intact.program.realize.graph import Op, Order, Value
from intact.program.realize.requantize import (
    high_product,
    multiply_fixed,
    quotient,
    refuse_floats,
    requantize_sums,
    steps_of,
    zero_point,
)
from intact.program.realize.step import REALIZERS, StepBuilder, known, plain, type_range
from intact.targets import Arithmetic, FixedPoint, Functions, Multiplier, Product

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


# Realizes Softmax along one axis, in fixed point (TFLite's reference kernel).
#
# Exponentials of differences to the largest code are a table; their sum lies between a power of
# two and so many times it, so that its bits are counted by comparing it with the few powers there
# are.

_DIFFERENCE_BITS = 5
"""Integer bits of a difference to the largest."""
_SUM_BITS = 12
"""Integer bits of the sum of exponentials."""
_ONE = 1 << (31 - _SUM_BITS)
"""The exponential of no difference, in the sum's format."""


@REALIZERS.register(Softmax)
def softmax(step: StepBuilder) -> None:
    """Realize a Softmax of 8-bit codes."""
    operation, builder = cast(Softmax, step.operation), step.builder
    source, output = step.encoding(step.tensor(0)), step.encoding(step.output)
    fraction = fraction_bits(float(output.scale))
    fixed = step.arithmetic.functions is Functions.FIXED_POINT and not operation.log
    eight_bits = (source.dtype.itemsize, output.dtype.itemsize) == (1, 1)
    if not fixed or fraction is None or not eight_bits:
        raise Unsupported(
            "its exponentials are added up in floats", "cut the model before it, or leave it out"
        )
    order = step.order(0)
    data = builder.wide(step.read(0, order))
    axis = order.index(operation.axis % len(order))
    length = known(data.shape[axis])
    table = _exponentials(source)
    row = tuple(1 if at == axis else n for at, n in enumerate(data.shape))
    largest = builder.move(Op.LARGEST, data, row, axes=(axis,), keep=True)
    # The difference of two ranges would reach below 0: it is one to the row's largest.
    below = replace(builder.sub(largest, data), low=0, high=len(table) - 1)
    each = builder.take(np.asarray(table, np.int32), below, "exponentials")
    terms = np.asarray(rounding_divide_by_pot(table, _SUM_BITS), np.int32)
    term = builder.take(terms, below, "terms")
    if length * _ONE > np.iinfo(np.int32).max:
        raise Unsupported(f"it adds {length} exponentials", "use at most 4095")
    total = builder.emit(
        Op.SUM, [term], term.dtype, row, (_ONE, length * _ONE), axes=(axis,), keep=True
    )
    inverse, divisor, half = _reciprocal(builder, total, 31 - fraction)
    # Neither factor is negative: half away from zero is half up.
    share = builder.floor_div(builder.add(high_product(builder, each, inverse), half), divisor)
    zero = zero_point(output)
    limited = builder.clip(share, output.quant_min - zero, output.quant_max - zero)
    step.set_result(builder.cast(builder.add(limited, zero), output.dtype), order)


def _exponentials(data: Encoding) -> Integers:
    """Return the exponentials of differences ``0, -1, -2 ...`` in Q0, ``[256]``."""
    steps = np.arange(1 << 8 * data.dtype.itemsize, dtype=np.int64)
    multiplier, shift, radius = input_multiplier(np.float32(data.scale), _DIFFERENCE_BITS)
    counts = steps <= radius
    scaled = multiply_by_quantized_multiplier(np.where(counts, -steps, 0), multiplier, shift)
    return np.where(counts, exp_on_negative_values(scaled, _DIFFERENCE_BITS), 0)


def _reciprocal(builder: IntegerBuilder, total: Value, shift: int) -> tuple[Value, Value, Value]:
    """Return ``1 / total`` as a factor in Q0, the power of two to divide by then, and half of it.

    Args:
        builder: The graph.
        total: In Q12, from 1 on.
        shift: Further bits to divide by.
    """
    first = _ONE.bit_length()
    limits = [1 << bits for bits in range(first, total.high.bit_length())]
    counts = np.arange(len(limits) + 1)
    # With each power that the sum reaches, it is shifted left by one bit less.
    factors = np.int64(1) << (32 - first - counts)
    divisors = np.int64(1) << (_SUM_BITS - 32 + first + counts + shift)
    reached: Value | None = None
    for limit in limits:
        short = builder.is_negative(builder.sub(total, limit))
        is_there = builder.sub(builder.constant(np.int32(1)), short)
        reached = is_there if reached is None else builder.add(reached, is_there)
    tables = (("factors", factors), ("divisors", divisors), ("halves", divisors // 2))
    factor, divisor, half = (
        builder.constant(table[0], name) if reached is None else builder.take(table, reached, name)
        for name, table in tables
    )
    fraction = builder.sub(builder.mul(total, factor), 1 << 31)
    return _one_over_one_plus(builder, replace(fraction, low=0, high=INT32_MAX)), divisor, half


def _one_over_one_plus(builder: IntegerBuilder, x: Value) -> Value:
    """Return ``1 / (1 + x)`` in Q0 of ``x`` in Q0: three steps of Newton's method."""
    half = quotient(builder, builder.add(x, INT32_MAX), 2, Rounding.HALF_UP)
    first = high_product(builder, half, constant(-32 / 17, 2))
    guess = _known_in_32_bits(builder.add(first, constant(48 / 17, 2)))
    for _ in range(3):
        product = high_product(builder, half, guess)
        error = _known_in_32_bits(builder.sub(builder.constant(np.int64(1 << 29)), product))
        guess = _known_in_32_bits(
            builder.add(guess, _shift_left(builder, high_product(builder, guess, error), 2))
        )
    return _shift_left(builder, guess, 1)


def _known_in_32_bits(value: Value) -> Value:
    """Return a value that is known to lie between -4 and 4, in Q2: the reciprocal is 1 to 2."""
    return replace(value, low=INT32_MIN, high=INT32_MAX)


def _shift_left(builder: IntegerBuilder, value: Value, bits: int) -> Value:
    """Return a value times a power of two, saturated at 32 bits."""
    return builder.clip(builder.mul(value, 1 << bits), INT32_MIN, INT32_MAX)
