"""Computes the codes that a target gives for a function of codes, such as Sigmoid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.config import Rounding
from intact.numerics.fixed_point import (
    Integers,
    multiply_by_quantized_multiplier,
    quantize_multiplier,
)
from intact.numerics.rounding import round_to_integer
from intact.ops import functions
from intact.ops.functions import Unary
from intact.program.arithmetic.fixed_functions import fixed_function
from intact.program.arithmetic.reals import to_codes
from intact.program.arithmetic.requantize import Requantizer, code_bounds, real_multiplier
from intact.program.operations import Function
from intact.program.program import Array, Encoding
from intact.targets import Arithmetic, Float, Functions

# Computes functions of 16-bit codes by tables and interpolation, as TFLite does.
#
# Sources: LiteRT's ``kernels/internal/common.h`` (``LUTPopulate``, ``LUTLookup``),
# ``reference/integer_ops/logistic.h``, ``tanh.h`` and ``reference/softmax.h``; every code of some
# scales was compared with LiteRT 2.3.0.

_STEPS = 512
"""Lines of a table, each over 128 codes."""
_LOW, _HIGH = -(1 << 15), (1 << 15) - 1
_RANGE = _HIGH - _LOW
_FARTHEST = 10.0
"""Differences to a row's largest number from which on exponentials are nothing."""
_RAISED = (
    4, 8, 12, 14, 15, 16, 17, 19, 20, 21, 22, 25, 27, 28, 29, 30, 31, 33, 34, 35, 37, 39, 40,
    41, 43, 44, 45, 46, 49, 50, 54, 62, 63, 64, 66, 82, 86, 93, 100, 103, 112, 116, 135, 255,
)  # fmt: skip
"""Places of the logistic table with one more than the nearest integer, as LiteRT's TANH shows."""
_UNITS = 3 * 4096
"""Steps of 1 in which arguments of the logistic table are counted."""

Real = npt.NDArray[np.floating]


def table_of(
    function: Callable[[Real], Real],
    scales: tuple[float, float],
    zero: int = 0,
    kind: type[np.floating] = np.float32,
) -> npt.NDArray[np.int64]:
    """Return the codes at the ends of all lines, ``[513]``, moved by half the error in between.

    Args:
        function: A function of reals of ``kind``.
        scales: The scales of the argument and of the result, whose zero point is 0.
        zero: Zero point of the argument.
        kind: Float type of the computation.
    """
    source, result = (kind(scale) for scale in scales)
    low, high = source * kind(_LOW - zero), source * kind(_HIGH - zero)
    step = (high - low) / kind(_STEPS)
    inverse = kind(_RANGE + 1) / (result * kind(_HIGH) - result * kind(_LOW))
    places = np.arange(_STEPS).astype(kind)
    with np.errstate(all="ignore"):
        ends = function(low + places * step) * inverse
        following = function(low + (places + kind(1)) * step) * inverse
        # LUTPopulate moves every entry by half of the error that the straight line makes in its
        # middle: the error is then alike at the ends and between them.
        middle = _round(function(low + places * step + step / kind(2)) * inverse)
        between = _round((following + _round(ends)) / kind(2))
        last = _round(function(np.array([high], kind)) * inverse)
        codes = np.append(_round(ends) - _round((between - middle) / kind(2)), last)
    finite = np.nan_to_num(codes, nan=_LOW, posinf=_HIGH, neginf=_LOW)
    return np.asarray(np.clip(finite, _LOW, _HIGH), np.int64)


def _round(values: Real) -> Real:
    return np.asarray(round_to_integer(values, Rounding.HALF_AWAY_FROM_ZERO), values.dtype)


def interpolate(table: npt.NDArray[np.int64], codes: Integers) -> Integers:
    """Return the results of codes of 16 bits by a table of `table_of`."""
    place, rest = (codes >> 7) + _STEPS // 2, codes & 127
    # int16 as in the kernel: a difference of more than 15 bits wraps there, too.
    slope = (table[place + 1] - table[place]).astype(np.int16).astype(np.int64)
    return np.asarray(table[place] + ((slope * rest + 64) >> 7))


