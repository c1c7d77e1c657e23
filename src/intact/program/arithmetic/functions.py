"""Functions of one operand: the codes that a target gives for codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.numerics.fixed_point import Integers
from intact.numerics.rounding import round_to_integer
from intact.program.arithmetic.fixed_functions import fixed_function
from intact.program.arithmetic.float_functions import real_function
from intact.program.arithmetic.reals import to_codes
from intact.program.arithmetic.requantize import Requantizer, code_bounds, real_multiplier
from intact.program.operations import Function, Unary
from intact.program.program import Array, Encoding
from intact.targets import Arithmetic, Functions, Requantize

_FLOATS = (Requantize.FLOAT32, Requantize.FLOAT64)
_STRAIGHT = (Unary.CLAMP, Unary.LEAKY_RELU, Unary.ABS, Unary.NEG)
"""Functions that are straight on both sides of 0: integer hardware requantises each side."""


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
    if arithmetic.requantize in _FLOATS:
        return _in_float(operation, arithmetic, steps, data, output)
    if operation.kind in _STRAIGHT:
        return _straight(operation, arithmetic, steps, data, output)
    found: npt.NDArray[Any] | None = None
    if arithmetic.functions is Functions.FIXED_POINT:
        found = fixed_function(operation.kind, steps, data, output)
    if found is None:
        found = _in_table(operation, steps, data, output)
    low, high = code_bounds(arithmetic, output, operation.bounds)
    return np.clip(found, low, high).astype(output.dtype)


def _straight(
    operation: Function,
    arithmetic: Arithmetic,
    steps: Integers,
    data: Encoding,
    output: Encoding,
) -> Array:
    """Requantise both sides of 0; the negative one with its slope."""
    slopes = {
        Unary.CLAMP: (1.0, 1.0),
        Unary.LEAKY_RELU: (operation.parameter, 1.0),
        Unary.ABS: (-1.0, 1.0),
        Unary.NEG: (-1.0, -1.0),
    }
    below, above = slopes[operation.kind]

    def side(slope: float) -> Array:
        # The sign goes to the accumulator: kernels multiply magnitudes.
        flips = operation.kind in (Unary.ABS, Unary.NEG) and slope < 0
        factors = [np.asarray(data.scale), np.asarray(1.0 if flips else slope, np.float32)]
        multiplier = real_multiplier(arithmetic, factors, output)
        requantizer = Requantizer(arithmetic, multiplier, output, operation.bounds)
        return requantizer(-steps if flips else steps)

    return np.where(steps < 0, side(below), side(above))


def _in_float(
    operation: Function,
    arithmetic: Arithmetic,
    steps: Integers,
    data: Encoding,
    output: Encoding,
) -> Array:
    """Dequantise, compute in float32 and quantise, as hardware does that requantises in floats."""
    real = _dequantized(steps, data)
    if operation.kind is not Unary.CLAMP:
        real = real_function(operation.kind, real, operation.parameter)
    return to_codes(real, arithmetic, output, operation.bounds)


def _in_table(
    operation: Function, steps: Integers, data: Encoding, output: Encoding
) -> npt.NDArray[np.float64]:
    """Compute in float32 what fixed-point hardware finds in a table; codes are not yet clamped.

    TFLite's ``LUTPopulate`` multiplies by the inverse of the output's scale and rounds half away
    from zero. The square root alone divides and is cast to an integer: measured with LiteRT 2.3.
    """
    real = real_function(
        operation.kind, _dequantized(steps, data), operation.parameter, for_table=True
    )
    scale, is_cast = np.float32(output.scale), operation.kind is Unary.SQRT
    with np.errstate(all="ignore"):
        counted = real / scale if is_cast else real * (np.float32(1) / scale)
    limit = 2.0**31
    finite = np.nan_to_num(counted.astype(np.float64), nan=-limit, posinf=limit, neginf=-limit)
    if is_cast:
        return np.trunc(finite) + float(output.zero_point)
    return round_to_integer(finite, Rounding.HALF_AWAY_FROM_ZERO) + float(output.zero_point)


def _dequantized(steps: Integers, encoding: Encoding) -> npt.NDArray[np.float32]:
    return np.asarray(steps.astype(np.float32) * np.float32(encoding.scale))
