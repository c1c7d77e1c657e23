"""Functions of one operand. For up to 16 bits each is a table, made when the step is prepared."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.errors import PlanError
from intact.numerics.fixed_point import Integers
from intact.numerics.rounding import round_to_integer
from intact.program import Array, Encoding, Step, Tensor
from intact.program.operations import Function, PRelu, Unary
from intact.run.integer.fixed_functions import fixed_function
from intact.run.integer.float_functions import real_function
from intact.run.integer.kernel import Kernel, Overflows, Prepare
from intact.run.integer.operands import Compute, encoding_of, kernel_of, operation_of
from intact.run.integer.reals import real_type, to_codes, to_reals
from intact.run.integer.requantize import Requantizer, code_bounds, real_multiplier
from intact.run.integer.tables import every_code, look_up, table_bits
from intact.targets import Arithmetic, Functions, Requantize

_FLOATS = (Requantize.FLOAT32, Requantize.FLOAT64)
_STRAIGHT = (Unary.CLAMP, Unary.LEAKY_RELU, Unary.ABS, Unary.NEG)
"""Functions that are straight on both sides of 0: integer hardware requantises each side."""


def prepare_function(step: Step, _: Overflows) -> Kernel:
    """Make the kernel of a :class:`Function`."""
    operation = operation_of(step, Function)
    data, output = one_scale(step, step.inputs[0]), one_scale(step, step.outputs[0])

    def evaluate(codes: Array) -> Array:
        wide = codes.astype(np.int64)
        return function_of_codes(operation, step.arithmetic, wide, data, output)

    if not table_bits(data):
        return kernel_of(step, evaluate)
    table = evaluate(every_code(data))
    return kernel_of(step, lambda codes: look_up(table, codes))


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


def prepare_prelu(step: Step, _: Overflows) -> Kernel:
    """Make the kernel of a :class:`PRelu`: products with the slope below 0, else the data."""
    arithmetic = step.arithmetic
    data, output = one_scale(step, step.inputs[0]), one_scale(step, step.outputs[0])
    slopes = one_scale(step, step.inputs[1])
    if arithmetic.requantize in _FLOATS:
        return kernel_of(step, _prelu_in_float(arithmetic, data, slopes, output))
    above = Requantizer(arithmetic, real_multiplier(arithmetic, [data.scale], output), output)
    factors = [data.scale, slopes.scale]
    below = Requantizer(arithmetic, real_multiplier(arithmetic, factors, output), output)

    def compute(codes: Array, slope: Array) -> Array:
        steps = codes.astype(np.int64) - int(data.zero_point)
        slope_steps = slope.astype(np.int64) - int(slopes.zero_point)
        return np.where(steps < 0, below(steps * slope_steps), above(steps))

    return kernel_of(step, compute)


def _prelu_in_float(
    arithmetic: Arithmetic, data: Encoding, slopes: Encoding, output: Encoding
) -> Compute:
    kind = real_type(arithmetic)

    def compute(codes: Array, slope: Array) -> Array:
        real = to_reals(codes, data, kind)
        sloped = np.where(real < 0, real * to_reals(slope, slopes, kind), real)
        return to_codes(sloped, arithmetic, output)

    return compute


def one_scale(step: Step, tensor: Tensor | None) -> Encoding:
    """Return what a tensor's codes stand for.

    Raises:
        PlanError: It is absent or float, or has a scale for each channel.
    """
    encoding = encoding_of(step, tensor)
    if encoding.axis is not None:
        name = "" if tensor is None else tensor.name
        raise PlanError(
            f"step {step.name!r} takes codes of one scale, but {name!r} has one a channel",
            remedy="quantise it per tensor",
        )
    return encoding


KERNELS: dict[type, Prepare] = {Function: prepare_function, PRelu: prepare_prelu}
