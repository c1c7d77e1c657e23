"""Operations on each element: sums, products, extremes, functions, other scales."""

from __future__ import annotations

import math
from typing import cast

import msgspec
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
from intact.program.realize.builder import Draft
from intact.program.realize.graph import Order, Value
from intact.program.realize.part import Part, Realize, plain, type_range
from intact.program.realize.requantize import multiply_fixed, refuse_floats, requantized, steps_of
from intact.targets import Arithmetic, ScalePrecision
from intact.targets import Requantize as Method

_SQUARE_BITS = 30
"""Operands of a squared difference are scaled to at most half of it, as the engine does."""
_WIDEST_TABLE = 2
"""Bytes of codes that have a table."""


def recoded(
    part: Part, codes: Value, source: Encoding, target: Encoding, bounds: Bounds | None = None
) -> Value:
    """Return codes at another scale and zero point; themselves where nothing changes."""
    bounds = Bounds() if bounds is None else bounds
    if target.same_as(source) and bounds == Bounds():
        return codes
    refuse_floats(part.step.arithmetic)
    multiplier = real_multiplier(part.step.arithmetic, [source.scale], target)
    steps = steps_of(part.draft, codes, source)
    return requantized(part.draft, steps, part.step.arithmetic, multiplier, target, bounds)


def requantize(part: Part) -> None:
    """Realize a change of scale."""
    source, target = part.encoding(part.tensor(0)), part.encoding(part.output)
    order = part.order(0)
    part.give(recoded(part, part.read(0, order), source, target), order)


def operands(part: Part) -> tuple[list[Value], Order]:
    """Return both operands with axes that lie alike, and how they lie.

    What has fewer axes gets them in front, as broadcasting does.
    """
    rank = max(part.rank(0), part.rank(1))
    orders = {
        part.order(slot)
        for slot in range(2)
        if part.rank(slot) == rank and not part.tensor(slot).is_constant
    }
    short = any(part.rank(at) < rank and not part.tensor(at).is_constant for at in range(2))
    order = orders.pop() if len(orders) == 1 and not short else plain(rank)
    return [_operand(part, slot, order) for slot in range(2)], order


def _operand(part: Part, slot: int, order: Order) -> Value:
    data, rank = part.tensor(slot).data, len(order)
    if data is None:
        return part.read(slot, order if part.rank(slot) == rank else None)
    full = data.reshape((1,) * (rank - data.ndim) + data.shape)
    return part.draft.constant(full.transpose(order), "constant")


def elementwise(part: Part) -> None:
    """Realize an operation on two operands."""
    operation, arithmetic = cast(Elementwise, part.step.operation), part.step.arithmetic
    encodings = [part.encoding(part.tensor(slot)) for slot in range(2)]
    output, kind, draft = part.encoding(part.output), operation.kind, part.draft
    if kind is Binary.DIV:
        raise Unsupported("there is no division of codes", "leave the node out of the integer part")
    values, order = operands(part)
    if kind in (Binary.MINIMUM, Binary.MAXIMUM):
        sides = [recoded(part, v, e, output) for v, e in zip(values, encodings, strict=True)]
        choose = draft.minimum if kind is Binary.MINIMUM else draft.maximum
        chosen = choose(draft.wide(sides[0]), draft.wide(sides[1]))
        low, high = code_bounds(arithmetic, output, operation.bounds)
        part.give(draft.cast(draft.clip(chosen, low, high), output.dtype), order)
        return
    refuse_floats(arithmetic)
    steps = [steps_of(draft, v, e) for v, e in zip(values, encodings, strict=True)]
    if kind is Binary.MUL:
        scales = [encoding.scale for encoding in encodings]
        multiplier = real_multiplier(arithmetic, scales, output)
        found = draft.mul(*steps)
    elif kind is Binary.SQUARED_DIFFERENCE:
        found, multiplier = _squared_difference(draft, arithmetic, steps, encodings, output)
    else:
        sides, multiplier = _on_one_scale(draft, arithmetic, steps, encodings, output)
        found = (draft.add if kind is Binary.ADD else draft.sub)(*sides)
    codes = requantized(draft, found, arithmetic, multiplier, output, operation.bounds)
    part.give(codes, order)


