"""Kernels of two operands: each code pair of 8-bit operands is computed once, then looked up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intact.engines.integer.kernel import (
    KERNELS,
    Compute,
    Kernel,
    Overflows,
    encoding_of,
    kernel_of,
    operation_of,
)
from intact.engines.integer.pointwise.constants import added_constant
from intact.engines.integer.pointwise.conversions import (
    every_code,
    look_up_pairs,
    recoder,
    table_bits,
)
from intact.errors import ConfigError
from intact.numerics.fixed_point import power_of_two_exponent, quantize_multiplier
from intact.program import Array, Encoding, Step
from intact.program.arithmetic.ends import effective, ends_codes, has_ends
from intact.program.arithmetic.fixed_functions import multiply_fixed
from intact.program.arithmetic.reals import Reals, round_codes, to_codes, to_reals
from intact.program.arithmetic.requantize import (
    Requantizer,
    code_bounds,
    real_multiplier,
    real_type,
)
from intact.program.operations import Binary, Bounds, Elementwise
from intact.targets import (
    Addition,
    Arithmetic,
    FixedPoint,
    Float,
    FloatEnds,
    FloatInTurn,
    FloatOnce,
    Multiplier,
    Product,
)

_SQUARE_BITS = 30

"""Operands are scaled to at most half their size, so that a difference is no longer than one."""

_WIDEST_SHIFT = 40

"""Scales that lie further apart than this many bits would leave 64 bits with 16-bit codes."""


def addition(
    arithmetic: Arithmetic,
    first: Encoding,
    second: Encoding,
    output: Encoding,
    bounds: Bounds,
    *,
    sign: int,
    repeats_first: bool = False,
) -> Compute | None:
    """Return ``first + sign * second`` between codes that broadcast; all have one scale.

    None where the arithmetic dequantizes, adds and quantizes: an operator that is not fused.

    Args:
        arithmetic: How.
        first: Of the first operand.
        second: Of the second operand.
        output: Of the result.
        bounds: What it is clamped to.
        sign: 1 or -1.
        repeats_first: Neighbours in memory meet one element of the first operand, where the
            runtime has them: it takes the operands in the other order then.
    """
    way, ends = arithmetic.requantize, (first, second, output, bounds, sign)
    match way:
        case FloatEnds():
            return _in_units(arithmetic, *ends)
        case FloatOnce(addition=Addition.FUSED_MULTIPLY_ADD):
            return _fused_multiply_add(arithmetic, *ends, repeats_first=repeats_first)
        case Float():
            return None
        case FixedPoint(product=Product.SINGLE):
            return _common_exponent(arithmetic, way, *ends)
    sides, unit = _on_one_scale(arithmetic, first, second)
    requantize = Requantizer(arithmetic, unit / np.float64(output.scale.item()), output, bounds)
    return lambda left, right: requantize(sides[0](left) + sign * sides[1](right))


def squared_difference(
    arithmetic: Arithmetic, first: Encoding, second: Encoding, output: Encoding, bounds: Bounds
) -> Compute | None:
    """Return the square of a difference, computed as :func:`addition` computes the difference.

    Operands are shifted left no further than leaves a square of 31 bits: by 7 for 8-bit codes,
    which is TFLite's number. None where the arithmetic computes it on real numbers.
    """
    if isinstance(arithmetic.requantize, Float):
        return None
    widest = 8 * max(first.dtype.itemsize, second.dtype.itemsize)
    most = max((_SQUARE_BITS - 2 * widest) // 2, 0)
    sides, unit = _on_one_scale(arithmetic, first, second, most)
    requantize = Requantizer(arithmetic, unit**2 / np.float64(output.scale.item()), output, bounds)
    return lambda left, right: requantize((sides[0](left) - sides[1](right)) ** 2)


def _on_one_scale(
    arithmetic: Arithmetic, first: Encoding, second: Encoding, most: int = _WIDEST_SHIFT
) -> tuple[tuple[Compute, Compute], float]:
    """Return what turns codes into integers of one scale, for each operand, and that scale.

    Fixed point shifts them left for that, by ``most`` bits at most.
    """
    way = arithmetic.requantize
    if isinstance(way, FixedPoint):
        return _shifted(arithmetic, first, second, min(way.addition_shift, most))
    return _aligned(first, second)


def _shifted(
    arithmetic: Arithmetic, first: Encoding, second: Encoding, shift: int
) -> tuple[tuple[Compute, Compute], float]:
    """Shift both left and multiply by their share of twice the larger scale (TFLite's ADD).

    An operand and its multiplier are below one half, so that their sum stays in 32 bits.
    """
    narrow = arithmetic.multiplier is Multiplier.FLOAT32
    real = np.float32 if narrow else np.float64
    twice = real(2) * max(real(first.scale.item()), real(second.scale.item()))

    def side(encoding: Encoding) -> Compute:
        multiplier, exponent = quantize_multiplier(real(encoding.scale.item()) / twice)
        zero_point = encoding.zero_point.item()

        def scaled(codes: Array) -> Array:
            steps = (codes.astype(np.int64) - zero_point) << shift
            return multiply_fixed(arithmetic, steps, multiplier, exponent)

        return scaled

    return (side(first), side(second)), float(twice) * 2.0**-shift


def _aligned(first: Encoding, second: Encoding) -> tuple[tuple[Compute, Compute], float]:
    """Shift the operand of the coarser power of two to the finer one."""
    exponents = [int(power_of_two_exponent(encoding.scale).item()) for encoding in (first, second)]
    finer = min(exponents)
    if max(exponents) - finer > _WIDEST_SHIFT:
        raise ConfigError(
            f"scales of 2**{exponents[0]} and 2**{exponents[1]} are too far apart to be added",
            remedy="quantize both operands to scales that are nearer to each other",
        )

    def side(encoding: Encoding, exponent: int) -> Compute:
        zero_point = encoding.zero_point.item()
        return lambda codes: (codes.astype(np.int64) - zero_point) << (exponent - finer)

    return (side(first, exponents[0]), side(second, exponents[1])), 2.0**finer


def _common_exponent(
    arithmetic: Arithmetic,
    way: FixedPoint,
    first: Encoding,
    second: Encoding,
    output: Encoding,
    bounds: Bounds,
    sign: int,
) -> Compute:
    """Multiply both by integers of one exponent, add, shift once, half up (XNNPACK's add).

    Measured with LiteRT 2.3.0: 0 of 24 * 65536 code pairs differ.
    """
    ratios = [
        float(np.float32(e.scale.item()) / np.float32(output.scale.item())) for e in (first, second)
    ]
    bits = way.addition_shift - (math.frexp(max(ratios))[1] - 1)
    multipliers = [int(np.rint(math.ldexp(ratio, bits))) for ratio in ratios]
    zeros = first.zero_point.item(), second.zero_point.item()
    requantize = Requantizer(arithmetic, math.ldexp(1.0, -bits), output, bounds)

    def compute(left: Array, right: Array) -> Array:
        scaled = (left.astype(np.int64) - zeros[0]) * multipliers[0]
        return requantize(scaled + sign * ((right.astype(np.int64) - zeros[1]) * multipliers[1]))

    return compute


def _in_units(
    arithmetic: Arithmetic,
    first: Encoding,
    second: Encoding,
    output: Encoding,
    bounds: Bounds,
    sign: int,
) -> Compute:
    """Count the first operand in steps of the second, add, quantize with ends in those (OpenVINO).

    Measured with openvino 2026.4.1: 0 of 40 * 65536 code pairs differ.
    """
    scales = [np.float32(effective(arithmetic, e).scale.item()) for e in (first, second)]
    ratio = scales[0] / scales[1]
    zeros = first.zero_point.item(), second.zero_point.item()
    limits = code_bounds(arithmetic, output, bounds)

    def compute(left: Array, right: Array) -> Array:
        steps = (left.astype(np.int64) - zeros[0]).astype(np.float32) * ratio
        sums = steps + (sign * (right.astype(np.int64) - zeros[1])).astype(np.float32)
        return ends_codes(sums, arithmetic, output, limits, float(scales[1]))

    return compute


def _fused_multiply_add(
    arithmetic: Arithmetic,
    first: Encoding,
    second: Encoding,
    output: Encoding,
    bounds: Bounds,
    sign: int,
    *,
    repeats_first: bool,
) -> Compute:
    """Add codes times ratios to a constant that holds every zero point (ONNX Runtime's x86 code).

    ``fma(a, s_a / s_y, fma(b, s_b / s_y, z_y - fma(s_a / s_y, z_a, s_b / s_y * z_b)))`` in
    float32, where an operand that is repeated counts as ``b``. Measured with onnxruntime 1.31.1: 0
    of 400 * 65536 code pairs differ; without the fused multiplications 1 of 2000, without that of
    the zero points 74 of them all.
    """
    ratios = [np.float32(e.scale.item()) / np.float32(output.scale.item()) for e in (first, second)]
    ratios[1] = ratios[1] * np.float32(sign)
    zeros = [np.float32(e.zero_point.item()) for e in (first, second)]
    zero_point = np.float32(output.zero_point.item())

    def compute(left: Array, right: Array) -> Array:
        operands = [(left, ratios[0], zeros[0]), (right, ratios[1], zeros[1])]
        if repeats_first:
            operands.reverse()
        (a, ratio_a, zero_a), (b, ratio_b, zero_b) = operands
        constant = zero_point - _fused(zero_a, ratio_a, ratio_b * zero_b)
        inner = _fused(b, ratio_b, constant)
        return round_codes(_fused(a, ratio_a, inner), arithmetic, output, bounds)

    return compute


def _fused(codes: npt.ArrayLike, factor: np.float32, addend: Reals | np.float32) -> Reals:
    """Return ``codes * factor + addend`` rounded to float32 once.

    The product is exact in float64; the sum is but for exponents that lie 13 bits apart.
    """
    product = np.asarray(codes, np.float64) * np.float64(factor)
    wide = product + np.asarray(addend, np.float64)
    sums: Reals = np.asarray(wide, np.float32)
    return sums


_ON_REALS: dict[Binary, Callable[[Reals, Reals], Reals]] = {
    Binary.ADD: np.add,
    Binary.SUB: np.subtract,
    Binary.MUL: np.multiply,
    Binary.DIV: np.divide,
    Binary.SQUARED_DIFFERENCE: lambda first, second: np.square(first - second),
    Binary.MINIMUM: np.minimum,
    Binary.MAXIMUM: np.maximum,
}


@dataclass(frozen=True)
class _Operation:
    """What is computed between codes of which encodings, and how."""

    kind: Binary
    arithmetic: Arithmetic
    first: Encoding
    second: Encoding
    output: Encoding
    bounds: Bounds
    repeats_first: bool

    @property
    def per_channel(self) -> bool:
        """Whether one of the three has scales by channel."""
        return any(e.axis is not None for e in (self.first, self.second, self.output))


@KERNELS.register(Elementwise)
def _elementwise(step: Step, _: Overflows) -> Kernel:
    operation = operation_of(step, Elementwise)
    first, second = (encoding_of(step, tensor) for tensor in step.inputs)
    output = encoding_of(step, step.outputs[0])
    kind, bounds = operation.kind, operation.bounds
    added = added_constant(step, operation)
    if added is not None:
        return kernel_of(step, added)
    ends = (first, second, output, bounds)
    compute = _compute(_Operation(kind, step.arithmetic, *ends, _repeats_first(step)))
    if not table_bits(first) == table_bits(second) == 8 or output.axis is not None:
        return kernel_of(step, compute)
    table = compute(every_code(first)[:, None], every_code(second)[None, :])
    return kernel_of(step, lambda left, right: look_up_pairs(table, left, right))


def _repeats_first(step: Step) -> bool:
    """Tell whether the first operand is repeated along the model's last axis that is not 1 long."""
    output = step.outputs[0]
    rank = len(output.shape)
    shapes = [(1,) * (rank - len(tensor.shape)) + tensor.shape for tensor in step.inputs if tensor]
    order = range(rank) if output.permutation is None else np.argsort(output.permutation)
    for axis in reversed(order):
        lengths = shapes[0][axis], shapes[1][axis]
        if lengths != (1, 1):
            return bool(lengths[0] == 1)
    return False


def _compute(operation: _Operation) -> Compute:
    """Return the function from two arrays of codes that broadcast to codes of the output."""
    kind = operation.kind
    in_turn = kind is Binary.MUL and isinstance(operation.arithmetic.requantize, FloatInTurn)
    if operation.per_channel or kind is Binary.DIV or in_turn:
        return _on_reals(operation)
    if kind in (Binary.MINIMUM, Binary.MAXIMUM):
        return _extreme(operation)
    if kind is Binary.MUL:
        return (_scaled_product if has_ends(operation.arithmetic) else _product)(operation)
    arguments = (operation.first, operation.second, operation.output, operation.bounds)
    if kind in (Binary.ADD, Binary.SUB):
        sign = 1 if kind is Binary.ADD else -1
        repeats = operation.repeats_first
        added = addition(operation.arithmetic, *arguments, sign=sign, repeats_first=repeats)
        return added or _on_reals(operation)
    return squared_difference(operation.arithmetic, *arguments) or _on_reals(operation)


def _on_reals(operation: _Operation) -> Compute:
    """Return what dequantizes, computes in floats and quantizes: an operator that is not fused."""
    kind = real_type(operation.arithmetic)
    function = _ON_REALS[operation.kind]
    operands = [effective(operation.arithmetic, e) for e in (operation.first, operation.second)]

    def compute(first: Array, second: Array) -> Array:
        left = to_reals(first, operands[0], kind)
        right = to_reals(second, operands[1], kind)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            reals = np.asarray(function(left, right))
        return to_codes(reals, operation.arithmetic, operation.output, operation.bounds)

    return compute


def _scaled_product(operation: _Operation) -> Compute:
    """Multiply the first operand by both scales, then by the second (OpenVINO).

    Measured with openvino 2026.4.1: 0 of 20 * 65536 code pairs differ.
    """
    arithmetic, operands = operation.arithmetic, (operation.first, operation.second)
    scales = [np.float32(effective(arithmetic, each).scale.item()) for each in operands]
    zeros = [each.zero_point.item() for each in operands]
    limits = code_bounds(arithmetic, operation.output, operation.bounds)
    factor = scales[0] * scales[1]

    def compute(first: Array, second: Array) -> Array:
        scaled = (first.astype(np.int64) - zeros[0]).astype(np.float32) * factor
        product = scaled * (second.astype(np.int64) - zeros[1]).astype(np.float32)
        return ends_codes(product, arithmetic, operation.output, limits)

    return compute


def _product(operation: _Operation) -> Compute:
    scales = [operation.first.scale, operation.second.scale]
    multiplier = real_multiplier(operation.arithmetic, scales, operation.output)
    requantize = Requantizer(operation.arithmetic, multiplier, operation.output, operation.bounds)
    zeros = operation.first.zero_point.item(), operation.second.zero_point.item()

    def compute(first: Array, second: Array) -> Array:
        product = (first.astype(np.int64) - zeros[0]) * (second.astype(np.int64) - zeros[1])
        return requantize(product)

    return compute


def _extreme(operation: _Operation) -> Compute:
    """Return the smaller or larger of two codes, once both are the output's.

    Bringing a code to another scale keeps the order, so that it may come first.
    """
    left, right = (
        recoder(operation.arithmetic, source, operation.output)
        for source in (operation.first, operation.second)
    )
    low, high = code_bounds(operation.arithmetic, operation.output, operation.bounds)
    choose = np.minimum if operation.kind is Binary.MINIMUM else np.maximum

    def compute(first: Array, second: Array) -> Array:
        chosen = choose(left(first), right(second))
        clamped: Array = np.clip(chosen, low, high)
        return clamped

    return compute
