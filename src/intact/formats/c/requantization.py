"""Writes how accumulators become codes, as text that C kernels are completed with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.errors import ConfigError, Unsupported
from intact.numerics.fixed_point import (
    power_of_two_exponent,
    quantize_multiplier,
    saturate_single,
)
from intact.program import Array, Encoding
from intact.targets import Arithmetic, Product, Shift, ZeroPointOrder


@dataclass(frozen=True)
class Requantization:
    """One way to requantize.

    Attributes:
        name: Ends the names of the functions that do it.
        tokens: What stands for ``@TOKEN@`` in a kernel's text. ``FIRST`` and ``SECOND`` are the
            arrays that a layer with weights has for its channels, ``START`` is the sum that it
            begins with, ``FINISH`` the scaled one.
        rescale: A scaled number; ``{0}`` is the number, ``{1}`` begins the fields to scale it by.
        shifts: Whether scales are powers of two, and multipliers absent.
    """

    name: str
    rescale: str
    tokens: Mapping[str, str] = field(default_factory=dict)
    shifts: bool = False


def requantization_of(arithmetic: Arithmetic) -> Requantization:
    """Return how a step requantizes.

    Raises:
        Unsupported: C for microcontrollers does not compute so.
    """
    way, bits = arithmetic.requantize, arithmetic.accumulator.bits
    # The generated loops add products one by one, in 32 bits.
    if arithmetic.pairs is not None:
        raise Unsupported("pairs of products saturate", "choose a target whose sums do not")
    if arithmetic.wraps and bits != 32:
        raise Unsupported(
            f"sums wrap at {bits} bits, in C at 32",
            "choose a target with an accumulator of 32 bits",
        )
    if arithmetic.product is Product.DOUBLE:
        return _DOUBLE_HALF_UP if arithmetic.rounding is Rounding.HALF_UP else _DOUBLE
    if arithmetic.product is Product.SINGLE:
        return _SINGLE
    if isinstance(way, Shift):
        if arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING:
            raise Unsupported(
                "the zero point is added before rounding",
                "choose a target with zero_point = after_rounding",
            )
        return SHIFTS[arithmetic.rounding]
    raise Unsupported(
        f"results are requantized in {arithmetic.product or arithmetic.precision}",
        "choose a target that does so in integers, such as one with fixed_point",
    )


def _fixed_point(name: str) -> Requantization:
    return Requantization(
        name,
        f"requantize_{name}({{0}}, p->{{1}}_multiplier, p->{{1}}_shift)",
        {
            "FIRST": "multiplier",
            "SECOND": "shift",
            # Unsigned, because sums that wrap are undefined in C for signed integers.
            "START": "(bias != NULL) ? (uint32_t)bias[channel] : 0U",
            "FINISH": f"requantize_{name}(signed_bits(sum), multiplier[scale], shift[scale])",
            "MEAN_OF_SUM": "divide_by_power(sum, 20)",
        },
    )


_DOUBLE, _DOUBLE_HALF_UP, _SINGLE = map(_fixed_point, ("double", "double_half_up", "single"))


def _shift(name: str, words: str, nudge: str) -> Requantization:
    return Requantization(
        name,
        f"requantize_{name}({{0}}, p->{{1}}_shift)",
        {
            "FIRST": "bias_shift",
            "SECOND": "output_shift",
            "START": "(bias != NULL) ? (uint32_t)bias[channel] << bias_shift[scale] : 0U",
            "FINISH": f"requantize_{name}(signed_bits(sum), output_shift[scale])",
            "ROUNDING": words,
            "NUDGE": nudge,
            "MEAN_OF_SUM": f"requantize_{name}(sum, 20)",
        },
        shifts=True,
    )


_EVEN = _shift("shift_even", "half to even", "half - 1 + ((value >> shift) & 1)")

SHIFTS = {
    Rounding.HALF_UP: _shift("shift", "half up", "half"),
    Rounding.HALF_AWAY_FROM_ZERO: _shift("shift_away", "half away from zero", "half - (value < 0)"),
    Rounding.HALF_EVEN: _EVEN,
    Rounding.NEAREST: _EVEN,
    Rounding.HALF_DOWN: _shift("shift_down", "half down", "half - 1"),
    Rounding.HALF_TOWARD_ZERO: _shift("shift_zero", "half to zero", "half - (value >= 0)"),
    Rounding.UP: _shift("shift_up", "up", "2 * half - 1"),
}
"""Ways to round a shift."""


def _division(name: str, words: str, is_up: str) -> Requantization:
    return Requantization(name, "", {"ROUNDING": words, "IS_UP": is_up})


def _tie(name: str, words: str, is_up: str) -> Requantization:
    return _division(name, words, f"2 * rest > count || (2 * rest == count && {is_up})")


_TO_EVEN = _tie("even", "half to even", "floor % 2 != 0")

DIVISIONS = {
    Rounding.HALF_UP: _division("up", "half up", "2 * rest >= count"),
    Rounding.HALF_AWAY_FROM_ZERO: _tie("away", "half away from zero", "sum >= 0"),
    Rounding.HALF_EVEN: _TO_EVEN,
    Rounding.NEAREST: _TO_EVEN,
    Rounding.HALF_DOWN: _division("down", "half down", "2 * rest > count"),
    Rounding.HALF_TOWARD_ZERO: _tie("zero", "half to zero", "sum < 0"),
    Rounding.UP: _division("ceiling", "up", "rest > 0"),
}
"""Ways to round the quotient of a sum and a count."""

_REQUANTISING = (_DOUBLE, _DOUBLE_HALF_UP, _SINGLE, *SHIFTS.values())

REQUANTIZATIONS = {kind.name: kind for kind in (*_REQUANTISING, *DIVISIONS.values())}
"""By name."""


def fixed_point(arithmetic: Arithmetic, real: npt.ArrayLike) -> tuple[Array, Array]:
    """Return multipliers (Q31) and shifts (positive is left), int32 of the shape of ``real``.

    Raises:
        Unsupported: A number is not finite.
    """
    try:
        multiplier, shift = quantize_multiplier(real)
    except ConfigError as error:
        raise Unsupported(str(error), "mend the scales") from error
    if arithmetic.product is Product.SINGLE:
        multiplier, shift = saturate_single(multiplier, shift)
    gone = shift > 31  # every bit has left on the left
    multiplier, shift = np.where(gone, 0, multiplier), np.where(gone, 0, shift)
    return multiplier.astype(np.int32), shift.astype(np.int32)


def right_shift(real: npt.ArrayLike) -> Array:
    """Return shifts (positive is right), int32 of the shape of ``real``.

    Raises:
        Unsupported: A number is no power of two.
    """
    try:
        exponent = power_of_two_exponent(real)
    except ConfigError as error:
        raise Unsupported(str(error), "use power-of-two scales, or another target") from error
    # Beyond these nothing is left of a sum, or all of it saturates; C shifts no further.
    return np.clip(-exponent, -32, 62).astype(np.int32)


def zero_point(encoding: Encoding) -> int:
    """Return the zero point of a tensor that has one."""
    return int(encoding.zero_point.flat[0])
