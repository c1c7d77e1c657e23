"""Realizes Softmax along one axis, in fixed point (TFLite's reference kernel).

Exponentials of differences to the largest code are a table; their sum lies between a power of two
and so many times it, so that its bits are counted by comparing it with the few powers there are.
"""

from __future__ import annotations

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
    rounding_divide_by_pot,
)
from intact.numerics.fixed_point_functions import constant, exp_on_negative_values
from intact.program.arithmetic.fixed_functions import fraction_bits, input_multiplier
from intact.program.operations import Softmax
from intact.program.program import Encoding
from intact.program.realize.builder import IntegerBuilder
from intact.program.realize.graph import Op, Value
from intact.program.realize.requantize import high_product, quotient, zero_point
from intact.program.realize.step import REALIZERS, StepBuilder, known
from intact.targets import Functions

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
