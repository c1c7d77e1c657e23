"""Makes the kernels of Softmax and its logarithm, along one axis.

Only differences to the row's largest code matter, so exponentials are a table with an entry for
each. Rows are worked off in blocks, to bound what the wide intermediate results take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.engines.integer.kernel import (
    KERNELS,
    Kernel,
    Overflows,
    kernel_of,
    operation_of,
    per_tensor,
)
from intact.errors import PlanError
from intact.numerics.fixed_point import (
    Integers,
    multiply_by_quantized_multiplier,
    rounding_divide_by_pot,
    saturating_rounding_doubling_high_mul,
    wrap_int32,
)
from intact.numerics.fixed_point_functions import (
    exp_on_negative_values,
    log_of_at_least_one,
    reciprocal_of_at_least_one,
)
from intact.numerics.rounding import round_to_integer
from intact.program import Array, Encoding, Step
from intact.program.arithmetic.fixed_functions import fraction_bits, input_multiplier
from intact.program.arithmetic.functions import InterpolatedSoftmax
from intact.program.operations import Softmax
from intact.targets import Arithmetic, Float, FloatInTurn, Functions

_DIFFERENCE_BITS = 5
"""Integer bits of a difference to the largest: ``exp(-2**5)`` is nothing."""
_SUM_BITS = 12
"""Integer bits of the sum of a row's exponentials."""
_UINT32_MAX = (1 << 32) - 1
_LOG_OUTPUT_BITS = 4
"""Integer bits of a fixed-point logarithm's codes, 16ths."""
_WIDE = (np.dtype(np.int16), np.dtype(np.int16))
_WIDEST = 2
"""Bytes of a code: there is a table entry for each difference of two."""
_BLOCK = 1 << 18
"""Elements that are worked off at once."""

Rows: TypeAlias = Callable[[Array], npt.NDArray[Any]]
"""Takes codes ``[rows, length]``, gives those of the output, not yet clamped."""


