"""Computes the codes that a target gives for a function of codes, such as Sigmoid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.numerics.fixed_point import Integers
from intact.numerics.rounding import round_to_integer
from intact.ops import functions
from intact.ops.functions import Unary
from intact.program.arithmetic.fixed_functions import fixed_function
from intact.program.arithmetic.interpolated import curve, interpolate, table_of
from intact.program.arithmetic.reals import to_codes
from intact.program.arithmetic.requantize import Requantizer, code_bounds, real_multiplier
from intact.program.operations import Function
from intact.program.program import Array, Encoding
from intact.targets import Arithmetic, Float, Functions

Floats: TypeAlias = npt.NDArray[np.float32]


def _table_sigmoid(x: Floats) -> Floats:
    """The logistic as LiteRT fills its tables: rounded three times."""
    one = np.float32(1)
    return np.asarray(one / (one + functions.exp(-x)))


_OF_TABLES: Mapping[Unary, Callable[[Floats], Floats]] = {functions.sigmoid: _table_sigmoid}

GATE_STEPS = 255
"""Steps of the gate of a hard swish that is composed: the codes of 8 bits."""
GATE_OFFSET, GATE_SCALE = 3.0, 6.0 / GATE_STEPS
"""What is added to the input of such a gate, and the steps in which the sum is kept."""

_STRAIGHT = (functions.clamp, functions.leaky_relu, functions.absolute, functions.negative)

"""Functions that are straight on both sides of 0: integer hardware requantizes each side."""


def function_of_codes(
    operation: Function,
    arithmetic: Arithmetic,
    codes: Integers,
    data: Encoding,
    output: Encoding,
) -> Array:
    """Return the output's codes for codes of the input.

    Codes outside the input's range, which no step makes, are taken for the nearest inside. What is
    not defined (the root of a negative number) becomes the lowest code.
    """
    steps = np.clip(codes, data.quant_min, data.quant_max) - int(data.zero_point)
    # Cases: (1) a hard swish of two kernels, where both have all codes of 8 bits; (2) targets that
    # requantize in floats: one float function; (3) what is straight on both sides of 0: requantized
    # with a slope; (4) a fixed-point or interpolated kernel of its own; (5) a table filled in
    # floats.
    if operation.kind is functions.hard_swish and arithmetic.functions is Functions.COMPOSED:
        spans = {each.quant_max - each.quant_min for each in (data, output)}
        if spans == {GATE_STEPS}:
            return _gate_and_multiply(operation, arithmetic, steps, data, output)
    if isinstance(arithmetic.requantize, Float):
        return _compute_in_float(operation, arithmetic, steps, data, output)
    if operation.kind in _STRAIGHT:
        return _straight(operation, arithmetic, steps, data, output)
    found: npt.NDArray[Any] | None = None
    if arithmetic.functions in (Functions.FIXED_POINT, Functions.TRUNCATED):
        found = fixed_function(operation.kind, steps, data, output)
    elif arithmetic.functions is Functions.INTERPOLATED and data.dtype.itemsize == 2:
        found = _interpolate(operation, steps, data, output)
    if found is None:
        found = _look_up(operation, arithmetic, steps, data, output)
    low, high = code_bounds(arithmetic, output, operation.bounds)
    return np.clip(found, low, high).astype(output.dtype)


def _straight(
    operation: Function,
    arithmetic: Arithmetic,
    steps: Integers,
    data: Encoding,
    output: Encoding,
) -> Array:
    """Requantize both sides of 0; the negative one with its slope."""
    slope = operation.number("alpha") if operation.kind is functions.leaky_relu else 1.0
    slopes = {functions.absolute: (-1.0, 1.0), functions.negative: (-1.0, -1.0)}
    below, above = slopes.get(operation.kind, (slope, 1.0))

    def side(slope: float) -> Array:
        # The sign goes to the accumulator: kernels multiply magnitudes.
        flips = operation.kind in slopes and slope < 0
        factors = [np.asarray(data.scale), np.asarray(1.0 if flips else slope, np.float32)]
        multiplier = real_multiplier(arithmetic, factors, output)
        requantizer = Requantizer(arithmetic, multiplier, output, operation.bounds)
        return requantizer(-steps if flips else steps)

    return np.where(steps < 0, side(below), side(above))


def _gate_and_multiply(
    operation: Function,
    arithmetic: Arithmetic,
    steps: Integers,
    data: Encoding,
    output: Encoding,
) -> Array:
    """Compute a hard swish as two kernels of codes.

    ``x + 3`` in steps of ``GATE_SCALE`` saturates where the gate does, as ONNX Runtime's QLinearAdd
    computes it; read in steps a sixth as wide it is the gate, which QLinearMul multiplies by.
    """
    scale = np.float32(GATE_SCALE)
    factor, offset = np.float32(data.scale) / scale, np.float32(GATE_OFFSET) / scale
    sums = (steps * np.float64(factor) + np.float64(offset)).astype(np.float32)
    gate = np.clip(np.rint(sums), 0, GATE_STEPS).astype(np.int64)
    factors = [np.asarray(data.scale), np.asarray(np.float32(1 / GATE_STEPS))]
    multiplier = real_multiplier(arithmetic, factors, output)
    return Requantizer(arithmetic, multiplier, output, operation.bounds)(steps * gate)


def _compute_in_float(
    operation: Function,
    arithmetic: Arithmetic,
    steps: Integers,
    data: Encoding,
    output: Encoding,
) -> Array:
    """Dequantize, compute in float32 and quantize, as hardware does that requantizes in floats."""
    real = operation.kind(_dequantize(steps, data), *operation.options)
    return to_codes(real, arithmetic, output, operation.bounds)


def _look_up(
    operation: Function,
    arithmetic: Arithmetic,
    steps: Integers,
    data: Encoding,
    output: Encoding,
) -> npt.NDArray[np.float64]:
    """Compute in float32 what fixed-point hardware finds in a table; codes are not yet clamped.

    TFLite's ``LUTPopulate`` multiplies by the inverse of the output's scale and rounds half away
    from zero.
    """
    real = _table_reals(operation, _dequantize(steps, data))
    scale, is_cast = np.float32(output.scale), arithmetic.functions is Functions.TRUNCATED
    with np.errstate(all="ignore"):
        # The two kernels differ: one divides and casts, LUTPopulate multiplies by a reciprocal and
        # rounds.
        counted = real / scale if is_cast else real * (np.float32(1) / scale)
    # Infinity and NaN become integers beyond every code, so that clamping decides: C's cast of them
    # is undefined.
    limit = 2.0**31
    finite = np.nan_to_num(counted.astype(np.float64), nan=-limit, posinf=limit, neginf=-limit)
    if is_cast:
        return np.trunc(finite) + float(output.zero_point)
    return round_to_integer(finite, Rounding.HALF_AWAY_FROM_ZERO) + float(output.zero_point)


def _interpolate(
    operation: Function, steps: Integers, data: Encoding, output: Encoding
) -> Integers:
    """Find codes on the lines of a table; those of the logistic are of one scale."""
    found = curve(operation.kind, steps, data)
    if found is not None:
        return found

    def function(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return _table_reals(operation, values)

    return interpolate(table_of(function, (data.scale.item(), output.scale.item())), steps)


def _table_reals(operation: Function, values: Floats) -> Floats:
    """Compute the reals from which LiteRT fills its tables."""
    own = _OF_TABLES.get(operation.kind)
    if own is None:
        return operation.kind(values, *operation.options)
    with np.errstate(all="ignore"):
        return own(values)


def _dequantize(steps: Integers, encoding: Encoding) -> npt.NDArray[np.float32]:
    return np.asarray(steps.astype(np.float32) * np.float32(encoding.scale))
