"""The real numbers that codes stand for, and back: what kernels that compute in floats share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from intact.numerics.rounding import round_to_integer
from intact.program import Array, Encoding
from intact.program.operations import Bounds
from intact.run.integer.requantize import code_bounds
from intact.targets import Arithmetic, Requantize, ZeroPointOrder

Reals = npt.NDArray[np.floating[Any]]


def real_type(arithmetic: Arithmetic) -> type[np.floating[Any]]:
    """Return the floats that a target computes in."""
    return np.float64 if arithmetic.requantize is Requantize.FLOAT64 else np.float32


def shaped(values: Array, encoding: Encoding, rank: int) -> Array:
    """Return scales or zero points so that they broadcast to a tensor of ``rank`` axes."""
    if encoding.axis is None:
        return values.reshape(())
    return values.reshape([-1 if axis == encoding.axis % rank else 1 for axis in range(rank)])


def to_reals(codes: Array, encoding: Encoding, kind: type[np.floating[Any]]) -> Reals:
    """Return ``(code - zero_point) * scale``; the difference is exact and rounded once.

    Args:
        codes: Of any shape.
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
) -> Array:
    """Return the codes of real numbers: divide by the scale, round, clamp.

    The zero point is added before or after rounding as the arithmetic says. What is no number
    becomes the lowest code.
    """
    kind = reals.dtype.type
    zero = shaped(encoding.zero_point, encoding, reals.ndim)
    before = arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.asarray(reals / shaped(encoding.scale, encoding, reals.ndim).astype(kind))
    if before:
        return round_codes(steps + zero.astype(kind), arithmetic, encoding, bounds)
    return _clamped(
        round_to_integer(steps, arithmetic.rounding).astype(np.float64) + zero,
        arithmetic,
        encoding,
        bounds,
    )


def round_codes(
    steps: Reals,
    arithmetic: Arithmetic,
    encoding: Encoding,
    bounds: Bounds = Bounds(),  # noqa: B008
) -> Array:
    """Return the codes of what is counted in the output's steps, zero point included."""
    return _clamped(round_to_integer(steps, arithmetic.rounding), arithmetic, encoding, bounds)


def _clamped(nearest: Reals, arithmetic: Arithmetic, encoding: Encoding, bounds: Bounds) -> Array:
    low, high = code_bounds(arithmetic, encoding, bounds)
    # fmax prefers the number where the other is NaN.
    codes: Array = np.fmin(np.fmax(nearest, low), high).astype(encoding.dtype)
    return codes
