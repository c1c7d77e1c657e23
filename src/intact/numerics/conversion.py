"""Converts scales to other forms: ends of a range, text of six decimals."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from intact.errors import UsageError
from intact.numerics.affine_params import QuantParams, params_from_range, range_from_params


class Quantization(msgspec.Struct, frozen=True):
    """One tensor's quantization, said in both ways.

    Attributes:
        scale: float32.
        zero_point: The code of 0.
        low: Value of the smallest code, computed in float64.
        high: Value of the largest code.
        quant_min: Smallest code.
        quant_max: Largest code.
    """

    scale: np.float32
    zero_point: int
    low: float
    high: float
    quant_min: int
    quant_max: int

    @staticmethod
    def of_scale(scale: float, zero_point: int, quant_min: int, quant_max: int) -> Quantization:
        """Take a scale, which is rounded to float32, and a zero point.

        Raises:
            UsageError: The scale is no positive normal float32, or the zero point is no code.

        >>> Quantization.of_scale(0.5, 0, -128, 127).high
        63.5
        """
        with np.errstate(over="ignore"):
            stored = np.float32(scale)
        if not (np.isfinite(stored) and stored >= np.finfo(np.float32).tiny):
            raise UsageError(
                f"a scale of {scale}", remedy="give a positive number that fits float32"
            )
        if not quant_min <= zero_point <= quant_max:
            raise UsageError(
                f"a zero point of {zero_point}", remedy=f"give a code: {quant_min} to {quant_max}"
            )
        params = QuantParams(np.asarray(stored), np.asarray(zero_point, np.int64))
        low, high = range_from_params(params, quant_min, quant_max)
        return Quantization(stored, zero_point, float(low), float(high), quant_min, quant_max)

    @staticmethod
    def of_range(
        low: float, high: float, quant_min: int, quant_max: int, *, symmetric: bool
    ) -> Quantization:
        """Take a range, that of a FakeQuantize for instance.

        A range that some scale and zero point give, in float32, comes back as those: ``scale =
        (high - low) / (quant_max - quant_min)``, the inverse in [mqbench]. Any other is widened to
        hold 0, and moved so that 0 is a code; a symmetric one gets the smallest scale with which
        the codes hold both ends. Codes -128..127 hold one step more below 0 than above: their scale
        is ``max(-low / 128, high / 127)``.

        Raises:
            ConfigError: An end is not finite, or the ends are crossed.

        >>> Quantization.of_range(-1.28, 1.27, -128, 127, symmetric=True).scale
        np.float32(0.01)
        """
        scale, zero = params_from_range(low, high, quant_min, quant_max, symmetric=symmetric)
        if symmetric and quant_min < 0 < quant_max:
            scale = _scale_around_zero(low, high, quant_min, quant_max)
        ends = np.asarray(low, np.float32), np.asarray(high, np.float32)
        codes = quant_min, quant_max
        # The scale that was rounded to float32 may miss the given ends by one bit. Where some
        # float32 gives them exactly, a range read from a file comes back as the scale that made it.
        if low <= 0.0 <= high and ends[0] < ends[1]:
            exact = params_of_ends(*ends, *codes)
            is_centred = not symmetric or not exact.zero_point.any()
            is_exact = is_centred and bool(_gives(exact, *ends, *codes))
            if is_exact and not _gives(QuantParams(scale, zero), *ends, *codes):
                scale, zero = exact
        return Quantization.of_scale(float(scale), int(zero), *codes)


def _scale_around_zero(
    low: float, high: float, quant_min: int, quant_max: int
) -> npt.NDArray[np.float32]:
    """Return the smallest scale with which codes of both signs hold a range; 1 for 0 .. 0."""
    scale = max(min(low, 0.0) / quant_min, max(high, 0.0) / quant_max)
    return np.asarray(max(scale, float(np.finfo(np.float32).tiny)) if scale else 1.0, np.float32)


Ends = npt.NDArray[np.float32]


def ends_of_codes(params: QuantParams, quant_min: int, quant_max: int) -> tuple[Ends, Ends]:
    """Compute the values of the outermost codes, as float32: ``low`` and ``high`` of FakeQuantize.

    The products are exact in float64 and rounded once; an end beyond float32 is infinite.

    Args:
        params: Scale and zero point, 0-d or ``[channels]``.
        quant_min: Smallest code.
        quant_max: Largest code; less than 2**28 from the smallest.
    """
    with np.errstate(over="ignore"):
        low, high = (
            np.asarray(end.astype(np.float32))
            for end in range_from_params(params, quant_min, quant_max)
        )
    return low, high


def params_of_ends(low: Ends, high: Ends, quant_min: int, quant_max: int) -> QuantParams:
    """Return scale and zero point of which :func:`ends_of_codes` makes these ends.

    That is the float32 next to ``(high - low) / (quant_max - quant_min)``, or its neighbour where
    only that one gives the ends. About one scale in 200 shares its ends with a neighbour where 0
    is one of them, very few do elsewhere, and may come back as that. Ends that no scale and zero
    point give (0 is between two codes) come back as the nearest that do.

    Args:
        low: Lower ends, finite float32, 0-d or ``[channels]``.
        high: Upper ends of the same shape, above the lower.
        quant_min: Smallest code.
        quant_max: Largest code.
    """
    lower, upper = low.astype(np.float64), high.astype(np.float64)
    exact = (upper - lower) / (quant_max - quant_min)
    zero_point = np.clip(np.rint(quant_min - lower / exact), quant_min, quant_max)
    codes = np.asarray(zero_point.astype(np.int64))
    nearest = np.maximum(exact, np.finfo(np.float32).tiny).astype(np.float32)
    scale = nearest
    # The quotient is off by less than one float32 from the scale that made the ends: both were
    # rounded.
    for towards in (np.float32(0), np.float32(np.inf)):
        other = np.nextafter(nearest, towards)
        right = _gives(QuantParams(scale, codes), low, high, quant_min, quant_max)
        better = _gives(QuantParams(other, codes), low, high, quant_min, quant_max) & ~right
        scale = np.asarray(np.where(better, other, scale))
    return QuantParams(scale, codes)


def _gives(
    params: QuantParams, low: Ends, high: Ends, quant_min: int, quant_max: int
) -> npt.NDArray[np.bool_]:
    """Find the scales that give the ends."""
    made_low, made_high = ends_of_codes(params, quant_min, quant_max)
    return np.asarray((made_low == low) & (made_high == high))


_DECIMALS = 6

SMALLEST = np.float32(10.0**-_DECIMALS)

"""The smallest positive number that six decimals can hold."""


def six_decimals(scale: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return the float32 numbers that are read from the text ``"%f"`` of others.

    >>> f"{six_decimals(np.float32(1 / 127)):.9f}"
    '0.007874000'
    """
    values = np.asarray(scale, np.float32)
    # Through the text and not by arithmetic: C's "%f" rounds the exact decimal expansion, as Python
    # does, and 10**6 times a float32 would be rounded before.
    texts = [f"{float(value):.{_DECIMALS}f}" for value in values.reshape(-1)]
    return np.array([float(text) for text in texts], np.float32).reshape(values.shape)
