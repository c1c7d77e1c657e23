"""One fixed-point multiplication as an arithmetic has it, without zero point and clamp."""

from __future__ import annotations

import numpy.typing as npt

from intact.config import Rounding
from intact.numerics.fixed_point import multiply_by_quantized_multiplier
from intact.program import Array
from intact.targets import Arithmetic, Requantize


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
        single=arithmetic.requantize is Requantize.FIXED_POINT_SINGLE,
        rounding=Rounding.HALF_UP if half_up else Rounding.HALF_AWAY_FROM_ZERO,
    )
