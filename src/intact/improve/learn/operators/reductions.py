"""Computes reductions, sums along an axis, and places of extremes in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import onnx_ir as ir
import torch
from torch import Tensor

from intact.improve.learn.operators.rules import (
    Apply,
    Integers,
    integers,
    nonnegative,
    operator,
)
from intact.ops.operators import ArgMax, CumSum, Reduce, TopK

_Reduce: TypeAlias = Callable[[Tensor, Integers, bool], Tensor]
"""Reduces the axes, which are kept with length 1 or not; there is at least one."""


def _sum(x: Tensor, axes: Integers, keep: bool) -> Tensor:
    return x.sum(axes, keepdim=keep, dtype=x.dtype)


def _mean(x: Tensor, axes: Integers, keep: bool) -> Tensor:
    if x.is_floating_point():
        return x.mean(axes, keepdim=keep)
    # torch has no mean of integers; ONNX Runtime cuts theirs off towards 0.
    count = x.numel() // max(_sum(x, axes, keep).numel(), 1)
    return torch.div(_sum(x, axes, keep), count, rounding_mode="trunc")


def _product(x: Tensor, axes: Integers, keep: bool) -> Tensor:
    # torch multiplies along one axis at a time: the last first, so that the others keep their
    # numbers.
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep, dtype=x.dtype)
    return x


def _norm(x: Tensor, axes: Integers, keep: bool) -> Tensor:
    if x.is_floating_point():
        return torch.linalg.vector_norm(x, 2, axes, keepdim=keep)
    return torch.linalg.vector_norm(x.double(), 2, axes, keepdim=keep).to(x.dtype)


def _log_sum_exp(x: Tensor, axes: Integers, keep: bool) -> Tensor:
    return torch.logsumexp(x, axes, keep)


_REDUCTIONS: Mapping[str, _Reduce] = MappingProxyType(
    {
        "ReduceL1": lambda x, axes, keep: _sum(x.abs(), axes, keep),
        "ReduceL2": _norm,
        "ReduceLogSum": lambda x, axes, keep: torch.log(_sum(x, axes, keep)),
        "ReduceLogSumExp": _log_sum_exp,
        "ReduceMax": lambda x, axes, keep: x.amax(axes, keep),
        "ReduceMean": _mean,
        "ReduceMin": lambda x, axes, keep: x.amin(axes, keep),
        "ReduceProd": _product,
        "ReduceSum": _sum,
        "ReduceSumSquare": lambda x, axes, keep: _sum(x * x, axes, keep),
    }
)


@operator(*_REDUCTIONS)
def reduction(node: ir.Node) -> Apply:
    """Reduce listed axes; without a list all of them, or none."""
    function = _REDUCTIONS[node.op_type]
    options = Reduce.of(node)
    keep, none_is_none = bool(options.keepdims), bool(options.noop_with_empty_axes)
    listed = integers(node, 1, "axes")

    def apply(x: Tensor, axes: Tensor | None = None) -> Tensor:
        chosen = tuple(nonnegative(axis, x.ndim) for axis in listed(axes) or ())
        if not chosen and none_is_none:
            return x
        chosen = chosen or tuple(range(x.ndim))
        if not chosen:  # a scalar
            return function(x.reshape(1), (0,), False)
        return function(x, chosen, keep)

    return apply


@operator("ArgMax", "ArgMin")
def place(node: ir.Node) -> Apply:
    """Find the place of the largest or smallest element: the first, or the last if asked for."""
    find = torch.argmax if node.op_type == "ArgMax" else torch.argmin
    options = ArgMax.of(node)
    axis, keep, is_last = options.axis, bool(options.keepdims), bool(options.select_last_index)

    def apply(x: Tensor) -> Tensor:
        if is_last:
            return x.shape[axis] - 1 - find(x.flip(axis), axis, keep)
        return find(x, axis, keep)

    return apply


@operator("CumSum", "CumProd")
def accumulation(node: ir.Node) -> Apply:
    """Accumulate along an axis, forwards or backwards, with or without the element itself."""
    function, first = (torch.cumsum, 0) if node.op_type == "CumSum" else (torch.cumprod, 1)
    options = CumSum.of(node)
    is_exclusive, is_reverse = bool(options.exclusive), bool(options.reverse)
    listed = integers(node, 1)

    def apply(x: Tensor, along: Tensor | None = None) -> Tensor:
        axis = (listed(along) or (0,))[0]
        x = x.flip(axis) if is_reverse else x
        if is_exclusive and x.shape[axis]:
            start = torch.full_like(x.narrow(axis, 0, 1), first)
            x = torch.cat([start, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
        result = function(x, axis, dtype=x.dtype)
        return result.flip(axis) if is_reverse else result

    return apply


@operator("TopK")
def largest(node: ir.Node) -> Apply:
    """Find the K largest or smallest elements along an axis and their places, in order.

    Of equal elements the first come first, which ``torch.topk`` does not promise.
    """
    options = TopK.of(node)
    axis, descending = options.axis, bool(options.largest)
    listed = integers(node, 1)

    def apply(x: Tensor, count: Tensor | None = None) -> tuple[Tensor, ...]:
        (k,) = listed(count) or (1,)
        found, places = torch.sort(x, dim=axis, descending=descending, stable=True)
        return found.narrow(axis, 0, k), places.narrow(axis, 0, k)

    return apply
