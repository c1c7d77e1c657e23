"""Tells the shapes, encodings and layouts of single tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from intact.errors import PlanError
from intact.numerics.affine import dequantize, quantize
from intact.plan import QuantPoint
from intact.program.program import Encoding, Shape, Tensor


def shape_of(value: ir.Value) -> Shape:
    """Return the shape of a value, None for each length that the model leaves open.

    A value of unknown rank has the shape ``()``; see `has_rank`.
    """
    if value.shape is None:
        return ()
    return tuple(dim if isinstance(dim, int) else None for dim in value.shape)


def plain_type(value: ir.Value) -> np.dtype[Any]:
    """Return the type of a value's arrays; float32 where it is not known or NumPy has none."""
    try:
        return np.dtype(np.float32 if value.dtype is None else value.dtype.numpy())
    except TypeError:
        return np.dtype(np.float32)


def broadcast(first: Shape, second: Shape) -> Shape:
    """Return the shape of two that broadcast; an open length meets 1 or itself."""
    rank = max(len(first), len(second))
    one, two = ((1,) * (rank - len(shape)) + tuple(shape) for shape in (first, second))
    return tuple(
        b if a == 1 else a if b == 1 or a is not None else b for a, b in zip(one, two, strict=True)
    )


def has_rank(value: ir.Value) -> bool:
    """Whether the number of axes of a value is known."""
    return value.shape is not None


def encoding_of(point: QuantPoint) -> Encoding:
    """Return the encoding of a quantization point.

    Raises:
        PlanError: The point has no scale, or logarithmic levels.
    """
    config = point.config
    params = config.params
    if params is None:
        raise PlanError(f"{point.end} has no scale", remedy="calibrate the plan first")
    if config.grid.exponential:
        raise PlanError(
            f"{point.end} has logarithmic levels, for which there is no integer arithmetic",
            remedy="use --simulate, or a target with linear levels",
        )
    return Encoding(
        np.asarray(params.scale, np.float32),
        params.zero_point,
        *config.grid.widest,
        config.granularity.axis,
        config.rounding,
        config.grid.block,
        config.grid.channel_codes,
    )


def code_of(value: float, encoding: Encoding | None) -> int | float:
    """Return the code next to a number, which saturates; the number itself among floats."""
    if encoding is None:
        return value
    code = quantize(
        np.asarray(value, np.float32),
        encoding.scale.item(),
        encoding.zero_point.item(),
        encoding.quant_min,
        encoding.quant_max,
        rounding=encoding.rounding,
    )
    return int(code)


def has_blocks(tensor: Tensor | None) -> bool:
    """Tell whether a tensor is codes with scales in blocks."""
    return tensor is not None and tensor.encoding is not None and tensor.encoding.block is not None


def moved_last(rank: int) -> tuple[int, ...]:
    """Return the permutation that moves axis 1 to the end.

    >>> moved_last(4)
    (0, 2, 3, 1)
    """
    return (0, *range(2, rank), 1)


def permute(tensor: Tensor, permutation: tuple[int, ...]) -> Tensor:
    """Return a tensor with its axes, and its constant data, in another order."""
    # Permutations compose: this tensor may have been moved before.
    before = tensor.permutation or tuple(range(len(permutation)))
    after = tuple(before[axis] for axis in permutation)
    encoding = tensor.encoding
    if encoding is not None and encoding.axis is not None:
        encoding = replace(encoding, axis=permutation.index(encoding.axis))
        if encoding.block is not None:
            scale = encoding.scale.transpose(permutation)
            zero_point = encoding.zero_point.transpose(permutation)
            encoding = replace(encoding, scale=scale, zero_point=zero_point)
    return replace(
        tensor,
        shape=tuple(tensor.shape[axis] for axis in permutation),
        encoding=encoding,
        data=None if tensor.data is None else tensor.data.transpose(permutation),
        permutation=None if after == tuple(range(len(after))) else after,
    )


def reshape_constant(tensor: Tensor, shape: tuple[int, ...], axis: int | None = None) -> Tensor:
    """Return a constant in another shape; ``axis`` is where its scales lie then."""
    if tensor.data is None:
        raise PlanError(f"tensor {tensor.name!r} is no constant")
    encoding = tensor.encoding
    if encoding is not None and encoding.axis is not None:
        encoding = replace(encoding, axis=axis)
    data = tensor.data.reshape(shape)
    return replace(tensor, shape=data.shape, data=data, encoding=encoding, permutation=None)


def dequantize_constant(tensor: Tensor) -> Tensor:
    """Return a constant of codes as the floats that they stand for."""
    if tensor.data is None or tensor.encoding is None:
        raise PlanError(f"tensor {tensor.name!r} is no constant of integers")
    encoding = tensor.encoding
    parameters = encoding.scale, encoding.zero_point
    data = dequantize(tensor.data, *parameters, axis=encoding.axis, block=encoding.block)
    return replace(tensor, data=data, encoding=None)
