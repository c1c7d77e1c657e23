"""Makes the kernels between floats and codes, and between codes of two scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numba import njit

from intact.engines.integer.kernel import KERNELS, Kernel, Overflows, encoding_of, kernel_of
from intact.numerics.loop_cache import CACHED
from intact.program import Array, Encoding, Step
from intact.program.arithmetic.ends import effective, ends_codes
from intact.program.arithmetic.reals import to_codes, to_reals
from intact.program.arithmetic.requantize import (
    Requantizer,
    code_bounds,
    real_multiplier,
    real_type,
)
from intact.program.operations import Bounds, Dequantize, Quantize, Requantize
from intact.targets import Arithmetic, FloatEnds, FloatInTurn, FloatOnce

_UNSIGNED = {1: np.uint8, 2: np.uint16}


def table_bits(encoding: Encoding | None) -> int:
    """Return how many bits the codes of a tensor take that has one scale; else 0.

    Floats, codes by channel and codes of more than 16 bits have no table.
    """
    if encoding is None or encoding.axis is not None or encoding.dtype.itemsize > 2:
        return 0
    return 8 * encoding.dtype.itemsize


def every_code(encoding: Encoding) -> Array:
    """Return every value of the codes' type in the order of its unsigned pattern.

    ``[256]`` or ``[65536]``; also values beyond ``quant_min`` and ``quant_max``, since an input
    may be fed with them.
    """
    patterns = np.arange(1 << table_bits(encoding), dtype=_UNSIGNED[encoding.dtype.itemsize])
    codes: Array = patterns.view(encoding.dtype)
    return codes


def look_up(table: Array, codes: Array) -> Array:
    """Return ``table[pattern of code]`` for codes of any shape; see `every_code`."""
    results = np.empty(codes.shape, table.dtype)
    _look_up(table, _patterns(codes), results.reshape(-1))
    return results


def look_up_pairs(table: Array, first: Array, second: Array) -> Array:
    """Return ``table[pattern of first, pattern of second]`` for operands that broadcast.

    Args:
        table: ``[256, 256]``.
        first: 8-bit codes.
        second: The second operand.
    """
    shape = np.broadcast_shapes(first.shape, second.shape)
    results = np.empty(shape, table.dtype)
    flat = results.reshape(-1)
    # One operand is a single code: a row or column of the table, and the simpler loop.
    if second.size == 1:
        _look_up(
            np.ascontiguousarray(table[:, int(_patterns(second)[0])]), _full(first, shape), flat
        )
    elif first.size == 1:
        _look_up(np.ascontiguousarray(table[int(_patterns(first)[0])]), _full(second, shape), flat)
    else:
        _look_up_pairs(table, _full(first, shape), _full(second, shape), flat)
    return results


def _full(codes: Array, shape: tuple[int, ...]) -> Array:
    return _patterns(np.broadcast_to(codes, shape))


def _patterns(codes: Array) -> Array:
    """Return codes as unsigned indices ``[elements]``."""
    flat = np.ascontiguousarray(codes).reshape(-1)
    patterns: Array = flat.view(_UNSIGNED[codes.dtype.itemsize])
    return patterns


@njit(cache=CACHED, nogil=True)
def _look_up(table: Any, patterns: Any, results: Any) -> None:
    for index in range(patterns.shape[0]):
        results[index] = table[patterns[index]]


@njit(cache=CACHED, nogil=True)
def _look_up_pairs(table: Any, first: Any, second: Any, results: Any) -> None:
    for index in range(first.shape[0]):
        results[index] = table[first[index], second[index]]


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
    ``ratio_conversions``; otherwise they compute the real number and quantize it, as a
    DequantizeLinear with a QuantizeLinear behind it, or quantize steps of the source by the ends
    of the target.
    """
    if source is None or target is None or (target.same_as(source) and bounds == Bounds()):
        return _same
    convert = _conversion(arithmetic, source, target, bounds)
    if not table_bits(source):
        return convert
    # 65,536 conversions at most when the step is prepared, and one look-up for each element
    # afterwards.
    table = convert(every_code(source))
    return lambda codes: look_up(table, codes)


def _same(codes: Array) -> Array:
    return codes


def _conversion(
    arithmetic: Arithmetic, source: Encoding, target: Encoding, bounds: Bounds
) -> Recode:
    per_channel = source.axis is not None or target.axis is not None
    way = arithmetic.requantize
    if isinstance(way, FloatEnds) and not per_channel:
        return _by_ends(arithmetic, source, target, bounds)
    dequantizes = isinstance(way, FloatOnce | FloatInTurn) and not way.ratio_conversions
    if dequantizes or per_channel:
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


@KERNELS.register(Requantize)
def _requantize(step: Step, _: Overflows) -> Kernel:
    source, target = encoding_of(step, step.inputs[0]), encoding_of(step, step.outputs[0])
    return kernel_of(step, recoder(step.arithmetic, source, target))


def dequantizer(source: Encoding, kind: type[np.floating[Any]] = np.float32) -> Recode:
    """Return what turns codes into the real numbers that they stand for, in floats of a kind."""
    if not table_bits(source):
        return lambda codes: to_reals(codes, source, kind)
    table = to_reals(every_code(source), source, kind)
    return lambda codes: look_up(table, codes)


@KERNELS.register(Dequantize)
def _dequantize(step: Step, _: Overflows) -> Kernel:
    source = effective(step.arithmetic, encoding_of(step, step.inputs[0]))
    return kernel_of(step, dequantizer(source))


@KERNELS.register(Quantize)
def _quantize(step: Step, _: Overflows) -> Kernel:
    """Return the kernel of Quantize; how it rounds is for the encoding to say."""
    target, arithmetic = encoding_of(step, step.outputs[0]), step.arithmetic

    def quantize(values: Array) -> Array:
        floats = np.asarray(values, np.float32)
        return to_codes(floats, arithmetic, target, rounding=target.rounding)

    return kernel_of(step, quantize)
