"""Rounds floats to integers, in the seven modes that hardware and toolchains use."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from intact.errors import ConfigError
from intact.numerics.levels import Rounding

FloatT = TypeVar("FloatT", bound=np.floating[Any])


def round_to_integer(values: npt.NDArray[FloatT], mode: Rounding) -> npt.NDArray[FloatT]:
    """Round every element to an integer, exactly, and keep the dtype.

    ``floor(x + 0.5)`` would be wrong: 0.49999997 + 0.5 is 1.0 in float32, and near 2**23 the sum
    itself is rounded. Here ``x - rint(x)`` is exact, so that a tie is recognized exactly.

    Args:
        values: Any shape, float32 or float64. Infinities and NaN are returned as they are.
        mode: The rounding mode.

    Returns:
        A new array of the same shape and dtype. The sign of a zero result is not specified.

    Raises:
        ConfigError: If ``values`` is not of a float dtype.

    >>> round_to_integer(np.float32([0.5, -0.5, 2.5]), Rounding.HALF_UP).tolist()
    [1.0, 0.0, 3.0]
    """
    values = np.asarray(values)
    if not np.issubdtype(values.dtype, np.floating):
        raise ConfigError(
            f"round_to_integer was given an array of {values.dtype}",
            remedy="pass float32 or float64 values",
        )
    if mode is Rounding.UP:
        return np.asarray(np.ceil(values))
    nearest = np.asarray(np.rint(values))
    if mode in (Rounding.HALF_EVEN, Rounding.NEAREST):
        return nearest
    return _move_ties(values, nearest, mode)


def _move_ties(
    values: npt.NDArray[FloatT], nearest: npt.NDArray[FloatT], mode: Rounding
) -> npt.NDArray[FloatT]:
    """Move the ties that ``rint`` sent to the even neighbour to the one that ``mode`` asks for.

    Adding a boolean array is adding 0 or 1; only ties move, and a tie is below 2**52 (2**23 in
    float32), where adding 1 is exact.
    """
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, which is no tie
        fraction = values - nearest
    was_rounded_down = fraction == 0.5
    was_rounded_up = fraction == -0.5
    if mode is Rounding.HALF_UP:
        return np.asarray(nearest + was_rounded_down)
    if mode is Rounding.HALF_DOWN:
        return np.asarray(nearest - was_rounded_up.astype(nearest.dtype))
    positive = values > 0
    if mode is Rounding.HALF_AWAY_FROM_ZERO:
        upward = was_rounded_down & positive
        downward = was_rounded_up & ~positive
    else:
        upward = was_rounded_down & ~positive
        downward = was_rounded_up & positive
    return np.asarray(nearest + upward - downward.astype(nearest.dtype))
