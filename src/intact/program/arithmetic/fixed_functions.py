"""Computes functions of 8-bit codes in fixed point, as kernels without floats do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.numerics.fixed_point import (
    INT32_MAX,
    Integers,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    rounding_divide_by_pot,
)
from intact.numerics.fixed_point_functions import inverse_square_root, logistic, tanh
from intact.ops import functions
from intact.ops.functions import Unary
from intact.program import Array, Encoding
from intact.targets import Arithmetic, Product

_Curve: TypeAlias = Callable[[Integers, Encoding, Encoding], "Integers | None"]

_INTEGER_BITS = 4

"""Integer bits of the argument of logistic and tanh."""

_RSQRT_BITS = 20

"""Bits that an inverse root is shifted left by until it is on the output's scale."""


def fixed_function(
    kind: Unary, steps: Integers, data: Encoding, output: Encoding
) -> Integers | None:
    """Return the codes of a function of ``code - zero_point``, not yet clamped.

    Returns:
        None where there is no such kernel, for the function or for this output: those of logistic
        and tanh write one encoding.
    """
    curve = _CURVES.get(kind)
    return None if curve is None else curve(steps, data, output)


def input_multiplier(scale: np.float32, integer_bits: int) -> tuple[Integers, Integers, int]:
    """Return what brings steps of a scale to ``Q<integer_bits>``, and the steps it can take.

    The multiplier is capped where a step would leave the type (TFLite's
    ``PreprocessSoftmaxScaling``); the radius is that of ``CalculateInputRadius``.

    Returns:
        Multiplier, shift to the left, and the largest magnitude that does not overflow.
    """
    real = min(np.float64(scale) * 2.0 ** (31 - integer_bits), float(INT32_MAX))
    multiplier, shift = quantize_multiplier(real)
    largest = ((1 << integer_bits) - 1) * 2.0 ** (31 - integer_bits - int(shift))
    return multiplier, shift, int(largest)


def _logistic(steps: Integers, data: Encoding, output: Encoding) -> Integers | None:
    # The kernel has the output's scale in its code, 1/256, and reads none from the file.
    if not _is(output, scale=2.0**-8, zero_point=output.quant_min):
        return None
    return _saturate_curve(logistic, steps, data, output, fraction_bits=8)


def _tanh(steps: Integers, data: Encoding, output: Encoding) -> Integers | None:
    if not _is(output, scale=2.0**-7, zero_point=0):
        return None
    return _saturate_curve(tanh, steps, data, output, fraction_bits=7)


def _saturate_curve(
    curve: Callable[[Integers, int], Integers],
    steps: Integers,
    data: Encoding,
    output: Encoding,
    fraction_bits: int,
) -> Integers:
    """Evaluate a curve in Q4; arguments beyond the radius have its limits."""
    multiplier, shift, radius = input_multiplier(np.float32(data.scale), _INTEGER_BITS)
    # What lies beyond would overflow in the product; its result is replaced below.
    inside = np.clip(steps, -radius, radius)
    raw = curve(multiply_by_quantized_multiplier(inside, multiplier, shift), _INTEGER_BITS)
    codes = rounding_divide_by_pot(raw, 31 - fraction_bits) + int(output.zero_point)
    codes = np.where(steps >= radius, output.quant_max, codes)
    return np.where(steps <= -radius, output.quant_min, codes)


def _is(encoding: Encoding, scale: float, zero_point: int) -> bool:
    return float(encoding.scale) == scale and int(encoding.zero_point) == zero_point


def _rsqrt(steps: Integers, data: Encoding, output: Encoding) -> Integers:
    """TFLite's: the inverse root of the integer, then the scales' multiplier.

    Zero gives the largest code; the kernel refuses what is below, which is taken for zero here.
    """
    real = 1.0 / np.float64(np.sqrt(data.scale) * output.scale)
    multiplier, shift = quantize_multiplier(real)
    codes = np.full(steps.shape, output.quant_max, np.int64)
    # One at a time: Newton's method shifts by a number of bits that depends on each value. There
    # are 256 codes at most.
    for index, step in np.ndenumerate(steps):
        if step > 0:
            root, root_shift = inverse_square_root(int(step))
            # In two products, as the kernel does: the root first, shifted left so that its digits
            # survive the rounding of an integer.
            value = multiply_by_quantized_multiplier(1, root, root_shift + _RSQRT_BITS)
            scaled = multiply_by_quantized_multiplier(value, multiplier, shift - _RSQRT_BITS)
            codes[index] = int(scaled) + int(output.zero_point)
    return codes


