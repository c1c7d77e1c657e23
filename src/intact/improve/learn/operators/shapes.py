"""Operators that read shapes, and those that make tensors of a shape."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch
from torch import Tensor

from intact.improve.learn.operators.elementwise import dtype_of
from intact.improve.learn.operators.rules import Apply, computes, integers, operator
from intact.ops.operators import EyeLike, Shape


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
def filled(node: ir.Node) -> Apply:
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
def counted(start: Tensor, limit: Tensor, step: Tensor) -> Tensor:
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
