"""Small convolutional networks that Tengine can hold, and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime

from intact.graph import Graph
from tests.models import ModelBuilder, depthwise_net, residual_net, transposed_net

Arrays = list[npt.NDArray[Any]]


def pools(opset: int = 17) -> onnx.ModelProto:
    """Every kind of pooling, joined along the channels."""
    b = ModelBuilder(opset)
    x = b.input("image", ["batch", 2, 9, 7])
    parts = [
        b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        b.node("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        b.node(
            "AveragePool",
            x,
            kernel_shape=[3, 3],
            strides=[2, 2],
            pads=[1, 1, 1, 1],
            count_include_pad=1,
        ),
        b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 1, 1]),
    ]
    b.node("Concat", *parts, axis=1, out="joined")
    b.output("joined")
    return b.build()


def pointwise(opset: int = 17) -> onnx.ModelProto:
    """Functions, and operators of two inputs that are spread."""
    b = ModelBuilder(opset)
    x = b.conv(b.input("image", ["batch", 3, 6, 6]), 3, 4)
    left = b.node("LeakyRelu", x, alpha=0.25)
    right = b.node("PRelu", x, b.weight(4, 1, 1))
    x = b.node("Sub", b.node("Mul", left, right), b.scalar(0.5))
    gate = b.node("HardSigmoid", b.node("GlobalAveragePool", x), alpha=0.25)
    x = b.node("Mul", x, gate)
    x = b.node("Max", b.node("HardSwish", x), b.node("Elu", left, alpha=0.5))
    x = b.node("Div", b.node("Tanh", x), b.scalar(3))
    b.node("Sigmoid", b.clip(x, -0.2, 0.3), out="result")
    b.output("result")
    return b.build()


def moves(opset: int = 17) -> onnx.ModelProto:
    """Slices, parts, padding, larger images and axes in another order."""
    b = ModelBuilder(opset)
    x = b.conv(b.input("image", ["batch", 3, 6, 6]), 3, 6)
    first, second = b.split(x, [2, 4], 1)
    second = b.node("Slice", second, b.ints(1), b.ints(4), b.ints(1), b.ints(2))
    x = b.node("Concat", first, second, axis=1)
    x = b.node("Slice", x, b.ints(1, 0), b.ints(5, 6), b.ints(2, 3))
    x = b.node("Pad", x, b.ints(0, 0, 1, 0, 0, 0, 0, 2), b.scalar(0.25))
    empty = b.constant(np.zeros(0, np.float32))
    scales = b.constant(np.array([1, 1, 2, 1.5], np.float32))
    kept = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    x = b.node("Resize", x, empty, scales, mode="nearest", **kept)
    x = b.node(
        "Resize", x, empty, b.constant(np.array([1, 1, 2, 2], np.float32)), mode="linear", **kept
    )
    x = b.node("Transpose", x, perm=[0, 2, 1, 3])
    x = b.node("Reshape", x, b.ints(0, 20, -1))
    b.node("Softmax", x, axis=1, out="result")
    b.output("result")
    return b.build()


FLOAT: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "residual": residual_net,
    "depthwise": depthwise_net,
    "transposed": transposed_net,
    "pools": pools,
    "pointwise": pointwise,
    "moves": moves,
}
"""Models that are written in float."""

INTEGER = ("residual", "depthwise", "pools")
"""Those of them that are written in integers."""


def run(model: Graph | ir.Model, feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """Run a model as it stands."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    content = ir.to_proto(model.model if isinstance(model, Graph) else model)
    session = onnxruntime.InferenceSession(content.SerializeToString(), options)
    return list(session.run(None, dict(feeds)))
