"""Sums as the real numbers that they stand for, in float32, and those as codes.

For what is added to a sum as a real number: a float bias, or a residual that was quantised on a
grid of its own. It is added before the sum is rounded to the output's codes.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from numba import njit

from intact.errors import ConfigError
from intact.numerics.fixed_point_kernel import ROUNDING_CODES, round_float
from intact.numerics.fused import fused_float32
from intact.program import Array, Encoding
from intact.program.arithmetic.ends import EndsGrid, effective, has_ends
from intact.program.arithmetic.requantize import code_bounds
from intact.program.operations import Bounds
from intact.targets import Arithmetic, ZeroPointOrder

Floats32 = npt.NDArray[np.float32]

_ONE, _NONE = np.float32(1), np.float32(0)


class _Last(enum.IntEnum):
    """How a number is counted in steps of the output."""

    FUSED = 0
    """Times a factor, plus an offset, rounded once."""
    MULTIPLIED = 1
    """Times a factor, then plus an offset."""
    DIVIDED = 2
    """By the scale, then plus an offset."""


_FUSED, _MULTIPLIED = int(_Last.FUSED), int(_Last.MULTIPLIED)  # numba reads plain integers


class RealRequantizer:
    """Brings sums, a float bias and a residual to an output's codes.

    ``sum * scale + bias``, in float32, is a real number. A residual is added as one too, or, where
    the target is told ranges by their ends, as it is: the number is counted in its steps then, and
    quantised by ends in these. Such a target may also fold the output's factor into scale and bias.

    Args:
        arithmetic: How.
        scale: Of the sums, float32 ``[]`` or ``[channels]``.
        output: Of the result.
        bounds: Real numbers that the result is clamped to.
        constant: Integers that are added to the sums first, ``[channels]``; None adds nothing.
        bias: Floats, ``[channels]``; None adds nothing.
        residual: What the codes of the residual stand for; None where there is none.

    Raises:
        ConfigError: A scale is not finite.
    """

    def __init__(
        self,
        arithmetic: Arithmetic,
        scale: Floats32,
        output: Encoding,
        bounds: Bounds,
        *,
        constant: npt.NDArray[np.int64] | None = None,
        bias: Array | None = None,
        residual: Encoding | None = None,
    ) -> None:
        self._dtype = output.dtype
        low, high = code_bounds(arithmetic, output, bounds)
        biases: Array = np.zeros(1, np.float32) if bias is None else np.asarray(bias, np.float32)
        added = np.zeros(1, np.int64) if constant is None else constant
        channels = np.broadcast_shapes((1,), scale.shape, biases.shape, added.shape)
        prepare = _by_ends if has_ends(arithmetic) else _by_scale
        with np.errstate(over="ignore", invalid="ignore"):
            real, units, last = prepare(arithmetic, (scale, biases), output, residual)
        if not all(np.isfinite(each).all() for each in (*real, *last[:2])):
            raise ConfigError(
                "a scale or a bias is not finite in float32",
                remedy="check the scales: they are positive and finite",
            )
        self._parameters: tuple[Any, ...] = (
            np.broadcast_to(added.astype(np.float64), channels).copy(),
            *(np.broadcast_to(each.astype(np.float32), channels).copy() for each in real),
            arithmetic.fused_bias,
            units,
            (*(np.broadcast_to(each, channels).copy() for each in last[:2]), *last[2:]),
            (float(low), float(high)),
            ROUNDING_CODES[arithmetic.rounding],
        )

    def __call__(self, sums: Array, residual: Array | None = None) -> Array:
        """Return codes ``[M, channels]`` of whole sums of that shape; the residual has it too."""
        codes = np.empty(sums.shape, self._dtype)
        beside = np.zeros((0, 0), np.int8) if residual is None else np.ascontiguousarray(residual)
        fill: Any = _fill
        fill(np.ascontiguousarray(sums), beside, *self._parameters, codes)
        return codes


_Real = tuple[Floats32, Floats32]
"""Scale and bias."""
_Units = tuple[np.float32, np.float32, np.int64, np.float32]
"""What is added to a number, and what it is multiplied by; what is taken off a residual's code,
and what that is multiplied by; then they are added."""
_Steps = tuple[Floats32, Floats32, int, int]
"""Factor, offset, what is added after rounding, and how: a value of :class:`_Last`."""


def _by_ends(
    arithmetic: Arithmetic, real: _Real, output: Encoding, residual: Encoding | None
) -> tuple[_Real, _Units, _Steps]:
    """Count in the residual's steps, whose zero point is taken off beforehand (OpenVINO).

    Measured with openvino 2026.4.1: no code of some ten million differs.
    """
    unit, zero = _ONE, _NONE
    if residual is not None:
        unit = np.float32(effective(arithmetic, residual).scale.item())
        zero = np.float32(residual.zero_point.item())
    units = -(zero * unit), _ONE / unit, np.int64(0), _ONE
    if arithmetic.folded_factor and residual is None:
        after = msgspec.structs.replace(arithmetic, zero_point=ZeroPointOrder.AFTER_ROUNDING)
        grid = EndsGrid.of(after, output)
        offset = real[1] * grid.factor + grid.offset + np.float32(grid.first)
        one, none = np.ones(1, np.float32), np.zeros(1, np.float32)
        return (real[0] * grid.factor, offset), units, (one, none, 0, _Last.FUSED)
    grid = EndsGrid.of(arithmetic, output, float(unit)).as_stored_scale()
    return real, units, (grid.factor, grid.offset, grid.first, _Last.FUSED)


def _by_scale(
    arithmetic: Arithmetic, real: _Real, output: Encoding, residual: Encoding | None
) -> tuple[_Real, _Units, _Steps]:
    """Divide real numbers by the output's scale, or multiply with its reciprocal."""
    units = _NONE, _ONE, np.int64(0), _NONE
    if residual is not None:
        step = np.float32(residual.scale.item())
        units = _NONE, _ONE, np.int64(residual.zero_point.item()), step
    scale, zero = np.atleast_1d(output.scale.astype(np.float32)), int(output.zero_point.item())
    before = arithmetic.zero_point is ZeroPointOrder.BEFORE_ROUNDING
    offset = np.full(1, zero if before else 0, np.float32)
    first = 0 if before else zero
    if arithmetic.reciprocal_scale:
        return real, units, (_ONE / scale, offset, first, _Last.MULTIPLIED)
    return real, units, (scale, offset, first, _Last.DIVIDED)


