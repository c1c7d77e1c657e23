"""Computes functions of 16-bit codes by tables and interpolation, as TFLite does.

Sources: LiteRT's ``kernels/internal/common.h`` (``LUTPopulate``, ``LUTLookup``),
``reference/integer_ops/logistic.h``, ``tanh.h`` and ``reference/softmax.h``; every code of some
scales was compared with LiteRT 2.3.0.
"""

from __future__ import annotations

from collections.abc import Callable

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
from intact.program.program import Encoding

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
