"""Makes the kernels of Reduce: the mean, sum or an extreme over axes, and where an extreme is."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from intact.engines.integer.kernel import (
    KERNELS,
    Kernel,
    Overflows,
    kernel_of,
    operation_of,
    per_tensor,
)
from intact.engines.integer.pointwise.conversions import Recode, recoder
from intact.numerics.fixed_point import power_of_two_exponent, quantize_multiplier
from intact.numerics.rounding import round_to_integer
from intact.program import Array, Encoding, Step
from intact.program.arithmetic.ends import effective, ends_codes, has_ends
from intact.program.arithmetic.fixed_functions import multiply_fixed
from intact.program.arithmetic.in_turn import InTurn
from intact.program.arithmetic.reals import round_codes
from intact.program.arithmetic.requantize import (
    Requantizer,
    code_bounds,
    real_multiplier,
    real_type,
)
from intact.program.operations import ArgReduce, Bounds, Reduce, Reduction
from intact.targets import (
    Arithmetic,
    Float,
    FloatInTurn,
    Multiplier,
    Shift,
    ZeroPointOrder,
)


@KERNELS.register(ArgReduce)
def _arg_reduce(step: Step, _: Overflows) -> Kernel:
    operation, kind = operation_of(step, ArgReduce), step.outputs[0].plain
    find = np.argmax if operation.kind is Reduction.MAX else np.argmin

    def place(array: Array) -> Array:
        # Both take the first of equal elements.
        found = find(array, axis=operation.axis, keepdims=operation.keep_dims)
        return np.asarray(found, kind)

    return kernel_of(step, place)


@KERNELS.register(Reduce)
def _reduce(step: Step, _: Overflows) -> Kernel:
    operation = operation_of(step, Reduce)
    source, target = per_tensor(step, step.inputs[0]), per_tensor(step, step.outputs[0])
    axes, keep = operation.axes, operation.keep_dims
    if operation.kind in (Reduction.MAX, Reduction.MIN):
        limits = np.iinfo(source.dtype)
        largest = operation.kind is Reduction.MAX
        # The extreme of no elements is what changes no other; numpy refuses to choose among none.
        choose, of_none = (np.max, limits.min) if largest else (np.min, limits.max)
        recode = recoder(step.arithmetic, source, target)

        def extreme(codes: Array) -> Array:
            return recode(choose(codes, axis=axes, keepdims=keep, initial=of_none))

        return kernel_of(step, extreme)
    zero_point = source.zero_point.item()
    ratio = real_multiplier(step.arithmetic, [source.scale], target)
    total = Requantizer(step.arithmetic, ratio, target)

    def reduce(codes: Array) -> Array:
        count = int(np.prod([codes.shape[axis] for axis in axes], dtype=np.int64))
        sums = codes.sum(axis=axes, keepdims=keep, dtype=np.int64) - count * zero_point
        if operation.kind is Reduction.SUM:
            return total(sums)
        # The count is known only here, where an axis is open: the function is made for each batch.
        return _mean(step.arithmetic, source, target, max(count, 1))(sums)

    return kernel_of(step, reduce)


def _mean(arithmetic: Arithmetic, source: Encoding, target: Encoding, count: int) -> Recode:
    """Make the function from sums of ``count`` codes less their zero points to means."""
    if has_ends(arithmetic):
        return lambda sums: ends_mean(arithmetic, source, target, sums, count)
    if isinstance(arithmetic.requantize, Shift):
        return _mean_by_shift(arithmetic, source, target, count)
    if not isinstance(arithmetic.requantize, Float):
        return _fixed_point_mean(arithmetic, source, target, count)
    if arithmetic.zero_point is ZeroPointOrder.AFTER_ROUNDING:
        return float_mean(arithmetic, source, target, count)
    real = _multiplier_type(arithmetic)
    ratio = real(source.scale.item()) / real(target.scale.item())
    # By the reciprocal of the count and not divided by it, as XNNPACK prepares it.
    multiplier = ratio * (real(1) / real(count))
    return _mean_with_offset(arithmetic, multiplier, count * source.zero_point.item(), target)


def float_mean(
    arithmetic: Arithmetic,
    source: Encoding,
    target: Encoding,
    count: int,
    bounds: Bounds = Bounds(),  # noqa: B008
) -> Recode:
    """Make the function that multiplies sums less their zero points by ``s_in / (s_out * count)``.

    ONNX Runtime's GlobalAveragePool: 0 of a million codes differ with onnxruntime 1.31.1.
    """
    if isinstance(arithmetic.requantize, FloatInTurn):
        return InTurn(arithmetic, [source.scale], [count, target.scale], target, bounds)
    real = _multiplier_type(arithmetic)
    divisor = real(target.scale.item()) * real(count)
    return Requantizer(arithmetic, real(source.scale.item()) / divisor, target, bounds)


def ends_mean(
    arithmetic: Arithmetic,
    source: Encoding,
    target: Encoding,
    sums: Array,
    count: npt.ArrayLike,
    bounds: Bounds = Bounds(),  # noqa: B008
) -> Array:
    """Divide sums less their zero points by a count, quantize by ends in steps of the source.

    OpenVINO's averages: 0 of four million codes differ with openvino 2026.4.1.
    """
    means = np.asarray(sums.astype(np.float32) / np.asarray(count, np.float32), np.float32)
    unit = effective(arithmetic, source).scale.item()
    return ends_codes(means, arithmetic, target, code_bounds(arithmetic, target, bounds), unit)


def _multiplier_type(arithmetic: Arithmetic) -> type[np.floating[Any]]:
    narrow = arithmetic.multiplier is Multiplier.FLOAT32
    return np.float32 if narrow else np.float64


def _mean_with_offset(
    arithmetic: Arithmetic, multiplier: np.floating[Any], zero_sum: int, target: Encoding
) -> Recode:
    """Multiply the sum with its zero points in it, and add a constant that takes them away.

    XNNPACK's mean: ``sum * m + (z_out - zero_sum * m)`` in floats. Measured with LiteRT 2.3.0: 0
    of 6 million codes differ; the orders of the products show in ties.
    """
    real = real_type(arithmetic)
    factor = real(multiplier)
    constant = real(target.zero_point.item()) - real(zero_sum) * factor

    def mean(sums: Array) -> Array:
        steps = (sums + zero_sum).astype(real) * factor + constant
        return round_codes(steps, arithmetic, target)

    return mean


def _fixed_point_mean(
    arithmetic: Arithmetic, source: Encoding, target: Encoding, count: int
) -> Recode:
    """Divide the multiplier of the scales by the count, in integers.

    As many bits as the count has, and as 32 bits of shift leave room for, are kept by shifting the
    multiplier left before it is divided and cut off (TFLite's MEAN; measured with LiteRT 2.3.0).
    """
    ratio = real_multiplier(arithmetic, [source.scale], target)
    multiplier, exponent = (part.item() for part in quantize_multiplier(ratio))
    # Three bounds: the count has no more bits to gain; more than 32 would leave int64; and the
    # multiplication takes no exponent below -31.
    kept = min(count.bit_length() - 1, 32, 31 + exponent)
    divided = (multiplier << kept) // count
    zero_point = target.zero_point.item()

    def mean(sums: Array) -> Array:
        steps = multiply_fixed(arithmetic, sums, divided, exponent - kept)
        return _clamp(steps + zero_point, target)

    return mean


def _mean_by_shift(
    arithmetic: Arithmetic, source: Encoding, target: Encoding, count: int
) -> Recode:
    """Divide by the count and shift, rounding once."""
    ratio = power_of_two_exponent(source.scale) - power_of_two_exponent(target.scale)
    left, right = max(ratio.item(), 0), max(-ratio.item(), 0)
    zero_point = target.zero_point.item()

    def mean(sums: Array) -> Array:
        # Far below 2**51, a quotient in float64 is a tie only if the exact one is.
        quotients = (sums << left) / np.float64(count << right)
        nearest = round_to_integer(quotients, arithmetic.rounding)
        return _clamp(nearest + zero_point, target)

    return mean


def _clamp(codes: Array, encoding: Encoding) -> Array:
    clamped: Array = np.clip(codes, encoding.quant_min, encoding.quant_max).astype(encoding.dtype)
    return clamped
