"""Sparse tensors, written out: a few bytes of them can claim any number of values."""

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
    dense = onnx.ModelProto()
    dense.CopyFrom(proto)
    room = _Room(unpacked_limit(size), where)
    for graph in _graphs(dense.graph):
        for sparse in graph.sparse_initializer:
            try:
                graph.initializer.append(_dense(sparse, read, room))
            except (ValueError, IndexError, TypeError) as error:
                raise ModelError(
                    f"{where}: sparse initializer {sparse.values.name!r} cannot be read: {error}",
                    remedy=_MEND,
                ) from error
        del graph.sparse_initializer[:]
    return dense


class _Room:
    """The bytes that dense tensors may take, all of them together."""

    def __init__(self, allowed: int, where: str) -> None:
        self._allowed, self._needed, self._where = allowed, 0, where

    def take(self, size: int, name: str) -> None:
        self._needed += size
        if self._needed > self._allowed:
            raise ModelError(
                f"{self._where}: its sparse initializers up to {name!r} have {self._needed} bytes "
                f"when written out, {self._allowed} are allowed",
                remedy=remedy(self._needed, self._allowed, _MEND),
            )


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and those in its nodes; protobuf limits the depth."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                if body.node or body.sparse_initializer:
                    yield from _graphs(body)


def _dense(sparse: onnx.SparseTensorProto, read: Reader, room: _Room) -> onnx.TensorProto:
    """Make a dense tensor: indices are flat positions, or one row of coordinates per value."""
    shape = tuple(sparse.dims)
    if min(shape, default=0) < 0:
        raise ValueError(f"its shape is {list(shape)}")
    values, indices = read(sparse.values), read(sparse.indices)
    size = math.prod(shape)
    room.take(size * values.dtype.itemsize, sparse.values.name)
    if indices.ndim == 2:
        indices = np.ravel_multi_index(tuple(indices.T), shape)
    if indices.shape != values.shape or (indices < 0).any():
        raise ValueError("indices and values do not match")
    flat = np.zeros(size, values.dtype)
    flat[indices] = values
    return numpy_helper.from_array(flat.reshape(shape), sparse.values.name)
