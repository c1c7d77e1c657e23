"""Sparse initialisers written out: nothing behind the reader knows them."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import numpy_helper

from intact.errors import ModelError

_MOST_ELEMENTS = 1 << 28
"""Elements of a dense tensor; sparse ones may stand for any number in a few bytes."""


def dense_initializers(proto: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """Return the model with its sparse initialisers dense; the same object if it has none.

    Raises:
        ModelError: One is malformed, or too large to be written out.
    """
    if not proto.graph.sparse_initializer:
        return proto
    dense = onnx.ModelProto()
    dense.CopyFrom(proto)
    for sparse in dense.graph.sparse_initializer:
        try:
            dense.graph.initializer.append(_dense(sparse))
        except (ValueError, IndexError, TypeError) as error:
            raise ModelError(
                f"{where}: sparse initializer {sparse.values.name!r} cannot be read: {error}",
                remedy="export the model with dense weights",
            ) from error
    del dense.graph.sparse_initializer[:]
    return dense


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """Write one out: indices are positions in the flat tensor, or one row of axes a value."""
    shape = tuple(sparse.dims)
    size = math.prod(shape)
    if min(shape, default=0) < 0 or size > _MOST_ELEMENTS:
        raise ValueError(f"its shape is {list(shape)}")
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    if indices.ndim == 2:
        indices = np.ravel_multi_index(tuple(indices.T), shape)
    if indices.shape != values.shape or (indices < 0).any():
        raise ValueError("indices and values do not match")
    flat = np.zeros(size, values.dtype)
    flat[indices] = values
    return numpy_helper.from_array(flat.reshape(shape), sparse.values.name)
