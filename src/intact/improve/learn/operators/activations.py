"""Computes functions of one operand in torch, element by element or along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import cast

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from intact.errors import Unsupported
from intact.graph import input_value
from intact.graph.ops import function_options
from intact.improve.learn.operators.rules import Apply, computes, number, operator, opset
from intact.ops import functions
from intact.ops.functions import FUNCTIONS, Unary
from intact.ops.operators import Clip, Dropout, Hardmax, LogSoftmax, PRelu, Relu, Softmax

_SPLIT_POINT = 40.0
"""Above, softplus is the identity, also in float64."""


def _shrink(x: Tensor, lambd: float, bias: float) -> Tensor:
    inner = torch.where(x > lambd, x - bias, torch.zeros_like(x))
    return torch.where(x < -lambd, x + bias, inner)


_WRITTEN_HERE: Mapping[Unary, Callable[..., Tensor]] = MappingProxyType(
    {
        functions.gelu: lambda x, approximate: F.gelu(x, approximate=approximate),
        functions.leaky_relu: F.leaky_relu,
        functions.selu: lambda x, alpha, gamma: gamma * F.elu(x, alpha),
        functions.shrink: _shrink,
        functions.softplus: lambda x: F.softplus(x, threshold=_SPLIT_POINT),
        functions.swish: lambda x, alpha: x * torch.sigmoid(alpha * x),
        functions.thresholded_relu: lambda x, alpha: torch.where(x > alpha, x, 0.0),
    }
)
"""Those that torch spells otherwise, or with other options."""


def function_of(declared: Unary) -> Callable[..., Tensor]:
    """Return what computes a declared function in torch: of the tensor, and the options in order.

    Raises:
        AttributeError: torch has none of the operator's name, and none is written here.
    """
    if declared.is_formula:
        return declared.body
    written = _WRITTEN_HERE.get(declared)
    if written is not None:
        return written
    name = declared.name.lower()
    # The name is the operator's own in most cases, so that a new function needs no line here.
    found = getattr(torch, name, None) or getattr(F, name)
    return cast(Callable[..., Tensor], found)


def _rule(node: ir.Node) -> Apply:
    function, options = function_of(FUNCTIONS[node.op_type]), function_options(node)
    return (lambda x: function(x, *options)) if options else function


operator(*(name for name, each in FUNCTIONS.items() if each.is_operator))(_rule)


_FLAT_SOFTMAX = 13
"""Below this opset Softmax and its like take the axes from ``axis`` on as one."""
computes(Relu)(torch.relu)


@operator(Clip)
def clip(node: ir.Node) -> Apply:
    """Clip to bounds, either of which may be absent."""
    fixed = [number(node, slot) for slot in (1, 2)]
    computed = [
        bound is None and input_value(node, slot) is not None
        for slot, bound in enumerate(fixed, start=1)
    ]
    if not any(computed):
        if fixed == [None, None]:
            return lambda x, *_: x
        return lambda x, *_: torch.clamp(x, *fixed)

    def apply(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
        return torch.clamp(x, low, high)

    return apply


@computes(PRelu)
def parametric_relu(x: Tensor, slope: Tensor) -> Tensor:
    """Multiply what is negative by slopes that are broadcast."""
    return torch.where(x < 0, slope * x, x)


def _along(node: ir.Node, function: Callable[[Tensor, int], Tensor]) -> Apply:
    """Apply a function along ``axis``, or to all axes from it on in older opsets."""
    if opset(node) >= _FLAT_SOFTMAX:
        last = Softmax.of(node).axis
        return lambda x: function(x, last)
    first = node.attributes.get_int("axis", 1)

    def flat(x: Tensor) -> Tensor:
        axis = first % x.ndim
        inner = math.prod(x.shape[axis:])
        matrix = x.reshape(math.prod(x.shape[:axis]), inner)
        return function(matrix, 1).reshape(x.shape)

    return flat


@operator(Softmax)
def softmax(node: ir.Node) -> Apply:
    """Divide exponentials by their sum."""
    return _along(node, torch.softmax)


@operator(LogSoftmax)
def log_softmax(node: ir.Node) -> Apply:
    """Compute the logarithm of Softmax."""
    return _along(node, torch.log_softmax)


@operator(Hardmax)
def hardmax(node: ir.Node) -> Apply:
    """Give 1 at the first of the largest elements, 0 elsewhere."""

    def one_hot(x: Tensor, axis: int) -> Tensor:
        places = x.argmax(axis, keepdim=True)
        return torch.zeros_like(x).scatter(axis, places, 1.0)

    return _along(node, one_hot)


@operator(Dropout)
def dropout(node: ir.Node) -> Apply:
    """Drop nothing, as at inference."""
    training = input_value(node, 2)
    if training is not None and number(node, 2) != 0:
        raise Unsupported("it drops elements at random", "export the model for inference")
    if len(node.outputs) == 1:
        return lambda x, *_: x
    return lambda x, *_: (x, torch.ones_like(x, dtype=torch.bool))
