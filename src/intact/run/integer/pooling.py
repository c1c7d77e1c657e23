"""Kernels that make one element of many: pools over windows, reductions over axes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from intact.program import Array, Encoding, Step
from intact.program.operations import Pool, PoolKind
from intact.run.integer import reductions
from intact.run.integer.conversions import recoder
from intact.run.integer.division import divide_rounded
from intact.run.integer.kernel import Kernel, Overflows, Prepare
from intact.run.integer.operands import kernel_of, operation_of, per_tensor
from intact.run.integer.reals import real_type, to_codes, to_reals
from intact.run.integer.requantize import Requantizer, code_bounds, real_multiplier
from intact.run.integer.taps import each_tap, pooled_lengths, reduce_windows, window_counts
from intact.targets import Arithmetic, Requantize, ZeroPointOrder

_FLOATS = (Requantize.FLOAT32, Requantize.FLOAT64)

Average = Callable[[Array], Array]


def _pool(step: Step, _: Overflows) -> Kernel:
    operation = operation_of(step, Pool)
    source, target = per_tensor(step, step.inputs[0]), per_tensor(step, step.outputs[0])
    if operation.kind is PoolKind.MAX:
        recode = recoder(step.arithmetic, source, target, operation.bounds)
        lowest = np.iinfo(source.dtype).min
        return kernel_of(
            step, lambda codes: recode(reduce_windows(codes, operation, np.maximum, lowest))
        )
    if step.arithmetic.requantize in _FLOATS:
        return kernel_of(step, _float_average(operation, step.arithmetic, source, target))
    if source.same_as(target):
        return kernel_of(step, _integer_average(operation, step.arithmetic, target))
    return kernel_of(step, _rescaled_average(operation, step.arithmetic, source, target))


def _float_average(
    operation: Pool, arithmetic: Arithmetic, source: Encoding, target: Encoding
) -> Average:
    """Add dequantised elements tap by tap, row by row, divide, quantise (ONNX Runtime).

    Float sums depend on their order. Measured with onnxruntime 1.31.1: no code differs.
    """
    kind = real_type(arithmetic)

    def average(codes: Array) -> Array:
        reals = to_reals(codes, source, kind)
        lengths = pooled_lengths(codes.shape, operation)
        sums = np.zeros((codes.shape[0], *lengths, codes.shape[-1]), kind)
        for outputs, inputs in each_tap(codes.shape, operation):
            sums[outputs] += reals[inputs]
        sums /= window_counts(codes.shape, operation)[..., None].astype(kind)
        return to_codes(sums, arithmetic, target, operation.bounds)

    return average


def _integer_average(operation: Pool, arithmetic: Arithmetic, encoding: Encoding) -> Average:
    """Add codes, divide, round once.

    With the zero point before rounding it is left inside the sums (TFLite's AVERAGE_POOL_2D); the
    order shows in ties that are rounded away from zero.
    """
    zero_point = encoding.zero_point.item()
    before = arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING
    low, high = code_bounds(arithmetic, encoding, operation.bounds)

    def average(codes: Array) -> Array:
        sums, counts, elements = _sums(operation, codes)
        if before:
            sums += (counts - elements) * zero_point  # pads that count hold the zero point
        else:
            sums -= elements * zero_point
        quotients = divide_rounded(sums, counts, arithmetic.rounding)
        if not before:
            quotients += zero_point
        clamped: Array = np.clip(quotients, low, high).astype(encoding.dtype)
        return clamped

    return average


def _rescaled_average(
    operation: Pool, arithmetic: Arithmetic, source: Encoding, target: Encoding
) -> Average:
    """Multiply sums by ``s_in / (s_out * count)``, with one multiplier for each count there is."""
    zero_point = source.zero_point.item()
    ratio = real_multiplier(arithmetic, [source.scale], target)

    def average(codes: Array) -> Array:
        sums, counts, elements = _sums(operation, codes)
        sums -= elements * zero_point
        results = np.empty(sums.shape, target.dtype)
        everywhere = np.broadcast_to(counts, sums.shape)
        for count in np.unique(counts):
            here = everywhere == count
            requantize = Requantizer(arithmetic, ratio / count, target, operation.bounds)
            results[here] = requantize(sums[here])
        return results

    return average


def _sums(operation: Pool, codes: Array) -> tuple[Array, Array, Array]:
    """Return sums of windows, int64, what they are divided by, and their elements but pads."""
    sums = reduce_windows(codes.astype(np.int32), operation, np.add, 0).astype(np.int64)
    counts = window_counts(codes.shape, operation)[..., None]
    elements = window_counts(codes.shape, operation, with_pads=False)[..., None]
    return sums, counts, elements


KERNELS: dict[type, Prepare] = {Pool: _pool, **reductions.KERNELS}