@njit(cache=True, nogil=True)
def _fill(
    sums: Any,
    residual: Any,
    constant: Any,
    scales: Any,
    biases: Any,
    fused_bias: bool,
    units: Any,
    last: Any,
    limits: Any,
    rounding: int,
    codes: Any,
) -> None:
    """Fill ``codes`` ``[rows, columns]``; one channel, or as many as there are columns."""
    shift, unit, residual_zero, residual_unit = units
    factors, offsets, first, kind = last
    low, high = limits
    step = 1 if scales.shape[0] > 1 else 0
    for row in range(sums.shape[0]):
        for column in range(sums.shape[1]):
            one = column * step
            value = np.float32(np.float64(sums[row, column]) + constant[one])
            if fused_bias:
                value = fused_float32(value, scales[one], biases[one])
            else:
                value = np.float32(value * scales[one]) + biases[one]
            if residual.shape[0]:
                beside = np.float32(np.int64(residual[row, column]) - residual_zero)
                counted = np.float32(np.float32(value + shift) * unit)
                value = counted + np.float32(beside * residual_unit)
            if kind == _FUSED:
                steps = fused_float32(value, factors[one], offsets[one])
            elif kind == _MULTIPLIED:
                steps = np.float32(value * factors[one]) + offsets[one]
            else:
                steps = np.float32(value / factors[one]) + offsets[one]
            code = np.float64(round_float(steps, rounding)) + first
            code = code if code > low else low
            codes[row, column] = np.int32(code if code < high else high)
