"""Converts codes to real numbers and back, as kernels that compute in floats do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from intact.config import Rounding
from intact.numerics.fixed_point_kernel import ROUNDING_CODES, round_float
from intact.numerics.loop_cache import CACHED
from intact.numerics.rounding import round_to_integer
from intact.program.arithmetic.ends import ends_codes, has_ends
from intact.program.arithmetic.requantize import code_bounds
from intact.program.operations import Bounds
from intact.program.program import Array, Encoding
from intact.targets import Arithmetic, ZeroPointOrder

Reals = npt.NDArray[np.floating[Any]]


def shaped(values: Array, encoding: Encoding, rank: int) -> Array:
    """Return scales or zero points so that they broadcast to a tensor of ``rank`` axes."""
    if encoding.axis is None:
        return values.reshape(())
    return values.reshape([-1 if axis == encoding.axis % rank else 1 for axis in range(rank)])


def to_reals(codes: Array, encoding: Encoding, kind: type[np.floating[Any]]) -> Reals:
    """Return ``(code - zero_point) * scale``; the difference is exact and rounded once.

    Args:
        codes: Integers of any shape.
        encoding: What they stand for.
        kind: float32 or float64, in which the product is computed.
    """
    steps = codes.astype(np.int64) - shaped(encoding.zero_point, encoding, codes.ndim)
    scales = shaped(encoding.scale, encoding, codes.ndim).astype(kind)
    reals: Reals = np.asarray(steps.astype(kind) * scales)
    return reals


def to_codes(
    reals: Reals,
    arithmetic: Arithmetic,
    encoding: Encoding,
    bounds: Bounds = Bounds(),  # noqa: B008
    *,
    rounding: Rounding | None = None,
) -> Array:
    """Return the codes of real numbers: divide by the scale, round, clamp; all in their floats.

    The zero point is added before or after rounding as the arithmetic says. NaN
    becomes the lowest code, as in ONNX Runtime's vector code, or the highest where the arithmetic
    says so; on hardware it may become anything.

    Args:
        reals: float32 or float64, any shape.
        arithmetic: How.
        encoding: What the codes stand for.
        bounds: What they are clamped to.
        rounding: Another rounding than that of the arithmetic.
    """
    low, high = code_bounds(arithmetic, encoding, bounds)
    # The loop of ends wants channels on the last axis.
    if has_ends(arithmetic):
        if encoding.axis is None:
            return ends_codes(reals, arithmetic, encoding, (low, high))
        last = np.moveaxis(reals, encoding.axis, -1)
        return np.moveaxis(ends_codes(last, arithmetic, encoding, (low, high)), -1, encoding.axis)
    kind = reals.dtype.type
    scales = np.atleast_1d(encoding.scale).astype(kind)
    zeros = np.atleast_1d(encoding.zero_point).astype(np.float64)
    before = arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING
    codes = np.empty(reals.shape, encoding.dtype)
    shape = _around(reals.shape, encoding.axis)
    _quantize(
        np.ascontiguousarray(reals).reshape(shape),
        kind(1) / scales if arithmetic.reciprocal_scale else scales,
        zeros.astype(kind) if before else np.zeros_like(scales),
        np.zeros_like(zeros) if before else zeros,
        (float(low), float(high)),
        ROUNDING_CODES[rounding or arithmetic.rounding],
        arithmetic.reciprocal_scale,
        float(high if arithmetic.nan_is_highest else low),
        codes.reshape(shape),
    )
    return codes


def round_codes(
    steps: Reals,
    arithmetic: Arithmetic,
    encoding: Encoding,
    bounds: Bounds = Bounds(),  # noqa: B008
) -> Array:
    """Return the codes of what is counted in the output's steps, zero point included."""
    low, high = code_bounds(arithmetic, encoding, bounds)
    nearest = round_to_integer(steps, arithmetic.rounding)
    # fmax prefers the number where the other is NaN.
    codes: Array = np.fmin(np.fmax(nearest, low), high).astype(encoding.dtype)
    return codes


def _around(shape: tuple[int, ...], axis: int | None) -> tuple[int, int, int]:
    """Return ``[before, channels, after]`` of a tensor; one channel where it has no such axis."""
    if axis is None:
        return 1, 1, math.prod(shape)
    axis %= len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


@njit(cache=CACHED, nogil=True)
def _quantize(
    reals: Any,
    factors: Any,
    zeros_before: Any,
    zeros_after: Any,
    limits: Any,
    rounding: int,
    reciprocal: bool,
    of_nan: float,
    codes: Any,
) -> None:
    """Fill ``codes`` with those of ``reals``, both ``[before, channels, after]``.

    Args:
        reals: float32 or float64.
        factors: Scales or their reciprocals, in the same type, ``[channels]``.
        zeros_before: What is added before rounding, in the same type, ``[channels]``.
        zeros_after: float64 ``[channels]``, added after rounding.
        limits: Smallest and largest code.
        rounding: A mode of ``ROUNDING_CODES``.
        reciprocal: Multiply by the factor, not divide.
        of_nan: The code of NaN.
        codes: Written.
    """
    low, high = limits
    for outer in range(reals.shape[0]):
        for channel in range(reals.shape[1]):
            factor, after = factors[channel], zeros_after[channel]
            before = zeros_before[channel]
            for inner in range(reals.shape[2]):
                real = reals[outer, channel, inner]
                steps = real * factor if reciprocal else real / factor
                code = np.float64(round_float(steps + before, rounding)) + after
                if code != code:  # noqa: PLR0124 - NaN
                    code = of_nan
                # Compared as floats and not by min and max: an int32 of a float beyond its range is
                # undefined.
                code = code if code > low else low
                codes[outer, channel, inner] = np.int32(code if code < high else high)