@KERNELS.register(Softmax)
def prepare_softmax(step: Step, _: Overflows) -> Kernel:
    """Make the kernel of a :class:`Softmax`."""
    operation = operation_of(step, Softmax)
    data, output = per_tensor(step, step.inputs[0]), per_tensor(step, step.outputs[0])
    if data.dtype.itemsize > _WIDEST:
        raise PlanError(
            f"step {step.name!r}: there is no Softmax of {data.dtype}",
            remedy="quantize its input to 8 or 16 bits",
        )
    rows = _rows(operation, step.arithmetic, data, output)

    def compute(codes: Array) -> Array:
        moved = np.moveaxis(codes, operation.axis, -1)
        result = np.empty(moved.shape, output.dtype)
        if result.size == 0:
            return np.moveaxis(result, -1, operation.axis)
        flat, written = moved.reshape(-1, moved.shape[-1]), result.reshape(-1, moved.shape[-1])
        count = max(1, _BLOCK // flat.shape[1])
        for start in range(0, flat.shape[0], count):
            found = rows(flat[start : start + count])
            written[start : start + count] = np.clip(found, output.quant_min, output.quant_max)
        return np.moveaxis(result, -1, operation.axis)

    return kernel_of(step, compute)


def _rows(operation: Softmax, arithmetic: Arithmetic, data: Encoding, output: Encoding) -> Rows:
    """Choose how rows are computed.

    Fixed-point kernels write 8 bits: shares of 1 in fractions of 2, logarithms in 16ths only.
    """
    fixed = arithmetic.functions is Functions.FIXED_POINT
    scale, zero, largest = float(output.scale), int(output.zero_point), output.quant_max
    eight_bits = output.dtype.itemsize == 1
    if operation.log:
        if fixed and eight_bits and (scale, zero) == (2.0**-_LOG_OUTPUT_BITS, largest):
            return _fixed_log_softmax(data, output)
        return _float_log_softmax(data, output)
    if fixed and eight_bits and (fraction := fraction_bits(scale)) is not None:
        return _fixed_softmax(data, output, fraction)
    if arithmetic.functions is Functions.INTERPOLATED and (data.dtype, output.dtype) == _WIDE:
        return InterpolatedSoftmax(data)
    if isinstance(arithmetic.requantize, FloatInTurn):
        return _softmax_in_turn(arithmetic, data, output)
    return _float_softmax(arithmetic, data, output)


def _below_largest(codes: Array) -> Integers:
    """Return how far each code is below the largest of its row, from 0 on."""
    wide = codes.astype(np.int64)
    return np.asarray(wide.max(axis=1, keepdims=True) - wide)


def _differences(data: Encoding) -> int:
    """Return how many differences two codes of a type can have."""
    return 1 << 8 * data.dtype.itemsize


def _fixed_differences(data: Encoding) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Return differences ``0, -1, -2 ...`` of codes in Q5, and which are near enough to count."""
    steps = np.arange(_differences(data), dtype=np.int64)
    multiplier, shift, radius = input_multiplier(np.float32(data.scale), _DIFFERENCE_BITS)
    counts = steps <= radius
    return multiply_by_quantized_multiplier(np.where(counts, -steps, 0), multiplier, shift), counts


def _fixed_exponentials(data: Encoding) -> Integers:
    """Return the exponentials of differences ``0, -1, -2 ...`` in Q0."""
    differences, counts = _fixed_differences(data)
    return np.where(counts, exp_on_negative_values(differences, _DIFFERENCE_BITS), 0)


def _sum_of_exponentials(table: Integers, below: Integers) -> Integers:
    """Return each row's sum in Q12, ``[rows, 1]``, not yet in 32 bits."""
    terms = rounding_divide_by_pot(table, _SUM_BITS)
    return np.asarray(np.take(terms, below).sum(axis=1, keepdims=True))


def _fixed_softmax(data: Encoding, output: Encoding, fraction: int) -> Rows:
    """TFLite's reference kernel, whose ``fraction`` is 8, for output scales of other powers too."""
    table = _fixed_exponentials(data)

    def rows(codes: Array) -> Integers:
        below = _below_largest(codes)
        # The kernel adds in int32 and reads the sum as uint32: up to 8191 ones are right.
        total = _sum_of_exponentials(table, below) & _UINT32_MAX
        inverse, bits = reciprocal_of_at_least_one(total, _SUM_BITS)
        product = saturating_rounding_doubling_high_mul(inverse, np.take(table, below))
        return np.asarray(rounding_divide_by_pot(product, bits + 31 - fraction) + output.zero_point)

    return rows


def _fixed_log_softmax(data: Encoding, output: Encoding) -> Rows:
    """TFLite's reference kernel."""
    table = _fixed_exponentials(data)
    differences, counts = _fixed_differences(data)
    shift = 31 - _DIFFERENCE_BITS - _LOG_OUTPUT_BITS

    def rows(codes: Array) -> Integers:
        below = _below_largest(codes)
        total = wrap_int32(_sum_of_exponentials(table, below))
        logarithm = log_of_at_least_one(total, _SUM_BITS, _DIFFERENCE_BITS)
        steps = rounding_divide_by_pot(np.take(differences, below) - logarithm, shift)
        near = np.take(counts, below)
        return np.where(near, steps + int(output.zero_point), output.quant_min)

    return rows


def _float_exponentials(data: Encoding) -> npt.NDArray[np.float32]:
    """Return the exponentials of differences ``0, -1, -2 ...``, each correctly rounded."""
    steps = np.arange(_differences(data), dtype=np.float32)
    exponents = -np.float32(data.scale) * steps
    # In float64, rounded once: numpy's float32 exponential differs by processor, that of float64 is
    # right to far more digits than are kept.
    return np.exp(exponents.astype(np.float64)).astype(np.float32)


def _float_sum(terms: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Add the terms of each row in order, in float32; ``[rows, 1]``."""
    # accumulate adds in order; np.sum adds pairwise, which gives other bits.
    return np.add.accumulate(terms, axis=1, dtype=np.float32)[:, -1:]


def _float_softmax(arithmetic: Arithmetic, data: Encoding, output: Encoding) -> Rows:
    """TFLite's optimized kernel: a table, and one factor a row that holds the output's scale."""
    table = _float_exponentials(data)
    integers = not isinstance(arithmetic.requantize, Float)
    rounding = Rounding.HALF_AWAY_FROM_ZERO if integers else arithmetic.rounding

    def rows(codes: Array) -> npt.NDArray[np.float32]:
        terms = np.take(table, _below_largest(codes))
        factor = np.float32(1) / (_float_sum(terms) * np.float32(output.scale))
        steps = round_to_integer(np.asarray(terms * factor), rounding)
        return np.asarray(steps + np.float32(output.zero_point))

    return rows


def _softmax_in_turn(arithmetic: Arithmetic, data: Encoding, output: Encoding) -> Rows:
    """Dequantize, compute the share of each, divide it by the output's scale (Tengine)."""

    def rows(codes: Array) -> npt.NDArray[np.float32]:
        steps = codes.astype(np.float32) - np.float32(data.zero_point)
        reals = steps * np.float32(data.scale)
        below = reals - reals.max(axis=1, keepdims=True)
        terms = np.exp(below.astype(np.float64)).astype(np.float32)
        shares = terms / _float_sum(terms)
        found = round_to_integer(np.asarray(shares / np.float32(output.scale)), arithmetic.rounding)
        return np.asarray(found + np.float32(output.zero_point))

    return rows


def _float_log_softmax(data: Encoding, output: Encoding) -> Rows:
    """TFLite's optimized kernel, which rounds half to even."""
    table = _float_exponentials(data)
    in_scale, out_scale = np.float32(data.scale), np.float32(output.scale)

    def rows(codes: Array) -> npt.NDArray[np.float32]:
        terms = np.take(table, _below_largest(codes))
        logarithm = np.log(_float_sum(terms).astype(np.float64)).astype(np.float32)
        largest = codes.max(axis=1, keepdims=True).astype(np.float32)
        offset = (in_scale * largest + logarithm) / out_scale
        steps = np.rint(in_scale / out_scale * codes.astype(np.float32) - offset)
        return np.asarray(steps + np.float32(output.zero_point))

    return rows