def _hard_swish(steps: Integers, data: Encoding, output: Encoding) -> Integers:
    """TFLite's: ``x * (relu6(x + 3) / 6)`` in 16 bits.

    ``x`` is held in 128ths of a step. The factor is ``x`` on a scale of 3 / 2**15, saturated to
    [-3, 3], moved to [0, 1].
    """
    fine_scale = np.float32(1 / 128) * np.float32(data.scale)
    fine = _wrap_int16(steps << 7)
    out_multiplier, out_shift = _short_multiplier(fine_scale / np.float32(output.scale))
    multiplier, shift = _short_multiplier(fine_scale / np.float32(3 / 2**15))
    factor = fine
    if shift > 0:
        # The kernel shifts left all but one bit before the product and the last one behind it, and
        # saturates at both: the product of 16 bits keeps one bit more so.
        factor = _saturate_int16(factor << (shift - 1))
    factor = _short_multiply(factor, multiplier)
    if shift > 0:
        factor = _saturate_int16(factor << 1)
    if shift < 0:
        factor = rounding_divide_by_pot(factor, -shift)
    factor = (factor + (1 << 15)) >> 1
    product = factor * _short_multiply(fine, out_multiplier)
    # Toward zero: the kernel divides in C, where a shift of a negative number would floor.
    truncated = np.sign(product) * (np.abs(product) >> 15)
    if out_shift > 0:
        return np.asarray(_saturate_int16(truncated << out_shift) + int(output.zero_point))
    return np.asarray(rounding_divide_by_pot(truncated, -out_shift) + int(output.zero_point))


def _short_multiplier(real: np.float32) -> tuple[int, int]:
    """Return a multiplier of 16 bits, rounded half up from that of 32, and its shift."""
    multiplier, shift = quantize_multiplier(np.float32(real))
    return min((int(multiplier) + (1 << 15)) >> 16, 2**15 - 1), int(shift)


def _short_multiply(first: Integers, second: int) -> Integers:
    """The saturating rounding doubling high product of 16 bits."""
    return np.asarray(np.minimum((first * second + (1 << 14)) >> 15, 2**15 - 1))


def _saturate_int16(values: Integers) -> Integers:
    return np.asarray(np.clip(values, -(2**15), 2**15 - 1))


def _wrap_int16(values: Integers) -> Integers:
    # Wraps: x << 7 of a step beyond 8 bits leaves int16, as in the kernel.
    return values.astype(np.int16).astype(np.int64)


_CURVES: Mapping[Unary, _Curve] = {
    functions.sigmoid: _logistic,
    functions.tanh: _tanh,
    functions.rsqrt: _rsqrt,
    functions.hard_swish: _hard_swish,
}


def fraction_bits(scale: float) -> int | None:
    """Return how many bits of a fraction of 1 codes of a scale hold, up to 8; None for others.

    >>> fraction_bits(1 / 256), fraction_bits(0.01)
    (8, None)
    """
    fraction, exponent = math.frexp(scale)
    return 1 - exponent if fraction == 0.5 and 0 <= 1 - exponent <= 8 else None


def multiply_fixed(
    arithmetic: Arithmetic, values: Array, multiplier: npt.ArrayLike, exponent: npt.ArrayLike
) -> Array:
    """Return ``values * multiplier * 2**(exponent - 31)``, rounded as the arithmetic rounds.

    Double rounding knows two second roundings: half up, and half away from zero for all others.
    """
    half_up = arithmetic.rounding is Rounding.HALF_UP
    return multiply_by_quantized_multiplier(
        values,
        multiplier,
        exponent,
        single=arithmetic.product is Product.SINGLE,
        rounding=Rounding.HALF_UP if half_up else Rounding.HALF_AWAY_FROM_ZERO,
    )
