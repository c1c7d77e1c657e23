"""Functions of one tensor as `intact.ops.functions` declares them: torch's own where it has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import cast

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from intact.graph.ops import function_options
from intact.improve.learn.operators.rules import Apply, operator
from intact.ops import functions
from intact.ops.functions import FUNCTIONS, Unary

_SPLIT_POINT = 40.0
"""Above, softplus is the identity, also in float64."""


def _shrink(x: Tensor, lambd: float, bias: float) -> Tensor:
    inner = torch.where(x > lambd, x - bias, torch.zeros_like(x))
    return torch.where(x < -lambd, x + bias, inner)


_WRITTEN_HERE: Mapping[Unary, Callable[..., Tensor]] = MappingProxyType(
    {
        functions.gelu: lambda x, approximate: F.gelu(x, approximate=approximate),
        functions.hard_sigmoid: lambda x, alpha, beta: torch.clamp(alpha * x + beta, 0, 1),
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
    written = _WRITTEN_HERE.get(declared)
    if written is not None:
        return written
    name = declared.name.lower()
    found = getattr(torch, name, None) or getattr(F, name)
    return cast(Callable[..., Tensor], found)


def _rule(node: ir.Node) -> Apply:
    function, options = function_of(FUNCTIONS[node.op_type]), function_options(node)
    return (lambda x: function(x, *options)) if options else function


operator(*(name for name, each in FUNCTIONS.items() if each.is_operator))(_rule)
