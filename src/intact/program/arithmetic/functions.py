"""Functions of one operand: the codes that a target gives for codes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.numerics.fixed_point import Integers
from intact.numerics.rounding import round_to_integer
from intact.program.arithmetic.fixed_functions import fixed_function
from intact.program.arithmetic.interpolated import curve, interpolate, table_of
from intact.program.arithmetic.reals import to_codes
from intact.program.arithmetic.requantize import Requantizer, code_bounds, real_multiplier
from intact.program.operations import Function, Unary
from intact.program.program import Array, Encoding
from intact.targets import Arithmetic, Functions, Requantize

Floats: TypeAlias = npt.NDArray[np.float32]

_ONE = np.float32(1)

_HALF = np.float32(0.5)


def real_function(
    kind: Unary, values: Floats, parameter: float, *, for_table: bool = False
) -> Floats:
    """Return a function of float32 values.

    Where it is not defined the result is NaN or infinite, without a warning.

    Args:
        kind: Which; not :attr:`Unary.CLAMP`, which is only its bounds.
        values: float32, any shape.
        parameter: ``Function.parameter``.
        for_table: As LiteRT fills its tables, where the logistic is rounded three times.
    """
    table = _FUNCTIONS | _OF_TABLES if for_table else _FUNCTIONS
    with np.errstate(all="ignore"):
        return table[kind](values, np.float32(parameter)).astype(np.float32, copy=False)


def _exactly(function: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]) -> _Function:
    """Return the function in float64, rounded once."""
    return lambda x, _: function(x.astype(np.float64)).astype(np.float32)


def _each(function: Callable[[float], float], x: Floats) -> Floats:
    """Apply a scalar function in float64."""
    flat = [function(float(value)) for value in x.reshape(-1)]
    return np.array(flat, np.float64).astype(np.float32).reshape(x.shape)


def _exp(x: Floats) -> Floats:
    return np.asarray(np.exp(x.astype(np.float64)), np.float32)


def _sigmoid_of_table(x: Floats, _: np.float32) -> Floats:
    return np.asarray(_ONE / (_ONE + _exp(-x)))


def _hard_swish(x: Floats, _: np.float32) -> Floats:
    return np.asarray(x * np.clip(x + np.float32(3), np.float32(0), np.float32(6)) / np.float32(6))


def _hard_sigmoid(x: Floats, slope: np.float32) -> Floats:
    return np.asarray(np.clip(slope * x + _HALF, np.float32(0), _ONE))


def _gelu(x: Floats, _: np.float32) -> Floats:
    return np.asarray(_HALF * x * _each(math.erfc, x * np.float32(-math.sqrt(0.5))))


def _gelu_tanh(x: Floats, _: np.float32) -> Floats:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(_HALF * x * (_ONE + np.tanh(inner.astype(np.float64)).astype(np.float32)))


def _elu(x: Floats, height: np.float32) -> Floats:
    return np.where(x < 0, height * np.expm1(x.astype(np.float64)).astype(np.float32), x)


_Function: TypeAlias = Callable[[Floats, np.float32], Floats]

_FUNCTIONS: dict[Unary, _Function] = {
    Unary.LEAKY_RELU: lambda x, slope: np.where(x < 0, slope * x, x),
    Unary.SIGMOID: _exactly(lambda x: 1 / (1 + np.exp(-x))),
    Unary.TANH: _exactly(np.tanh),
    Unary.HARD_SWISH: _hard_swish,
    Unary.HARD_SIGMOID: _hard_sigmoid,
    Unary.GELU: _gelu,
    Unary.GELU_TANH: _gelu_tanh,
    Unary.ELU: _elu,
    Unary.RSQRT: lambda x, _: np.asarray(_ONE / np.sqrt(x), np.float32),
    Unary.SQRT: lambda x, _: np.sqrt(x),
    Unary.EXP: lambda x, _: _exp(x),
    Unary.LOG: _exactly(np.log),
    Unary.ABS: lambda x, _: np.abs(x),
    Unary.NEG: lambda x, _: -x,
    Unary.ERF: lambda x, _: _each(math.erf, x),
    Unary.RECIPROCAL: lambda x, _: _ONE / x,
}

_OF_TABLES: dict[Unary, _Function] = {Unary.SIGMOID: _sigmoid_of_table}

GATE_STEPS = 255
"""Steps of the gate of a hard swish that is composed: the codes of 8 bits."""
GATE_OFFSET, GATE_SCALE = 3.0, 6.0 / GATE_STEPS
"""What is added to the input of such a gate, and the steps in which the sum is kept."""

_FLOATS = (Requantize.FLOAT32, Requantize.FLOAT64)

_STRAIGHT = (Unary.CLAMP, Unary.LEAKY_RELU, Unary.ABS, Unary.NEG)

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
    if operation.kind is Unary.HARD_SWISH and arithmetic.functions is Functions.COMPOSED:
        spans = {each.quant_max - each.quant_min for each in (data, output)}
        if spans == {GATE_STEPS}:
            return _gated(operation, arithmetic, steps, data, output)
    if arithmetic.requantize in _FLOATS:
        return _in_float(operation, arithmetic, steps, data, output)
    if operation.kind in _STRAIGHT:
        return _straight(operation, arithmetic, steps, data, output)
    found: npt.NDArray[Any] | None = None
    if arithmetic.functions in (Functions.FIXED_POINT, Functions.TRUNCATED):
        found = fixed_function(operation.kind, steps, data, output)
    elif arithmetic.functions is Functions.INTERPOLATED and data.dtype.itemsize == 2:
        found = _interpolated(operation, steps, data, output)
    if found is None:
        found = _in_table(operation, arithmetic, steps, data, output)
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


def _gated(
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


def _in_float(
    operation: Function,
    arithmetic: Arithmetic,
    steps: Integers,
    data: Encoding,
    output: Encoding,
) -> Array:
    """Dequantize, compute in float32 and quantize, as hardware does that requantizes in floats."""
    real = _dequantized(steps, data)
    if operation.kind is not Unary.CLAMP:
        real = real_function(operation.kind, real, operation.parameter)
    return to_codes(real, arithmetic, output, operation.bounds)


def _in_table(
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
    real = real_function(
        operation.kind, _dequantized(steps, data), operation.parameter, for_table=True
    )
    scale, is_cast = np.float32(output.scale), arithmetic.functions is Functions.TRUNCATED
    with np.errstate(all="ignore"):
        counted = real / scale if is_cast else real * (np.float32(1) / scale)
    limit = 2.0**31
    finite = np.nan_to_num(counted.astype(np.float64), nan=-limit, posinf=limit, neginf=-limit)
    if is_cast:
        return np.trunc(finite) + float(output.zero_point)
    return round_to_integer(finite, Rounding.HALF_AWAY_FROM_ZERO) + float(output.zero_point)


def _interpolated(
    operation: Function, steps: Integers, data: Encoding, output: Encoding
) -> Integers:
    """Find codes on the lines of a table; those of the logistic are of one scale."""
    found = curve(operation.kind, steps, data)
    if found is not None:
        return found

    def function(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return real_function(operation.kind, values, operation.parameter, for_table=True)

    return interpolate(table_of(function, (data.scale.item(), output.scale.item())), steps)


def _dequantized(steps: Integers, encoding: Encoding) -> npt.NDArray[np.float32]:
    return np.asarray(steps.astype(np.float32) * np.float32(encoding.scale))