def curve(kind: Unary, steps: Integers, data: Encoding) -> Integers | None:
    """Return the logistic or the hyperbolic tangent in steps of 2**-15; None for other functions.

    Both are found in one table of the logistic at multiples of 1/24.
    """
    if kind not in (functions.sigmoid, functions.tanh):
        return None
    places = np.arange(256) / 24
    table = np.floor(65536 / (1 + np.exp(-places)) + 0.5).astype(np.int64)
    table[list(_RAISED)] += 1
    multiplier, shift = _argument(float(data.scale))
    argument = (steps * multiplier + ((1 << shift) >> 1)) >> shift
    # tanh(x) is 2 logistic(2x) - 1: half as many bits between entries reads the table at twice the
    # argument.
    bits = 9 if kind is functions.sigmoid else 8
    magnitude = np.abs(argument)
    place = np.minimum(magnitude >> bits, 254)
    line = (table[place] << bits) + (magnitude & ((1 << bits) - 1)) * (
        table[place + 1] - table[place]
    )
    beyond = magnitude >> bits >= 255
    if kind is functions.sigmoid:
        result = np.where(beyond, 0x7FFF << 10, line)
        return np.where(argument >= 0, result + 512, (1 << 25) - result + 511) >> 10
    result = np.where(beyond, 0xFFFF << 8, line)
    half, nudge = 1 << 23, 128
    return np.where(argument >= 0, result - half + nudge, half - result + nudge - 1) >> 8


def _argument(scale: float) -> tuple[int, int]:
    """Return multiplier and shift from codes to steps of the table's argument."""
    fraction, exponent = np.frexp(scale)
    left = 12 + int(exponent) - 1
    # A scale of 2**-12 or 2**-11 needs no multiplication but by 3: the kernel was written for
    # these.
    if fraction == 0.5 and left in (0, 1):
        return 3 << left, 0
    multiplier, shift = scale * _UNITS, 0
    while multiplier <= _HIGH / 2 and shift <= 30:
        multiplier, shift = multiplier * 2, shift + 1
    return int(np.int64(multiplier).astype(np.int16)), shift


class InterpolatedSoftmax:
    """Softmax of rows of 16-bit codes, in steps of 2**-15.

    Args:
        data: The encoding of the codes.
    """

    def __init__(self, data: Encoding) -> None:
        scales = _FARTHEST / _RANGE, 2.0 / _RANGE
        self._exponentials = table_of(np.exp, scales, _HIGH, np.float64)
        scales = 1.0 / _RANGE, 2.0 / _RANGE
        self._reciprocals = table_of(lambda x: 1 / (1 + x), scales, _LOW, np.float64)
        ratio = np.float64(data.scale) / (_FARTHEST / 65535.0)
        self._multiplier = quantize_multiplier(ratio)

    def __call__(self, codes: npt.NDArray[np.integer]) -> Integers:
        """Return the codes of the shares, ``[rows, length]``."""
        wide = codes.astype(np.int64)
        below = wide - wide.max(axis=1, keepdims=True)
        scaled = multiply_by_quantized_multiplier(below, *self._multiplier)
        found = interpolate(self._exponentials, np.clip(scaled + _HIGH, _LOW, _HIGH))
        sums = found.sum(axis=1, keepdims=True)
        zeros = 32 - np.frexp(sums.astype(np.float64))[1].astype(np.int64)
        # The sum is brought to 1..2 by its leading zeros, in 16 bits behind the point; the table of
        # reciprocals is that of 1 + x.
        shifted = ((sums << (zeros - 1)) + (1 << 13)) >> 14
        centred = np.clip(shifted - ((1 << 15) + (1 << 16)), _LOW, _HIGH)
        reciprocals = interpolate(self._reciprocals, centred)
        right = 31 - zeros
        shares = (found * reciprocals + (np.int64(1) << (right - 1))) >> right
        return np.asarray(np.clip(shares, 0, _HIGH))


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
