"""Activations: functions of one operand, element by element or along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from intact.errors import Unsupported
from intact.graph import input_value
from intact.improve.learn.operators.rules import Apply, computes, number, operator, opset, text

_FLAT_SOFTMAX = 13
"""Below this opset Softmax and its like take the axes from ``axis`` on as one."""
_SPLIT_POINT = 40.0
"""Above, softplus is the identity, also in float64."""


computes("HardSwish")(F.hardswish)
computes("Mish")(F.mish)
computes("Relu")(torch.relu)
computes("Softsign")(F.softsign)


@operator("Clip")
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


@operator("LeakyRelu")
def leaky_relu(node: ir.Node) -> Apply:
    """Multiply what is negative."""
    slope = node.attributes.get_float("alpha", 0.01)
    return lambda x: F.leaky_relu(x, slope)


@computes("PRelu")
def parametric_relu(x: Tensor, slope: Tensor) -> Tensor:
    """Multiply what is negative by slopes that are broadcast."""
    return torch.where(x < 0, slope * x, x)


@operator("ThresholdedRelu")
def thresholded_relu(node: ir.Node) -> Apply:
    """Keep what is above a threshold; the rest is 0."""
    alpha = node.attributes.get_float("alpha", 1.0)
    return lambda x: torch.where(x > alpha, x, 0.0)


@operator("Elu")
def elu(node: ir.Node) -> Apply:
    """``alpha * (exp(x) - 1)`` where negative."""
    alpha = node.attributes.get_float("alpha", 1.0)
    return lambda x: F.elu(x, alpha)


@operator("Selu")
def selu(node: ir.Node) -> Apply:
    """``gamma`` times an Elu."""
    alpha = node.attributes.get_float("alpha", 1.67326319217681884765625)
    gamma = node.attributes.get_float("gamma", 1.05070102214813232421875)
    return lambda x: gamma * F.elu(x, alpha)


@operator("Celu")
def celu(node: ir.Node) -> Apply:
    """``alpha * (exp(x / alpha) - 1)`` where negative."""
    alpha = node.attributes.get_float("alpha", 1.0)
    return lambda x: F.celu(x, alpha)


@operator("HardSigmoid")
def hard_sigmoid(node: ir.Node) -> Apply:
    """A line from 0 to 1."""
    alpha = node.attributes.get_float("alpha", 0.2)
    beta = node.attributes.get_float("beta", 0.5)
    return lambda x: torch.clamp(alpha * x + beta, 0, 1)


@operator("Swish")
def swish(node: ir.Node) -> Apply:
    """``x * sigmoid(alpha * x)``."""
    alpha = node.attributes.get_float("alpha", 1.0)
    return lambda x: x * torch.sigmoid(alpha * x)


@computes("Softplus")
def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))``."""
    return F.softplus(x, threshold=_SPLIT_POINT)


@operator("Gelu")
def gelu(node: ir.Node) -> Apply:
    """``x`` times the normal distribution's function, or the approximation of it by tanh."""
    how = text(node, "approximate", "none")
    return lambda x: F.gelu(x, approximate=how)


@operator("Shrink")
def shrink(node: ir.Node) -> Apply:
    """Zero between the bounds; outside moved toward zero."""
    bound = node.attributes.get_float("lambd", 0.5)
    bias = node.attributes.get_float("bias", 0.0)

    def apply(x: Tensor) -> Tensor:
        inner = torch.where(x > bound, x - bias, torch.zeros_like(x))
        return torch.where(x < -bound, x + bias, inner)

    return apply


def _along(node: ir.Node, function: Callable[[Tensor, int], Tensor]) -> Apply:
    """Apply a function along ``axis``, or to all axes from it on in older opsets."""
    if opset(node) >= _FLAT_SOFTMAX:
        last = node.attributes.get_int("axis", -1)
        return lambda x: function(x, last)
    first = node.attributes.get_int("axis", 1)

    def flat(x: Tensor) -> Tensor:
        axis = first % x.ndim
        inner = math.prod(x.shape[axis:])
        matrix = x.reshape(math.prod(x.shape[:axis]), inner)
        return function(matrix, 1).reshape(x.shape)

    return flat


@operator("Softmax")
def softmax(node: ir.Node) -> Apply:
    """Exponentials divided by their sum."""
    return _along(node, torch.softmax)


@operator("LogSoftmax")
def log_softmax(node: ir.Node) -> Apply:
    """Logarithm of Softmax."""
    return _along(node, torch.log_softmax)


@operator("Hardmax")
def hardmax(node: ir.Node) -> Apply:
    """1 at the first of the largest elements, 0 elsewhere."""

    def one_hot(x: Tensor, axis: int) -> Tensor:
        places = x.argmax(axis, keepdim=True)
        return torch.zeros_like(x).scatter(axis, places, 1.0)

    return _along(node, one_hot)


@operator("Dropout")
def dropout(node: ir.Node) -> Apply:
    """Drop nothing, as at inference."""
    training = input_value(node, 2)
    if training is not None and number(node, 2) != 0:
        raise Unsupported("it drops elements at random", "export the model for inference")
    if len(node.outputs) == 1:
        return lambda x, *_: x
    return lambda x, *_: (x, torch.ones_like(x, dtype=torch.bool))
