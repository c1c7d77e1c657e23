"""Computes element-wise operators in torch: arithmetic, comparisons, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from types import MappingProxyType
from typing import TypeAlias

import onnx_ir as ir
import torch
from torch import Tensor

from intact.errors import Unsupported
from intact.improve.learn.operators.rules import Apply, computes, number, operator
from intact.ops.operators import (
    OPS,
    BitShift,
    Cast,
    CastLike,
    Det,
    Div,
    Equal,
    IsInf,
    Mean,
    Mod,
    Pow,
)

_Function: TypeAlias = Callable[..., Tensor]


def _quotient(x: Tensor, y: Tensor) -> Tensor:
    whole = not (x.is_floating_point() or y.is_floating_point())
    # Integers are divided as in C: torch would make floats of them.
    return torch.div(x, y, rounding_mode="trunc") if whole else torch.div(x, y)


def _fold_operands(function: Callable[[Tensor, Tensor], Tensor]) -> _Function:
    """Join any number of operands, one after the other."""
    return lambda *operands: reduce(function, operands)


def _cast_like(x: Tensor, other: Tensor) -> Tensor:
    return x.to(other.dtype)


def _mean(*operands: Tensor) -> Tensor:
    return reduce(torch.add, operands) / len(operands)


_FUNCTIONS: Mapping[str, _Function] = MappingProxyType(
    {
        **{
            name: _fold_operands(getattr(torch, spec.numpy))
            if spec.takes_any
            else getattr(torch, spec.numpy)
            for name, spec in OPS.items()
            if spec.numpy
        },
        CastLike.name: _cast_like,
        Det.name: torch.linalg.det,
        Div.name: _quotient,
        Equal.name: torch.eq,  # another function of torch's is called equal
        Mean.name: _mean,
    }
)
"""Operators without attributes: functions of the same operands."""


for _name, _function in _FUNCTIONS.items():
    computes(_name)(_function)


@operator(Mod)
def modulo(node: ir.Node) -> Apply:
    """Take the remainder with the sign of the divisor; as C does it if ``fmod`` says so."""
    function: Apply = torch.fmod if Mod.of(node).fmod else torch.remainder
    return function


@operator(Pow)
def power(node: ir.Node) -> Apply:
    """Raise to a power; the result has the type of the base."""
    known = number(node, 1)

    def apply(base: Tensor, exponent: Tensor) -> Tensor:
        if not base.is_floating_point():
            return torch.pow(base, exponent).to(base.dtype)
        # A power that is not learned is a number: torch squares by a multiplication then.
        fixed = known is not None and exponent.ndim <= base.ndim and not exponent.requires_grad
        return torch.pow(base, known if fixed else exponent)

    return apply


@operator(BitShift)
def shift(node: ir.Node) -> Apply:
    """Shift bits."""
    left = BitShift.of(node).direction == "LEFT"
    function: Apply = torch.bitwise_left_shift if left else torch.bitwise_right_shift
    return function


@operator(IsInf)
def is_infinite(node: ir.Node) -> Apply:
    """Find infinities of one sign or both."""
    options = IsInf.of(node)
    found = (-math.inf, options.detect_negative), (math.inf, options.detect_positive)
    signs = [sign for sign, is_wanted in found if is_wanted]

    def apply(x: Tensor) -> Tensor:
        none = torch.zeros_like(x, dtype=torch.bool)
        return reduce(torch.logical_or, (x == sign for sign in signs), none)

    return apply


DTYPES: Mapping[ir.DataType, torch.dtype] = MappingProxyType(
    {
        ir.DataType.BFLOAT16: torch.bfloat16,
        ir.DataType.BOOL: torch.bool,
        ir.DataType.DOUBLE: torch.float64,
        ir.DataType.FLOAT: torch.float32,
        ir.DataType.FLOAT16: torch.float16,
        ir.DataType.INT8: torch.int8,
        ir.DataType.INT16: torch.int16,
        ir.DataType.INT32: torch.int32,
        ir.DataType.INT64: torch.int64,
        ir.DataType.UINT8: torch.uint8,
        ir.DataType.UINT16: torch.uint16,
        ir.DataType.UINT32: torch.uint32,
        ir.DataType.UINT64: torch.uint64,
    }
)
"""The dtypes of torch by ONNX's element types."""


def dtype_of(kind: ir.DataType) -> Callable[[], torch.dtype]:
    """Return what gives the dtype of numbers of an ONNX type: for FLOAT torch's default.

    Raises:
        Unsupported: torch has no such dtype.
    """
    if kind not in DTYPES:
        raise Unsupported(f"torch has no numbers of the type {kind.name}")
    dtype = DTYPES[kind]
    return torch.get_default_dtype if kind is ir.DataType.FLOAT else lambda: dtype


@operator(Cast)
def cast(node: ir.Node) -> Apply:
    """Convert to a type; FLOAT stays the dtype in which the graph is computed."""
    kind = ir.DataType(Cast.of(node).to)
    dtype, source = dtype_of(kind), node.inputs[0]
    # The module may compute in float64, where a Cast to FLOAT must not narrow.
    if kind is ir.DataType.FLOAT and source is not None and source.dtype is kind:
        return lambda x: x
    return lambda x: x.to(dtype())
