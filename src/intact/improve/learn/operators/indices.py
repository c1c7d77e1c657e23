"""Computes operators that take or put elements by indices in torch."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch
from torch import Tensor

from intact.errors import Unsupported
from intact.improve.learn.operators.elementwise import dtype_of
from intact.improve.learn.operators.rules import (
    Apply,
    computes,
    integers,
    nonnegative,
    operator,
)
from intact.ops import operators
from intact.ops.operators import EyeLike, Shape

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
"""Names of torch for what becomes of several elements in one place."""


def _positive(indices: Tensor, size: int) -> Tensor:
    """Count indices from the front, as int64."""
    indices = indices.long()
    # torch refuses negative indices, which ONNX counts from the end.
    return torch.where(indices < 0, indices + size, indices)


@operator("Gather")
def gather(node: ir.Node) -> Apply:
    """Take slices along an axis; the axes of the indices stand in its place."""
    along = operators.Gather.of(node).axis

    def apply(x: Tensor, indices: Tensor) -> Tensor:
        axis = nonnegative(along, x.ndim)
        places = _positive(indices, x.shape[axis])
        taken = x.index_select(axis, places.reshape(-1))
        return taken.reshape((*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]))

    return apply


@operator("GatherElements")
def gather_elements(node: ir.Node) -> Apply:
    """Take elements by their places along an axis."""
    axis = operators.GatherElements.of(node).axis
    return lambda x, indices: x.gather(axis, _positive(indices, x.shape[axis]))


@operator("GatherND")
def gather_nd(node: ir.Node) -> Apply:
    """Take slices by places ``[..., K]`` on several axes, behind axes that both have."""
    batch = operators.GatherND.of(node).batch_dims

    def apply(x: Tensor, indices: Tensor) -> Tensor:
        rank = indices.ndim - 1
        own = [
            torch.arange(x.shape[k], device=x.device).reshape(-1, *(1,) * (rank - k - 1))
            for k in range(batch)
        ]
        return x[(*own, *indices.long().unbind(-1))]

    return apply


def _put(flat: Tensor, axis: int, places: Tensor, updates: Tensor, how: str) -> Tensor:
    """Put elements along an axis of a copy, or join them with those that are there."""
    updates = updates.to(flat.dtype)
    if how == "none":
        return flat.scatter(axis, places, updates)
    return flat.scatter_reduce(axis, places, updates, _REDUCTIONS[how])


def _reduction(node: ir.Node) -> str:
    how = operators.ScatterND.of(node).reduction
    if how != "none" and how not in _REDUCTIONS:
        raise Unsupported(f"training does not scatter with the reduction {how!r}")
    return how


@operator("ScatterElements", "Scatter")
def scatter_elements(node: ir.Node) -> Apply:
    """Put elements to places along an axis."""
    axis, how = operators.ScatterElements.of(node).axis, _reduction(node)

    def apply(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        return _put(x, axis, _positive(indices, x.shape[axis]), updates, how)

    return apply


@operator("ScatterND")
def scatter_nd(node: ir.Node) -> Apply:
    """Put slices to places ``[..., K]`` on the first K axes."""
    how = _reduction(node)

    def apply(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        k = indices.shape[-1]
        place = torch.zeros(indices.shape[:-1], dtype=torch.long, device=x.device)
        for size, each in zip(x.shape[:k], indices.unbind(-1), strict=True):
            place = place * size + _positive(each, size)
        width = math.prod(x.shape[k:])
        places = place.reshape(-1, 1).expand(-1, width)
        # torch scatters along one axis: the first K become one, and places are counted through
        # them.
        rows = x.reshape(math.prod(x.shape[:k]), width)
        return _put(rows, 0, places, updates.reshape(places.shape), how).reshape(x.shape)

    return apply


@operator("OneHot")
def one_hot(node: ir.Node) -> Apply:
    """Put one value at the indices and another elsewhere, along a new axis."""
    along, listed = operators.OneHot.of(node).axis, integers(node, 1)

    def apply(indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
        (size,) = listed(depth) or (0,)
        axis = nonnegative(along, indices.ndim + 1)
        each = torch.arange(size, device=indices.device)
        each = each.reshape(-1, *(1,) * (indices.ndim - axis))
        hit = _positive(indices, size).unsqueeze(axis) == each
        return torch.where(hit, values[1], values[0])

    return apply


@computes("NonZero")
def nonzero(x: Tensor) -> Tensor:
    """List the places of all that is not zero: ``[rank, count]``."""
    return torch.nonzero(x).T


@operator("Compress")
def compress(node: ir.Node) -> Apply:
    """Keep the slices, or elements, that a condition picks."""
    axis = operators.Compress.of(node).axis

    def apply(x: Tensor, condition: Tensor) -> Tensor:
        places = torch.nonzero(condition).reshape(-1)
        return x.reshape(-1)[places] if axis is None else x.index_select(axis, places)

    return apply


@operator("ReverseSequence")
def reverse_sequence(node: ir.Node) -> Apply:
    """Turn the first elements of each sequence around."""
    options = operators.ReverseSequence.of(node)
    time, batch = options.time_axis, options.batch_axis

    def apply(x: Tensor, lengths: Tensor) -> Tensor:
        return reversed_sequences(x, lengths, time, batch)

    return apply


def reversed_sequences(x: Tensor, lengths: Tensor, time: int = 0, batch: int = 1) -> Tensor:
    """Turn the first elements along one axis around, by lengths along another."""
    shape, own = [1] * x.ndim, [1] * x.ndim
    shape[time], own[batch] = -1, -1
    steps = torch.arange(x.shape[time], device=x.device).reshape(shape)
    ends = lengths.long().reshape(own)
    places = torch.where(steps < ends, ends - 1 - steps, steps)
    return x.gather(time, places.expand(x.shape))


@operator("Shape")
def shape_of(node: ir.Node) -> Apply:
    """List the lengths of axes, as int64."""
    options = Shape.of(node)
    start, end = options.start, options.end
    return lambda x: torch.tensor(x.shape[start:end], dtype=torch.int64, device=x.device)


@computes("Size")
def size_of(x: Tensor) -> Tensor:
    """Count elements, as int64."""
    return torch.tensor(x.numel(), dtype=torch.int64, device=x.device)


@operator("ConstantOfShape")
def fill(node: ir.Node) -> Apply:
    """Make a tensor of one number."""
    listed = integers(node, 0)
    value, kind = 0.0, ir.DataType.FLOAT
    if "value" in node.attributes:
        tensor = node.attributes["value"].as_tensor()
        value, kind = tensor.numpy().reshape(()).item(), tensor.dtype
    dtype = dtype_of(kind)

    def apply(shape: Tensor) -> Tensor:
        return torch.full(listed(shape) or (), value, dtype=dtype(), device=shape.device)

    return apply


@computes("Range")
def count_from(start: Tensor, limit: Tensor, step: Tensor) -> Tensor:
    """Count from a start, by steps, to before a limit."""
    first, last, each = (given.reshape(()).item() for given in (start, limit, step))
    count = max(math.ceil((last - first) / each), 0)
    return start + step * torch.arange(count, dtype=start.dtype, device=start.device)


@operator("EyeLike")
def unit_matrix(node: ir.Node) -> Apply:
    """Make a matrix with ones on a diagonal."""
    options = EyeLike.of(node)
    diagonal, kind = options.k, options.dtype
    dtype = None if kind is None else dtype_of(ir.DataType(kind))

    def apply(x: Tensor) -> Tensor:
        rows, columns = (torch.arange(size, device=x.device) for size in x.shape)
        hit = columns == rows.reshape(-1, 1) + diagonal
        return hit.to(x.dtype if dtype is None else dtype())

    return apply
