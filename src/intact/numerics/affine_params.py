"""Converts a range of real values to scale and zero point, and back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intact.errors import ConfigError

_LARGEST_CODE = 2**52
"""Differences of codes up to here are exact in float64, in which ranges and clips are computed."""
_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""Smaller scales are denormal, and hardware that flushes denormals would divide by zero."""
_LARGEST_SCALE = float(np.finfo(np.float32).max)


class QuantParams(NamedTuple):
    """Scale (float32) and zero point (int64): 0-d per tensor, ``[channels]`` per channel.

    Zero points of blocks may lie between the codes, where a file of others has them so: they are
    float32 then.
    """

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]

    @property
    def lies_between(self) -> bool:
        """Whether zero points lie between the codes."""
        return self.zero_point.dtype.kind == "f"


def check_code_range(quant_min: int, quant_max: int) -> None:
    """Raise ConfigError unless ``quant_min < quant_max`` and both are exact in float64."""
    if quant_min >= quant_max:
        raise ConfigError(
            f"the codes {quant_min}..{quant_max} are empty", remedy="use quant_min < quant_max"
        )
    if max(abs(quant_min), abs(quant_max)) > _LARGEST_CODE:
        raise ConfigError(
            f"the codes {quant_min}..{quant_max} are wider than 52 bits",
            remedy="use at most 32 bits",
        )


def params_from_range(
    low: npt.ArrayLike,
    high: npt.ArrayLike,
    quant_min: int,
    quant_max: int,
    *,
    symmetric: bool,
    power_of_two: bool = False,
    truncated_zero_point: bool = False,
) -> QuantParams:
    """Return the scale and zero point that map ``low..high`` onto the codes.

    The range is first widened to hold 0, so that 0 is always a code. Symmetric parameters have
    zero point 0; their threshold is the larger absolute end, or, when the codes have one sign
    only, the end on that side. Everything is computed in float64 and stored in float32.

    A range of zero width gives scale 1. Scales are normal float32 numbers: a narrower range is
    widened to the smallest one.

    With an asymmetric scheme the zero point is rounded, which may move the representable range by
    half a step against the one asked for; an end then rounds to the outermost code.

    Args:
        low: Lower ends, scalar or ``[channels]``.
        high: Upper ends, of the same shape.
        quant_min: Smallest code.
        quant_max: Largest code.
        symmetric: Whether the zero point must be 0.
        power_of_two: Take the smallest power of two that is not below the scale: the range never
            shrinks. Which range is worth holding is for threshold methods to say (`Levels`).
        truncated_zero_point: Cut ``-low / scale`` off to an integer, computed in float32 from the
            scale as it is stored (Tengine); otherwise it is rounded.

    Raises:
        ConfigError: If an end is not a finite float32 number, the ends are crossed, or symmetric
            parameters are asked of codes that do not hold 0.
    """
    check_code_range(quant_min, quant_max)
    lower, upper = _checked_range(low, high)
    if symmetric:
        scale = _symmetric_scale(lower, upper, quant_min, quant_max)
    else:
        scale = (upper - lower) / (quant_max - quant_min)
    scale = _storable_scale(scale, power_of_two=power_of_two)
    stored = scale.astype(np.float32)
    if symmetric:
        return QuantParams(stored, np.zeros(stored.shape, dtype=np.int64))
    # By the scale before it is rounded to float32: a symmetric range keeps its exact tie.
    if truncated_zero_point:
        zero_point = quant_min + np.trunc(-lower.astype(np.float32) / stored)
    else:
        zero_point = np.rint(quant_min - lower / scale)
    clipped = np.asarray(np.clip(zero_point, quant_min, quant_max))
    return QuantParams(stored, clipped.astype(np.int64))


def range_from_params(
    params: QuantParams, quant_min: int, quant_max: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the real values of the smallest and the largest code, in float64."""
    scale = params.scale.astype(np.float64)
    low = np.asarray((quant_min - params.zero_point) * scale)
    high = np.asarray((quant_max - params.zero_point) * scale)
    return low, high


def _checked_range(
    low: npt.ArrayLike, high: npt.ArrayLike
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    lower = np.asarray(low, dtype=np.float64)
    upper = np.asarray(high, dtype=np.float64)
    if lower.shape != upper.shape:
        raise ConfigError(
            f"{lower.shape} lower and {upper.shape} upper ends", remedy="pass equal shapes"
        )
    both = np.stack([lower, upper])
    if not (np.abs(both) <= _LARGEST_SCALE).all():  # also refuses NaN
        raise ConfigError(
            "an end of the range is not a finite float32 number", remedy="give finite ends"
        )
    if (lower > upper).any():
        raise ConfigError("a lower end is above its upper end", remedy="swap them")
    # 0 must be a code: padding and the results of Relu are exact then, and an error at 0 would be
    # added for every tap that lies outside the image.
    return np.minimum(lower, 0.0), np.maximum(upper, 0.0)


def _symmetric_scale(
    lower: npt.NDArray[np.float64], upper: npt.NDArray[np.float64], quant_min: int, quant_max: int
) -> npt.NDArray[np.float64]:
    if quant_min > 0 or quant_max < 0:
        raise ConfigError(
            f"symmetric parameters for the codes {quant_min}..{quant_max}, which lack 0",
            remedy="use codes that hold 0 or an asymmetric scheme",
        )
    # Codes of one sign have one end with values; the other would divide by 0.
    if quant_min == 0:
        return upper / quant_max
    if quant_max == 0:
        return -lower / -quant_min
    # By the shorter side: with -128..127 the threshold has a code on both sides, and -128 lies
    # beyond.
    return np.maximum(-lower, upper) / min(-quant_min, quant_max)


def _storable_scale(
    scale: npt.NDArray[np.float64], *, power_of_two: bool
) -> npt.NDArray[np.float64]:
    """Move scales into the normal float32 range and to a power of two; zero becomes 1."""
    # A tensor that is always 0 has no scale of its own; 1 divides without harm in every runtime.
    limited = np.clip(np.where(scale == 0.0, 1.0, scale), _SMALLEST_SCALE, _LARGEST_SCALE)
    if power_of_two:
        # mantissa in [0.5, 1): exact comparisons, which log2 and rounding would not give.
        mantissa, exponent = np.frexp(limited)
        exponent = exponent - (mantissa == 0.5)
        # 2**127 is the largest power of two of float32.
        limited = np.ldexp(1.0, np.minimum(exponent, 127))
    return np.asarray(limited)
