"""Functions of one operand in float32: what tables of 8-bit kernels are made from.

Exponentials and their like are correctly rounded (computed in float64 and rounded once), all else
is float32 in the order of LiteRT's kernels. With that ONNX Runtime 1.31, XNNPACK and the tables of
LiteRT 2.3 agree to the bit with every code that was tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from intact.program.operations import Unary

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