def _squared_difference(
    draft: Draft,
    arithmetic: Arithmetic,
    steps: list[Value],
    encodings: list[Encoding],
    output: Encoding,
) -> tuple[Value, Array]:
    widest = 8 * max(encoding.dtype.itemsize for encoding in encodings)
    shift = max(min(arithmetic.addition_shift, (_SQUARE_BITS - 2 * widest) // 2), 0)
    narrowed = msgspec.structs.replace(arithmetic, addition_shift=shift)
    if arithmetic.requantize is Method.SHIFT:
        sides, unit = _aligned(draft, steps, encodings)
    else:
        sides, unit = _shifted(draft, narrowed, steps, encodings)
    difference = draft.sub(*sides)
    square = draft.mul(difference, difference)
    return square, np.asarray(unit**2 / np.float64(output.scale.item()))


def _on_one_scale(
    draft: Draft,
    arithmetic: Arithmetic,
    steps: list[Value],
    encodings: list[Encoding],
    output: Encoding,
) -> tuple[list[Value], Array]:
    """Return both operands at one scale, and the multiplier from there to the output."""
    if arithmetic.requantize is Method.FIXED_POINT_SINGLE:
        return _common_exponent(draft, arithmetic, steps, encodings, output)
    if arithmetic.requantize is Method.SHIFT:
        sides, unit = _aligned(draft, steps, encodings)
    else:
        sides, unit = _shifted(draft, arithmetic, steps, encodings)
    return sides, np.asarray(unit / np.float64(output.scale.item()))


def _aligned(
    draft: Draft, steps: list[Value], encodings: list[Encoding]
) -> tuple[list[Value], float]:
    """Bring the operand of the coarser power of two to the finer one."""
    exponents = [int(power_of_two_exponent(encoding.scale).item()) for encoding in encodings]
    finer = min(exponents)
    left = [exponent - finer for exponent in exponents]
    if max(left) > 62:
        raise Unsupported("its operands' scales are too far apart", "quantize them to nearer ones")
    sides = [draft.mul(value, 1 << bits) for value, bits in zip(steps, left, strict=True)]
    return sides, 2.0**finer


def _shifted(
    draft: Draft, arithmetic: Arithmetic, steps: list[Value], encodings: list[Encoding]
) -> tuple[list[Value], float]:
    """Shift both left and multiply by their share of twice the larger scale (TFLite's ADD)."""
    narrow = arithmetic.multiplier_precision is ScalePrecision.FLOAT32
    real = np.float32 if narrow else np.float64
    twice = real(2) * max(real(encoding.scale.item()) for encoding in encodings)
    shift = arithmetic.addition_shift
    sides = []
    for value, encoding in zip(steps, encodings, strict=True):
        multiplier, exponent = quantize_multiplier(real(encoding.scale.item()) / twice)
        moved = draft.mul(value, 1 << shift)
        sides.append(multiply_fixed(draft, moved, multiplier, exponent, arithmetic))
    return sides, float(twice) * 2.0**-shift


def _common_exponent(
    draft: Draft,
    arithmetic: Arithmetic,
    steps: list[Value],
    encodings: list[Encoding],
    output: Encoding,
) -> tuple[list[Value], Array]:
    """Multiply both by integers of one exponent (XNNPACK's add)."""
    scale = np.float32(output.scale.item())
    ratios = [float(np.float32(encoding.scale.item()) / scale) for encoding in encodings]
    bits = arithmetic.addition_shift - (math.frexp(max(ratios))[1] - 1)
    factors = [int(np.rint(math.ldexp(ratio, bits))) for ratio in ratios]
    sides = [draft.mul(value, factor) for value, factor in zip(steps, factors, strict=True)]
    return sides, np.asarray(math.ldexp(1.0, -bits))


def function(part: Part) -> None:
    """Realize a function of codes: a table with an entry for each."""
    operation = cast(Function, part.step.operation)
    source, output = part.encoding(part.tensor(0)), part.encoding(part.output)
    if source.dtype.itemsize > _WIDEST_TABLE:
        raise Unsupported(f"it is a function of {source.dtype}", "quantize its input to 16 bits")
    low, high = type_range(source)
    codes = np.arange(low, high + 1, dtype=np.int64)
    table = function_of_codes(operation, part.step.arithmetic, codes, source, output)
    order, draft = part.order(0), part.draft
    index = draft.sub(draft.wide(part.read(0, order)), low)
    part.give(draft.take(table, index), order)


def prelu(part: Part) -> None:
    """Realize a slope below 0: both sides are computed, and one is taken."""
    arithmetic, draft = part.step.arithmetic, part.draft
    refuse_floats(arithmetic)
    data, slopes = (part.encoding(part.tensor(slot)) for slot in range(2))
    output = part.encoding(part.output)
    values, order = operands(part)
    steps = steps_of(draft, values[0], data)
    sloped = draft.mul(steps, steps_of(draft, values[1], slopes))
    factors = [data.scale, slopes.scale]
    below = real_multiplier(arithmetic, factors, output)
    above = real_multiplier(arithmetic, factors[:1], output)
    left = draft.wide(requantized(draft, sloped, arithmetic, below, output))
    right = draft.wide(requantized(draft, steps, arithmetic, above, output))
    moved = draft.mul(draft.is_negative(steps), draft.sub(left, right))
    chosen = draft.clip(draft.add(right, moved), output.quant_min, output.quant_max)
    part.give(draft.cast(chosen, output.dtype), order)


TABLE: dict[type, Realize] = {
    Elementwise: elementwise,
    Function: function,
    PRelu: prelu,
    Requantize: requantize,
}
