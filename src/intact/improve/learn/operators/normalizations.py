"""Computes reductions and normalizations in torch, by stored or computed statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from intact.errors import Unsupported
from intact.improve.learn.operators.rules import (
    Apply,
    Integers,
    integers,
    nonnegative,
    operator,
    outputs,
)
from intact.ops import operators
from intact.ops.operators import ArgMax, CumSum, Reduce, TopK


def _epsilon(node: ir.Node) -> float:
    return operators.Stabilized.of(node).epsilon


@operator("BatchNormalization")
def batch_norm(node: ir.Node) -> Apply:
    """Normalize channels by stored means and variances."""
    if operators.BatchNormalization.of(node).training_mode:
        raise Unsupported("it takes means of the batch", "export the model for inference")
    epsilon = _epsilon(node)

    def apply(x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        # torch's own has no gradient to stored statistics.
        if not (mean.requires_grad or variance.requires_grad):
            return F.batch_norm(x, mean, variance, scale, shift, False, 0.0, epsilon)
        shape = (-1, *(1,) * (x.ndim - 2))
        factor = scale * torch.rsqrt(variance + epsilon)
        return x * factor.reshape(shape) + (shift - mean * factor).reshape(shape)

    return apply


@operator("InstanceNormalization")
def instance_norm(node: ir.Node) -> Apply:
    """Normalize each channel of each sample."""
    epsilon = _epsilon(node)
    # Not torch's own, which refuses instances of one element.
    return lambda x, scale, shift: torch.group_norm(x, x.shape[1], scale, shift, epsilon)


@operator("GroupNormalization")
def group_norm(node: ir.Node) -> Apply:
    """Normalize groups of channels; before opset 21 each group has one scale, then each channel."""
    groups, epsilon = node.attributes["num_groups"].as_int(), _epsilon(node)

    def apply(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        if scale.shape[0] != x.shape[1]:
            each = x.shape[1] // groups
            scale, shift = scale.repeat_interleave(each), shift.repeat_interleave(each)
        return torch.group_norm(x, groups, scale, shift, epsilon)

    return apply


@operator("LayerNormalization")
def layer_norm(node: ir.Node) -> Apply:
    """Normalize over the axes from one on; outputs 1 and 2 are mean and 1 / deviation."""
    first, epsilon = operators.LayerNormalization.of(node).axis, _epsilon(node)

    def apply(
        x: Tensor, scale: Tensor | None = None, shift: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        axes = tuple(range(nonnegative(first, x.ndim), x.ndim))
        result = _scaled_layer_norm(x, tuple(x.shape[axes[0] :]), scale, shift, epsilon)
        if len(node.outputs) == 1:
            return result
        mean, variance = _moments(x, axes)
        return outputs(node, (result, mean, torch.rsqrt(variance + epsilon)))

    return apply


def _moments(x: Tensor, axes: Integers) -> tuple[Tensor, Tensor]:
    """Return mean and variance, with axes of length 1; torch's own function warns of no rows."""
    mean = x.mean(axes, keepdim=True)
    return mean, (x - mean).square().mean(axes, keepdim=True)


def _scaled_layer_norm(
    x: Tensor, shape: Integers, scale: Tensor | None, shift: Tensor | None, epsilon: float
) -> Tensor:
    given = [each for each in (scale, shift) if each is not None]
    # ONNX broadcasts scale and bias; torch takes whole ones only.
    if all(tuple(each.shape) == shape for each in given):
        return F.layer_norm(x, shape, scale, shift, epsilon)
    result = F.layer_norm(x, shape, None, None, epsilon)
    result = result if scale is None else result * scale
    return result if shift is None else result + shift


@operator("RMSNormalization")
def rms_norm(node: ir.Node) -> Apply:
    """Divide by the root of the mean square over the axes from one on."""
    first, epsilon = operators.LayerNormalization.of(node).axis, _epsilon(node)

    def apply(x: Tensor, scale: Tensor) -> Tensor:
        shape = tuple(x.shape[nonnegative(first, x.ndim) :])
        return F.rms_norm(x, shape, None, epsilon) * scale

    return apply


@operator("LpNormalization")
def lp_norm(node: ir.Node) -> Apply:
    """Divide by the p-norm along an axis; zeros stay zero."""
    options = operators.LpNormalization.of(node)
    axis, order = options.axis, options.p

    def apply(x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, order, axis, keepdim=True)
        return x / torch.where(norm == 0, torch.ones_like(norm), norm)

    return apply


@operator("LRN")
def local_response_norm(node: ir.Node) -> Apply:
    """Divide by a power of the mean square of the channels around."""
    options = operators.LRN.of(node)
    alpha, beta, bias, size = options.alpha, options.beta, options.bias, options.size

    def apply(x: Tensor) -> Tensor:
        # An even window reaches one further behind, as ONNX says; torch's own reaches further in
        # front.
        squares = F.pad((x * x).flatten(2), (0, 0, (size - 1) // 2, size // 2))
        sums = squares.unfold(1, size, 1).sum(-1).reshape(x.shape)
        return x / (bias + alpha / size * sums) ** beta

    return apply


@operator("MeanVarianceNormalization")
def mean_variance_norm(node: ir.Node) -> Apply:
    """Subtract the mean over axes and divide by the deviation."""
    axes = operators.MeanVarianceNormalization.of(node).axes

    def apply(x: Tensor) -> Tensor:
        mean, variance = _moments(x, axes)
        return (x - mean) / (torch.sqrt(variance) + 1e-9)

    return apply


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
