"""Kernels from floats to codes, from codes to floats, and from codes to other codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numba import njit

from intact.numerics.fixed_point_kernel import ROUNDING_CODES, round_float
from intact.program import Array, Encoding, Step
from intact.program.operations import Bounds, Dequantize, Quantize, Requantize
from intact.run.integer.kernel import Kernel, Overflows, Prepare
from intact.run.integer.operands import encoding_of, kernel_of
from intact.run.integer.reals import real_type, to_codes, to_reals
from intact.run.integer.requantize import Requantizer, real_multiplier
from intact.run.integer.tables import every_code, look_up, table_bits
from intact.targets import Arithmetic, ZeroPointOrder
from intact.targets import Requantize as Method

Recode: TypeAlias = Callable[[Array], Array]
"""From codes of one encoding to those of another."""


def recoder(
    arithmetic: Arithmetic,
    source: Encoding | None,
    target: Encoding | None,
    bounds: Bounds = Bounds(),  # noqa: B008
) -> Recode:
    """Return what brings codes of ``source`` to ``target``; the identity where nothing changes.

    Fixed-point arithmetic multiplies by the ratio of the scales, whose fraction
    ``multiplier_bits`` may cut short (XNNPACK keeps 8 bits); the others compute the real number
    and quantise it, as a DequantizeLinear with a QuantizeLinear behind it.
    """
    if source is None or target is None or (target.same_as(source) and bounds == Bounds()):
        return _same
    convert = _conversion(arithmetic, source, target, bounds)
    if not table_bits(source):
        return convert
    table = convert(every_code(source))
    return lambda codes: look_up(table, codes)


def _same(codes: Array) -> Array:
    return codes


def _conversion(
    arithmetic: Arithmetic, source: Encoding, target: Encoding, bounds: Bounds
) -> Recode:
    per_channel = source.axis is not None or target.axis is not None
    if arithmetic.requantize in (Method.FLOAT32, Method.FLOAT64) or per_channel:
        kind = real_type(arithmetic)
        return lambda codes: to_codes(to_reals(codes, source, kind), arithmetic, target, bounds)
    multiplier = real_multiplier(arithmetic, [source.scale], target)
    if arithmetic.multiplier_bits is not None:
        step = 2.0**-arithmetic.multiplier_bits
        multiplier = np.rint(multiplier.astype(np.float64) / step) * step
    requantize = Requantizer(arithmetic, multiplier, target, bounds)
    zero_point = source.zero_point.item()
    return lambda codes: requantize(codes.astype(np.int64) - zero_point)


def _requantize(step: Step, _: Overflows) -> Kernel:
    source, target = encoding_of(step, step.inputs[0]), encoding_of(step, step.outputs[0])
    return kernel_of(step, recoder(step.arithmetic, source, target))


def _dequantize(step: Step, _: Overflows) -> Kernel:
    source = encoding_of(step, step.inputs[0])

    def dequantize(codes: Array) -> Array:
        return to_reals(codes, source, np.float32)

    if not table_bits(source):
        return kernel_of(step, dequantize)
    table = dequantize(every_code(source))
    return kernel_of(step, lambda codes: look_up(table, codes))


def _quantize(step: Step, _: Overflows) -> Kernel:
    """Return the kernel of ``round(x / scale) + zero_point``, or ``x * (1 / scale)``, in float32.

    What is no number becomes the lowest code, as in ONNX Runtime's vector code; on hardware it
    may become anything.
    """
    target = encoding_of(step, step.outputs[0])
    before = step.arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING
    rounding = ROUNDING_CODES[target.rounding]
    reciprocal = step.arithmetic.reciprocal_scale
    scales = np.atleast_1d(target.scale)
    factors = np.float32(1) / scales if reciprocal else scales
    zeros = np.atleast_1d(target.zero_point).astype(np.float64)
    limits = float(target.quant_min), float(target.quant_max)

    def quantize(values: Array) -> Array:
        codes = np.empty(values.shape, target.dtype)
        floats = np.ascontiguousarray(values, np.float32)
        shape = _around(floats.shape, target.axis)
        parameters = (factors, zeros, *limits, rounding, reciprocal, before)
        _quantize_floats(floats.reshape(shape), *parameters, codes.reshape(shape))
        return codes

    return kernel_of(step, quantize)


def _around(shape: tuple[int, ...], axis: int | None) -> tuple[int, int, int]:
    """Return ``[before, channels, after]`` of a tensor; one channel where it has no such axis."""
    if axis is None:
        return 1, 1, int(np.prod(shape))
    axis %= len(shape)
    return int(np.prod(shape[:axis])), shape[axis], int(np.prod(shape[axis + 1 :]))


@njit(cache=True, nogil=True)
def _quantize_floats(
    values: Any,
    factors: Any,
    zeros: Any,
    low: float,
    high: float,
    rounding: int,
    reciprocal: bool,
    before: bool,
    codes: Any,
) -> None:
    """Fill ``codes`` with those of ``values``, both ``[before, channels, after]``.

    Args:
        values: float32.
        factors: float32 ``[channels]``, scales or their reciprocals.
        zeros: float64 ``[channels]``.
        low: Smallest code.
        high: Largest code.
        rounding: A mode of ``ROUNDING_CODES``.
        reciprocal: Multiply by the factor, not divide.
        before: Add the zero point before rounding.
        codes: Written.
    """
    for outer in range(values.shape[0]):
        for channel in range(values.shape[1]):
            factor, zero = factors[channel], zeros[channel]
            for inner in range(values.shape[2]):
                value = values[outer, channel, inner]
                steps = value * factor if reciprocal else value / factor
                if before:
                    code = np.float64(round_float(np.float32(steps + np.float32(zero)), rounding))
                else:
                    code = np.float64(round_float(steps, rounding)) + zero
                inside = min(code, high) if code > low else low
                codes[outer, channel, inner] = np.int64(inside)


KERNELS: dict[type, Prepare] = {
    Quantize: _quantize,
    Dequantize: _dequantize,
    Requantize: _requantize,
}
