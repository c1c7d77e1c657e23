"""Scales as the integers that kernels take."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.errors import ConfigError
from intact.formats.c.refusal import Refusal
from intact.numerics.fixed_point import (
    power_of_two_exponent,
    quantize_multiplier,
    saturate_single,
)
from intact.numerics.rounding import round_to_integer
from intact.program import Array, Encoding
from intact.program.operations import Bounds
from intact.targets import Arithmetic, Requantize, ScalePrecision


def real_multiplier(
    arithmetic: Arithmetic, factors: Sequence[npt.ArrayLike], output: Encoding
) -> Array:
    """Return the product of ``factors`` (scales) over the output's scale.

    It is computed from left to right in the precision that ``arithmetic.multiplier_precision``
    says, from float32 scales either way, and rounded to ``arithmetic.multiplier_bits`` if those
    are given.
    """
    precision, bits = arithmetic.multiplier_precision, arithmetic.multiplier_bits
    real = np.float64 if precision is ScalePrecision.FLOAT64 else np.float32
    product = np.ones((), real)
    with np.errstate(over="ignore", divide="ignore"):
        for factor in factors:
            product = np.asarray(product * np.asarray(factor, np.float32).astype(real))
        if precision is ScalePrecision.FLOAT32_PRODUCT:
            real = np.float64
        ratio = product.astype(real) / np.asarray(output.scale, np.float32).astype(real)
        if bits is not None:
            ratio = np.ldexp(np.rint(np.ldexp(ratio, bits)), -bits)
    return np.asarray(ratio)


def fixed_point(arithmetic: Arithmetic, real: npt.ArrayLike) -> tuple[Array, Array]:
    """Return multipliers (Q31) and shifts (positive is left), int32 of the shape of ``real``.

    Raises:
        Refusal: A number is not finite.
    """
    try:
        multiplier, shift = quantize_multiplier(real)
    except ConfigError as error:
        raise Refusal(str(error), "mend the scales") from error
    if arithmetic.requantize is Requantize.FIXED_POINT_SINGLE:
        multiplier, shift = saturate_single(multiplier, shift)
    gone = shift > 31  # every bit has left on the left
    multiplier, shift = np.where(gone, 0, multiplier), np.where(gone, 0, shift)
    return multiplier.astype(np.int32), shift.astype(np.int32)


def right_shift(real: npt.ArrayLike) -> Array:
    """Return shifts (positive is right), int32 of the shape of ``real``.

    Raises:
        Refusal: A number is no power of two.
    """
    try:
        exponent = power_of_two_exponent(real)
    except ConfigError as error:
        raise Refusal(str(error), "use power-of-two scales, or another target") from error
    return np.clip(-exponent, -32, 62).astype(np.int32)


def code_bounds(arithmetic: Arithmetic, output: Encoding, bounds: Bounds) -> tuple[int, int]:
    """Return the lowest and highest code that a fused activation leaves.

    A bound over the scale is rounded, in float32, and the zero point added; fixed-point hardware
    rounds it half away from zero (TFLite's ``CalculateActivationRangeQuantized``), other hardware
    as it rounds results.
    """
    fixed = arithmetic.requantize is not Requantize.SHIFT
    rounding = Rounding.HALF_AWAY_FROM_ZERO if fixed else arithmetic.rounding
    scale, zero = np.float32(output.scale.flat[0]), zero_point(output)

    def code(bound: float) -> int:
        if math.isinf(bound):
            return output.quant_min if bound < 0 else output.quant_max
        with np.errstate(over="ignore"):
            steps = round_to_integer(np.asarray(np.float32(bound) / scale), rounding)
        nearest = zero + int(np.clip(np.float64(steps), -(2.0**40), 2.0**40))
        return min(max(nearest, output.quant_min), output.quant_max)

    return code(bounds.low), code(bounds.high)


def zero_point(encoding: Encoding) -> int:
    """Return the zero point of a tensor that has one."""
    return int(encoding.zero_point.flat[0])
