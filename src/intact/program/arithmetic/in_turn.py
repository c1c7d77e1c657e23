"""Requantizes by one float operation after another, as plain C code does.

``round(((float(sum) * s_x) * s_w) / s_y)`` rounds after each operation, where a precomputed factor
``s_x * s_w / s_y`` rounds three times before it meets the sum: the two differ in the last bit, and
next to ties in the code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from intact.errors import ConfigError
from intact.numerics.fixed_point_kernel import ROUNDING_CODES, round_float
from intact.numerics.loop_cache import CACHED
from intact.program.arithmetic.requantize import (
    Requantizer,
    code_bounds,
    real_multiplier,
    real_type,
)
from intact.program.operations import Bounds
from intact.program.program import Array, Encoding
from intact.targets import Arithmetic, FloatInTurn, ZeroPointOrder


def requantizer(
    arithmetic: Arithmetic,
    scales: Sequence[npt.ArrayLike],
    output: Encoding,
    bounds: Bounds = Bounds(),  # noqa: B008
    *,
    bias: npt.ArrayLike | None = None,
) -> Callable[[Array], Array]:
    """Return what brings accumulators of scale ``product(scales)`` to codes of the output.

    Args:
        arithmetic: How: by one factor, or with `FloatInTurn` by one scale after another.
        scales: The scales of the operands, each ``[]`` or ``[channels]`` (the last axis).
        output: The encoding of the result.
        bounds: Real numbers that the result is clamped to.
        bias: The same as for :class:`Requantizer`.

    Raises:
        ConfigError: The same as for :class:`Requantizer`.
    """
    if isinstance(arithmetic.requantize, FloatInTurn):
        return InTurn(arithmetic, scales, (output.scale,), output, bounds, bias=bias)
    multiplier = real_multiplier(arithmetic, scales, output)
    return Requantizer(arithmetic, multiplier, output, bounds, bias=bias)


class InTurn:
    """Converts sums to a float, multiplies, divides, rounds, adds the zero point, clamps.

    Args:
        arithmetic: In which floats, and how they are rounded.
        factors: What sums are multiplied by, in this order, each ``[]`` or ``[channels]``.
        divisors: What the products are divided by, likewise.
        output: The encoding of the result.
        bounds: Real numbers that the result is clamped to.
        bias: Integers that are added to the sums first, exactly; None adds nothing.

    Raises:
        ConfigError: A number is given for something else than the channels of the last axis, or
            is not finite.
    """

    def __init__(
        self,
        arithmetic: Arithmetic,
        factors: Sequence[npt.ArrayLike],
        divisors: Sequence[npt.ArrayLike],
        output: Encoding,
        bounds: Bounds = Bounds(),  # noqa: B008
        *,
        bias: npt.ArrayLike | None = None,
    ) -> None:
        self.output = output
        real = real_type(arithmetic)
        added = np.asarray(0 if bias is None else bias, np.float64)
        zero = output.zero_point.astype(np.float64)
        before = arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING
        given = [np.asarray(each) for each in (*factors, *divisors)]
        channels = np.broadcast_shapes((1,), added.shape, zero.shape, *(g.shape for g in given))
        if len(channels) != 1:
            raise ConfigError(
                f"scales of shape {list(channels)} are no channels",
                remedy="give one number, or one for each channel of the last axis",
            )
        self._channels = channels[0]
        low, high = code_bounds(arithmetic, output, bounds)
        self._parameters = (
            _rows([added], channels, np.float64)[0],
            _rows(factors, channels, real),
            _rows(divisors, channels, real),
            _rows([zero if before else 0 * zero], channels, real)[0],
            _rows([0 * zero if before else zero], channels, np.float64)[0],
            float(low),
            float(high),
            ROUNDING_CODES[arithmetic.rounding],
        )

    def __call__(self, accumulators: Array) -> Array:
        """Return codes of ``output.dtype``, of the accumulators' shape; these hold integers."""
        codes = np.empty(accumulators.shape, self.output.dtype)
        if codes.size:
            rows = (-1, self._channels) if self._channels > 1 else (1, -1)
            sums = np.ascontiguousarray(accumulators).reshape(rows)
            _scale(sums, *self._parameters, codes.reshape(rows))
        return codes


def _rows(values: Sequence[npt.ArrayLike], channels: tuple[int, ...], dtype: type) -> Array:
    """Return numbers as ``[how many, channels]``."""
    rows: Array = np.empty((len(values), *channels), dtype)
    with np.errstate(over="ignore"):
        for row, value in zip(rows, values, strict=True):
            row[:] = np.asarray(value, dtype)
    if not np.isfinite(rows).all():
        raise ConfigError("a scale is not finite", remedy="calibrate with values that are finite")
    return rows


@njit(cache=CACHED, nogil=True)
def _scale(
    sums: Any,
    bias: Any,
    factors: Any,
    divisors: Any,
    zero_before: Any,
    zero_after: Any,
    low: float,
    high: float,
    rounding: int,
    codes: Any,
) -> None:
    """Fill ``codes`` ``[rows, columns]``; one channel, or as many as there are columns.

    Args:
        sums: Integers in any type, ``[rows, columns]``.
        bias: float64 ``[channels]``, whole.
        factors: Floats ``[how many, channels]``.
        divisors: What is divided by, in the same type, ``[channels]``.
        zero_before: What is added before rounding, in the same type, ``[channels]``.
        zero_after: float64 ``[channels]``.
        low: Smallest code.
        high: Largest code.
        rounding: A mode of ``ROUNDING_CODES``.
        codes: Written.
    """
    real = zero_before.dtype.type
    step = 1 if bias.shape[0] > 1 else 0
    for row in range(sums.shape[0]):
        for column in range(sums.shape[1]):
            one = column * step
            value = real(np.float64(sums[row, column]) + bias[one])
            # Each product is rounded: numba keeps the order of float operations, as no fast-math is
            # asked for.
            for k in range(factors.shape[0]):
                value = value * factors[k, one]
            for k in range(divisors.shape[0]):
                value = value / divisors[k, one]
            rounded = np.float64(round_float(value + zero_before[one], rounding))
            codes[row, column] = np.int32(min(max(rounded + zero_after[one], low), high))
