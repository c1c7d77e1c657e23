"""Models in half precision, made from float32 ones by their numbers and types alone."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

NUMPY: dict[int, type] = {
    TensorProto.FLOAT16: np.float16,
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
}


def halved(model: onnx.ModelProto, dtype: int = TensorProto.FLOAT16) -> onnx.ModelProto:
    """Return a copy in which every float32 is of a half type: constants, ports, casts, bodies."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _halve_graph(copy.graph, dtype)
    for function in copy.functions:
        _halve_nodes(function, dtype)
    return copy


def _halve_graph(graph: onnx.GraphProto, dtype: int) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = dtype
    for tensor in graph.initializer:
        _halve_tensor(tensor, dtype)
    _halve_nodes(graph, dtype)


def _halve_nodes(holder: onnx.GraphProto | onnx.FunctionProto, dtype: int) -> None:
    for node in holder.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = dtype
            _halve_tensor(attribute.t, dtype)
            if attribute.HasField("g"):
                _halve_graph(attribute.g, dtype)


def _halve_tensor(tensor: onnx.TensorProto, dtype: int) -> None:
    # Resize takes its factors in float32 only.
    if tensor.data_type == TensorProto.FLOAT and not tensor.name.startswith("scales"):
        narrow: np.ndarray = numpy_helper.to_array(tensor).astype(NUMPY[dtype])
        tensor.CopyFrom(numpy_helper.from_array(narrow, tensor.name))
