"""Makes the kernels of two operands: Add, Mul, Div, Max and so on.

Two operands of 8 bits have 65,536 pairs of codes. So each pair is computed once, and looked up from
then on.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from intact.engines.integer.kernel import (
    KERNELS,
    Compute,
    Kernel,
    Overflows,
    encoding_of,
    kernel_of,
    operation_of,
)
from intact.engines.integer.pointwise.conversions import (
    every_code,
    look_up_pairs,
    recoder,
    table_bits,
)
from intact.errors import ConfigError
from intact.numerics.fixed_point import power_of_two_exponent, quantize_multiplier
from intact.numerics.fused import fused_multiply_add
from intact.numerics.rounding import round_to_integer
from intact.program import Array, Encoding, Step, Tensor
from intact.program.arithmetic.ends import EndsGrid, effective, ends_codes, has_ends
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
        first: The encoding of the first operand.
        second: The encoding of the second operand.
        output: The encoding of the result.
        bounds: What it is clamped to.
        sign: 1 or -1.
        repeats_first: Neighbours in memory meet one element of the first operand, where the
            runtime has them: it takes the operands in the other order then.
    """
    way, ends = arithmetic.requantize, (first, second, output, bounds, sign)
    match way:
        case FloatEnds():
            return _add_in_units(arithmetic, *ends)
        case FloatOnce(addition=Addition.FUSED_MULTIPLY_ADD):
            return _add_fused(arithmetic, *ends, repeats_first=repeats_first)
        case Float():
            return None
        case FixedPoint(product=Product.SINGLE):
            return _common_exponent(arithmetic, way, *ends)
    sides, unit = _bring_to_one_scale(arithmetic, first, second)
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
    sides, unit = _bring_to_one_scale(arithmetic, first, second, most)
    requantize = Requantizer(arithmetic, unit**2 / np.float64(output.scale.item()), output, bounds)
    return lambda left, right: requantize((sides[0](left) - sides[1](right)) ** 2)


def _bring_to_one_scale(
    arithmetic: Arithmetic, first: Encoding, second: Encoding, most: int = _WIDEST_SHIFT
) -> tuple[tuple[Compute, Compute], float]:
    """Return what turns codes into integers of one scale, for each operand, and that scale.

    Fixed point shifts them left for that, by ``most`` bits at most.
    """
    way = arithmetic.requantize
    if isinstance(way, FixedPoint):
        return _shift_and_multiply(arithmetic, first, second, min(way.addition_shift, most))
    return _align(first, second)


