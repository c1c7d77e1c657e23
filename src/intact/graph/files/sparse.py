"""Writes sparse tensors out as dense ones: a few bytes can claim any number of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from intact.errors import ModelError
from intact.graph.files.limits import remedy, unpacked_limit

_MEND = "export the model with dense weights"

Reader = Callable[[onnx.TensorProto], npt.NDArray[Any]]
"""Reads a tensor, wherever its data are."""


def dense_initializers(
    proto: onnx.ModelProto, where: str, read: Reader, size: int
) -> onnx.ModelProto:
    """Convert sparse initializers to dense ones; returns the same object if there are none.

    Args:
        proto: The model; it is not changed.
        where: Name of the model for messages.
        read: Reads values and indices, which may be in external files.
        size: Bytes of the model's file, which bound what all of them together may become.

    Raises:
        ModelError: One is malformed, or they are too large.
    """
    if not any(graph.sparse_initializer for graph in _graphs(proto.graph)):
        return proto
    # A copy, because the message belongs to whoever called.
    dense = onnx.ModelProto()
    dense.CopyFrom(proto)
    _refuse_too_large(dense, where, unpacked_limit(size))
    for graph in _graphs(dense.graph):
        for sparse in graph.sparse_initializer:
            try:
                graph.initializer.append(_dense(sparse, read))
            except (ValueError, IndexError, TypeError) as error:
                raise ModelError(
                    f"{where}: sparse initializer {sparse.values.name!r} cannot be read: {error}",
                    remedy=_MEND,
                ) from error
        del graph.sparse_initializer[:]
    return dense


def _refuse_too_large(proto: onnx.ModelProto, where: str, allowed: int) -> None:
    """Check the bytes of all dense tensors together, before one is made."""
    tensors = [each for graph in _graphs(proto.graph) for each in graph.sparse_initializer]
    # All at once: each alone may be below a limit that together they exceed.
    needed = sum(map(_dense_bytes, tensors))
    if needed > allowed:
        largest = max(tensors, key=_dense_bytes).values.name
        raise ModelError(
            f"{where}: its sparse initializers have {needed} bytes when written out, the largest "
            f"is {largest!r}; {allowed} are allowed",
            remedy=remedy(needed, allowed, _MEND),
        )


def _dense_bytes(sparse: onnx.SparseTensorProto) -> int:
    """Return the bytes of a tensor when written out; 0 where its shape or type is none."""
    try:
        itemsize = int(onnx.helper.tensor_dtype_to_np_dtype(sparse.values.data_type).itemsize)
    except (KeyError, TypeError, ValueError):  # reported when it is read
        return 0
    sizes: list[int] = list(sparse.dims)
    return max(0, math.prod(sizes)) * itemsize


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and those in its nodes; protobuf limits the depth."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                if body.node or body.sparse_initializer:
                    yield from _graphs(body)


def _dense(sparse: onnx.SparseTensorProto, read: Reader) -> onnx.TensorProto:
    """Make a dense tensor: indices are flat positions, or one row of coordinates per value."""
    shape = tuple(sparse.dims)
    if min(shape, default=0) < 0:
        raise ValueError(f"its shape is {list(shape)}")
    values, indices = read(sparse.values), read(sparse.indices)
    size = math.prod(shape)
    if indices.ndim == 2:
        indices = np.ravel_multi_index(tuple(indices.T), shape)
    if indices.shape != values.shape or (indices < 0).any():
        raise ValueError("indices and values do not match")
    flat = np.zeros(size, values.dtype)
    flat[indices] = values
    return numpy_helper.from_array(flat.reshape(shape), sparse.values.name)
