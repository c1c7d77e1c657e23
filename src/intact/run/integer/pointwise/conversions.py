"""Kernels from floats to codes, from codes to floats, and from codes to other codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from intact.program import Array, Encoding, Step
from intact.program.arithmetic.ends import effective, ends_codes, has_ends
from intact.program.arithmetic.reals import real_type, to_codes, to_reals
from intact.program.arithmetic.requantize import Requantizer, code_bounds, real_multiplier
from intact.program.operations import Bounds, Dequantize, Quantize, Requantize
from intact.run.integer.kernel import Kernel, Overflows, Prepare
from intact.run.integer.operands import encoding_of, kernel_of
from intact.run.integer.pointwise.tables import every_code, look_up, table_bits
from intact.targets import Arithmetic
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
    ``multiplier_bits`` may cut short (XNNPACK keeps 8 bits), and so do floats with
    ``ratio_conversions``; otherwise they compute the real number and quantise it, as a
    DequantizeLinear with a QuantizeLinear behind it, or quantise steps of the source by the ends
    of the target.
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
    in_floats = arithmetic.requantize in (Method.FLOAT32, Method.FLOAT64)
    if has_ends(arithmetic) and not per_channel:
        return _by_ends(arithmetic, source, target, bounds)
    if (in_floats and not arithmetic.ratio_conversions) or per_channel:
        kind = real_type(arithmetic)
        return lambda codes: to_codes(to_reals(codes, source, kind), arithmetic, target, bounds)
    multiplier = real_multiplier(arithmetic, [source.scale], target)
    requantize = Requantizer(arithmetic, multiplier, target, bounds)
    zero_point = source.zero_point.item()
    return lambda codes: requantize(codes.astype(np.int64) - zero_point)


def _by_ends(arithmetic: Arithmetic, source: Encoding, target: Encoding, bounds: Bounds) -> Recode:
    unit = effective(arithmetic, source).scale.item()
    limits = code_bounds(arithmetic, target, bounds)
    zero_point = source.zero_point.item()

    def recode(codes: Array) -> Array:
        steps = (codes.astype(np.int64) - zero_point).astype(np.float32)
        return ends_codes(steps, arithmetic, target, limits, unit)

    return recode


def _requantize(step: Step, _: Overflows) -> Kernel:
    source, target = encoding_of(step, step.inputs[0]), encoding_of(step, step.outputs[0])
    return kernel_of(step, recoder(step.arithmetic, source, target))


def dequantizer(source: Encoding, kind: type[np.floating[Any]] = np.float32) -> Recode:
    """Return what turns codes into the real numbers that they stand for, in floats of a kind."""
    if not table_bits(source):
        return lambda codes: to_reals(codes, source, kind)
    table = to_reals(every_code(source), source, kind)
    return lambda codes: look_up(table, codes)


def _dequantize(step: Step, _: Overflows) -> Kernel:
    source = effective(step.arithmetic, encoding_of(step, step.inputs[0]))
    return kernel_of(step, dequantizer(source))


def _quantize(step: Step, _: Overflows) -> Kernel:
    """Return the kernel of Quantize; how it rounds is for the encoding to say."""
    target, arithmetic = encoding_of(step, step.outputs[0]), step.arithmetic

    def quantize(values: Array) -> Array:
        floats = np.asarray(values, np.float32)
        return to_codes(floats, arithmetic, target, rounding=target.rounding)

    return kernel_of(step, quantize)


KERNELS: dict[type, Prepare] = {
    Quantize: _quantize,
    Dequantize: _dequantize,
    Requantize: _requantize,
}
