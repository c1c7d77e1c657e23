"""Computes pools in torch: windows or whole spatial axes, reduced."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from intact.errors import Unsupported
from intact.improve.learn.operators.moves import add_padding
from intact.improve.learn.operators.rules import Apply, Integers, computes, integers, operator
from intact.ops.declaration import Window
from intact.ops.operators import (
    AveragePool,
    GlobalAveragePool,
    GlobalLpPool,
    GlobalMaxPool,
    LpPool,
    MaxPool,
    MaxUnpool,
)
from intact.program.operations import Pads

_MAX_POOLS = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVERAGE_POOLS = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
"""By the number of spatial axes, from one on."""


def views(x: Tensor, kernel: Integers, strides: Integers, dilations: Integers) -> Tensor:
    """Return all windows of data ``[N, C, *S]`` as a view ``[N, C, *places, *kernel]``."""
    for k, (width, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        x = x.unfold(2 + k, (width - 1) * dilation + 1, stride)[..., ::dilation]
    return x


def is_even(pads: Pads) -> bool:
    """Tell whether pads are as long behind as before, and take nothing away."""
    return all(before == behind and before >= 0 for before, behind in pads)


def _kernel(node: ir.Node) -> Integers:
    kernel = Window.of(node).kernel_shape
    if not 1 <= len(kernel) <= len(_MAX_POOLS):
        raise Unsupported(f"torch has no pool of {len(kernel)} spatial axes")
    return kernel


def _sizes(x: Tensor) -> Integers:
    return tuple(x.shape[2:])


def _lengthen(pads: Pads, added: Integers) -> Pads:
    return tuple(
        (before, behind + more) for (before, behind), more in zip(pads, added, strict=True)
    )


def _fits(pads: Pads, kernel: Integers) -> bool:
    """Tell whether torch's pools take pads as they are."""
    return is_even(pads) and all(2 * pad <= k for (pad, _), k in zip(pads, kernel, strict=True))


@operator(MaxPool)
def max_pool(node: ir.Node) -> Apply:
    """Find the largest element of each window, and its place in the whole tensor if asked for."""
    kernel, windows = _kernel(node), MaxPool.of(node)
    strides, dilations = windows.steps(len(kernel))
    with_places = len(node.outputs) > 1
    columns_first = bool(windows.storage_order)
    function = _MAX_POOLS[len(kernel) - 1]

    def apply(x: Tensor) -> Tensor | tuple[Tensor, ...]:
        pads = windows.padding(_sizes(x), kernel)
        pads = _lengthen(pads, windows.added(_sizes(x), kernel, pads))
        # torch pools floats only.
        if not x.is_floating_point():
            low = add_padding(x, pads, torch.iinfo(x.dtype).min)
            found = views(low, kernel, strides, dilations).flatten(-len(kernel)).amax(-1)
            return (found, torch.zeros_like(found)) if with_places else found
        padding = tuple(before for before, _ in pads)
        before = (0,) * len(kernel)
        # Pads of -inf never win; torch's own pads may be no longer than half the window.
        if not _fits(pads, kernel):
            x_sizes, x = _sizes(x), add_padding(x, pads, -math.inf)
            before, padding = padding, before
        else:
            x_sizes = _sizes(x)
        if not with_places:
            return function(x, kernel, strides, padding, dilations)
        found, flat = function(x, kernel, strides, padding, dilations, return_indices=True)
        return found, _places(flat, _sizes(x), before, x_sizes, columns_first=columns_first)

    return apply


def _places(
    flat: Tensor, sizes: Integers, before: Integers, own: Integers, *, columns_first: bool
) -> Tensor:
    """Return places in a whole tensor for places in padded planes of ``[N, C, *sizes]``."""
    parts: list[Tensor] = []
    for size in reversed(sizes):
        parts.insert(0, flat % size)
        flat = flat // size
    order = list(zip(parts, before, own, strict=True))
    place = torch.zeros_like(flat)
    for part, pad, size in reversed(order) if columns_first else order:
        place = place * size + part - pad
    planes = torch.arange(flat.shape[0] * flat.shape[1], device=flat.device)
    planes = planes.reshape(*flat.shape[:2], *(1,) * len(sizes))
    return place + planes * math.prod(own)


@operator(AveragePool)
def average_pool(node: ir.Node) -> Apply:
    """Take the mean of each window, with the model's pads or without any."""
    kernel, windows = _kernel(node), AveragePool.of(node)
    strides, dilations = windows.steps(len(kernel))
    counts_pads = bool(windows.count_include_pad)
    function = _AVERAGE_POOLS[len(kernel) - 1]
    axes = tuple(range(-len(kernel), 0))

    def apply(x: Tensor) -> Tensor:
        pads = windows.padding(_sizes(x), kernel)
        added = windows.added(_sizes(x), kernel, pads)
        if not any(added) and _fits(pads, kernel) and set(dilations) <= {1}:
            padding = tuple(before for before, _ in pads)
            return function(x, kernel, strides, padding, False, counts_pads)
        # How many elements a window holds is pooled like the elements, with the pads that count.
        ones = torch.ones((1, 1, *_sizes(x)), dtype=x.dtype, device=x.device)
        ones = add_padding(ones, pads, float(counts_pads))
        behind = tuple((0, more) for more in added)  # counted in no case
        sums, counts = (
            views(add_padding(each, behind), kernel, strides, dilations).sum(axes)
            for each in (add_padding(x, pads), ones)
        )
        return sums / counts

    return apply


@operator(LpPool)
def lp_pool(node: ir.Node) -> Apply:
    """Take the p-norm of each window."""
    kernel, windows = _kernel(node), LpPool.of(node)
    strides, dilations = windows.steps(len(kernel))
    order = windows.p
    axes = tuple(range(-len(kernel), 0))

    def apply(x: Tensor) -> Tensor:
        pads = windows.padding(_sizes(x), kernel)
        x = add_padding(x, _lengthen(pads, windows.added(_sizes(x), kernel, pads)))
        return torch.linalg.vector_norm(views(x, kernel, strides, dilations), order, axes)

    return apply


@computes(GlobalAveragePool)
def global_average_pool(x: Tensor) -> Tensor:
    """Take the mean over all spatial axes."""
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


@computes(GlobalMaxPool)
def global_max_pool(x: Tensor) -> Tensor:
    """Find the largest element of all spatial axes."""
    return x.amax(tuple(range(2, x.ndim)), keepdim=True)


@operator(GlobalLpPool)
def global_lp_pool(node: ir.Node) -> Apply:
    """Take the p-norm over all spatial axes."""
    order = GlobalLpPool.of(node).p

    def apply(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, order, tuple(range(2, x.ndim)), keepdim=True)

    return apply


@operator(MaxUnpool)
def max_unpool(node: ir.Node) -> Apply:
    """Put elements back to the places that MaxPool found; zero elsewhere."""
    kernel, windows = _kernel(node), Window.of(node)
    strides, _ = windows.steps(len(kernel))
    wanted = integers(node, 2)

    def apply(x: Tensor, places: Tensor, shape: Tensor | None = None) -> Tensor:
        pads = windows.padding(_sizes(x), kernel)
        lengths = [
            (size - 1) * stride + width - sum(pair)
            for size, stride, width, pair in zip(_sizes(x), strides, kernel, pads, strict=True)
        ]
        whole = wanted(shape) or (*x.shape[:2], *lengths)
        zeros = x.new_zeros(math.prod(whole))
        return zeros.scatter(0, places.reshape(-1), x.reshape(-1)).reshape(whole)

    return apply
