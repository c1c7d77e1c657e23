"""Makes the kernels of Quantize, Dequantize and Requantize, and the look-up tables of 8 or 16 bits.

A conversion of codes depends on the code alone. So where there are few, it is computed once for
each (`every_code`), and is a look-up (`look_up`) from then on. A table is indexed by the unsigned
pattern of a code: int8 codes 0, 1, -2, -1 are at 0, 1, 254, 255.

`recoder` and `dequantizer` make functions of arrays, which other kernels use too; the kernels that
are registered at the end wrap them.
"""

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
    """Return how many bits index a table of a tensor's codes, 8 or 16; 0 where it has no table.

    Floats, codes by channel and codes of more than 16 bits have none.
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
    """Return codes, broadcast to a shape, as `_patterns`."""
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

    How depends on the target's arithmetic:

    * Fixed point, and floats with ``ratio_conversions``: multiplies by the ratio of the scales,
      whose fraction ``multiplier_bits`` may cut short (XNNPACK keeps 8 bits).
    * `FloatEnds`: quantizes the steps of the source by the ends of the target (OpenVINO).
    * Other floats, and scales by channel: computes the real number and quantizes it, as a
      DequantizeLinear with a QuantizeLinear behind it.

    With scales 0.5 and 1.0 and zero points 0, code 6 becomes 3.
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
    is_per_channel = source.axis is not None or target.axis is not None
    requantization = arithmetic.requantize
    if isinstance(requantization, FloatEnds) and not is_per_channel:
        return _by_ends(arithmetic, source, target, bounds)
    by_real_number = (
        isinstance(requantization, FloatOnce | FloatInTurn) and not requantization.ratio_conversions
    )
    if by_real_number or is_per_channel:
        kind = real_type(arithmetic)
        return lambda codes: to_codes(to_reals(codes, source, kind), arithmetic, target, bounds)
    multiplier = real_multiplier(arithmetic, [source.scale], target)
    requantize = Requantizer(arithmetic, multiplier, target, bounds)
    zero_point = source.zero_point.item()
    return lambda codes: requantize(codes.astype(np.int64) - zero_point)


def _by_ends(arithmetic: Arithmetic, source: Encoding, target: Encoding, bounds: Bounds) -> Recode:
    """Return what quantizes by the ends of the target's range (`intact.program.arithmetic.ends`).

    What is quantized is counted in steps of the source, and ``unit`` is the size of one.
    """
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
    """Return the kernel of Quantize; the encoding says how it rounds."""
    target, arithmetic = encoding_of(step, step.outputs[0]), step.arithmetic

    def quantize(values: Array) -> Array:
        floats = np.asarray(values, np.float32)
        codes = to_codes(floats, arithmetic, target, rounding=target.rounding)
        if not target.channel_codes or target.axis is None:
            return codes
        sizes = [-1 if axis == target.axis else 1 for axis in range(codes.ndim)]
        low, high = (np.reshape(ends, sizes) for ends in zip(*target.channel_codes, strict=True))
        return np.asarray(np.clip(codes, low, high), codes.dtype)

    return kernel_of(step, quantize)
