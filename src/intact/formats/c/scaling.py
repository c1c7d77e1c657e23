"""Scales as the integers that kernels take."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intact.errors import ConfigError
from intact.formats.c.refusal import Refusal
from intact.numerics.fixed_point import (
    power_of_two_exponent,
    quantize_multiplier,
    saturate_single,
)
from intact.program import Array, Encoding
from intact.targets import Arithmetic, Requantize


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


def zero_point(encoding: Encoding) -> int:
    """Return the zero point of a tensor that has one."""
    return int(encoding.zero_point.flat[0])