def _shift_and_multiply(
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

        def scale(codes: Array) -> Array:
            steps = (codes.astype(np.int64) - zero_point) << shift
            return multiply_fixed(arithmetic, steps, multiplier, exponent)

        return scale

    return (side(first), side(second)), float(twice) * 2.0**-shift


def _align(first: Encoding, second: Encoding) -> tuple[tuple[Compute, Compute], float]:
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
    # The larger ratio gets all the bits that the accumulator has room for; the smaller one the same
    # exponent.
    bits = way.addition_shift - (math.frexp(max(ratios))[1] - 1)
    multipliers = [int(np.rint(math.ldexp(ratio, bits))) for ratio in ratios]
    zeros = first.zero_point.item(), second.zero_point.item()
    requantize = Requantizer(arithmetic, math.ldexp(1.0, -bits), output, bounds)

    def compute(left: Array, right: Array) -> Array:
        scaled = (left.astype(np.int64) - zeros[0]) * multipliers[0]
        return requantize(scaled + sign * ((right.astype(np.int64) - zeros[1]) * multipliers[1]))

    return compute


def _add_in_units(
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


def _add_fused(
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
    # Negated here and not behind the product: a sign is exact, the order of roundings stays.
    ratios[1] = ratios[1] * np.float32(sign)
    zeros = [np.float32(e.zero_point.item()) for e in (first, second)]
    zero_point = np.float32(output.zero_point.item())

    def compute(left: Array, right: Array) -> Array:
        operands = [(left, ratios[0], zeros[0]), (right, ratios[1], zeros[1])]
        if repeats_first:
            operands.reverse()
        (a, ratio_a, zero_a), (b, ratio_b, zero_b) = operands
        constant = zero_point - fused_multiply_add(zero_a, ratio_a, ratio_b * zero_b)
        inner = fused_multiply_add(b, ratio_b, constant)
        return round_codes(fused_multiply_add(a, ratio_a, inner), arithmetic, output, bounds)

    return compute


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
    added = constant_addition(step, operation)
    if added is not None:
        return kernel_of(step, added)
    ends = (first, second, output, bounds)
    # A table of pairs where both are 8 bits wide: the arithmetic runs on each of the 65,536 once,
    # and may be as slow as it is exact.
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
    # Cases: (1) scales by channel, divisions and scales in turn: real numbers, as an operator that
    # is not fused; (2) extremes: codes of the output compared; (3) products: one multiplier for
    # both scales; (4) sums and differences: both on one scale first; (5) squared differences: the
    # same, squared.
    in_turn = kind is Binary.MUL and isinstance(operation.arithmetic.requantize, FloatInTurn)
    if operation.per_channel or kind is Binary.DIV or in_turn:
        return _compute_on_reals(operation)
    if kind in (Binary.MINIMUM, Binary.MAXIMUM):
        return _extreme(operation)
    if kind is Binary.MUL:
        return (_multiply_scaled if has_ends(operation.arithmetic) else _product)(operation)
    arguments = (operation.first, operation.second, operation.output, operation.bounds)
    if kind in (Binary.ADD, Binary.SUB):
        sign = 1 if kind is Binary.ADD else -1
        repeats = operation.repeats_first
        added = addition(operation.arithmetic, *arguments, sign=sign, repeats_first=repeats)
        return added or _compute_on_reals(operation)
    return squared_difference(operation.arithmetic, *arguments) or _compute_on_reals(operation)


def _compute_on_reals(operation: _Operation) -> Compute:
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


def _multiply_scaled(operation: _Operation) -> Compute:
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


_CHANNELS = 1
"""The last of the model's axes along which a constant is folded."""


def constant_addition(step: Step, operation: Elementwise) -> Compute | None:
    """Return what adds a constant that the arithmetic folds (`FloatEnds.folded_constants`).

    Measured with openvino 2026.4.1 on 200 constants chosen for ties: 0 of 4 million sums differ;
    with the codes of the constant as an operand 2 % of sums with one number do.

    Returns:
        A function of both operands' codes. None where nothing is folded: no operand is constant,
        the constant is what is subtracted from, or there are scales by channel.
    """
    sign = {Binary.ADD: 1, Binary.SUB: -1}.get(operation.kind)
    encodings = [encoding_of(step, tensor) for tensor in (*step.inputs, *step.outputs)]
    constant = next((t for t in step.inputs if t is not None and t.data is not None), None)
    way = step.arithmetic.requantize
    folds = isinstance(way, FloatEnds) and way.folded_constants
    if not folds or sign is None or constant is None:
        return None
    place = step.inputs.index(constant)
    if (sign < 0 and place == 0) or any(each.axis is not None for each in encodings):
        return None
    arithmetic, source, output = step.arithmetic, encodings[1 - place], encodings[-1]
    unit = np.float32(effective(arithmetic, source).scale.item())
    with np.errstate(over="ignore"):
        # In steps of the other operand, as OpenVINO moves the constant into the FakeQuantize
        # behind: it is never rounded to codes.
        shift = np.asarray(sign * _numbers(step, constant) / unit, np.float32)
    limits = code_bounds(arithmetic, output, operation.bounds)
    zero = source.zero_point.item()
    grid = _moved_grid(step, constant, float(unit), shift)

    def compute(*operands: Array) -> Array:
        steps = (operands[1 - place].astype(np.int64) - zero).astype(np.float32)
        if grid is None:
            return ends_codes(steps + shift, arithmetic, output, limits, float(unit))
        factor, offset = (each.reshape(shift.shape) for each in (grid.factor, grid.offset))
        nearest = round_to_integer(fused_multiply_add(steps, factor, offset), arithmetic.rounding)
        codes: Array = np.clip(nearest + grid.first, *limits).astype(output.dtype)
        return codes

    return compute


def _numbers(step: Step, constant: Tensor) -> Reals:
    """Return the real numbers of a constant's codes, float32."""
    encoding = effective(step.arithmetic, encoding_of(step, constant))
    return to_reals(np.asarray(constant.data), encoding, np.float32)


def _moved_grid(step: Step, constant: Tensor, unit: float, shift: Reals) -> EndsGrid | None:
    """Return the output's grids with moved ends; None where a constant is added by itself.

    That is also one so large that float32 leaves nothing between the ends.
    """
    output = encoding_of(step, step.outputs[0])
    with contextlib.suppress(ConfigError):
        if _is_for_channels(constant, step.outputs[0]):
            return EndsGrid.from_encoding(step.arithmetic, output, unit, shift.ravel())
    return None


def _is_for_channels(constant: Tensor, output: Tensor) -> bool:
    """Tell whether a constant is one number, or the same along all axes behind the channels."""
    rank = len(output.shape)
    lengths = (1,) * (rank - len(constant.shape)) + constant.shape
    axes = range(rank) if output.permutation is None else output.permutation
    return all(n == 1 or axis <= _CHANNELS for n, axis in zip(lengths, axes, strict=True))
