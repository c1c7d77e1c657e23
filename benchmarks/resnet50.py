"""ResNet-50 with random weights: the benchmark's model of real size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""Blocks, width and stride of the first block (He et al. 2016, table 1)."""


class _Builder:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._generator = np.random.default_rng(50)

    def conv(
        self, source: str, channels: tuple[int, int], kernel: int, stride: int, *, relu: bool = True
    ) -> str:
        """Add Conv (BatchNormalization already folded) and Relu."""
        inputs, outputs = channels
        name = f"conv{len(self.nodes)}"
        spread = np.sqrt(2 / (inputs * kernel * kernel))
        weight = self._generator.normal(0, spread, (outputs, inputs, kernel, kernel)).astype(
            np.float32
        )
        bias = self._generator.normal(0, 0.05, outputs).astype(np.float32)
        self.weights += [
            numpy_helper.from_array(weight, f"{name}.w"),
            numpy_helper.from_array(bias, f"{name}.b"),
        ]
        pads = [kernel // 2] * 4
        self.nodes.append(
            helper.make_node(
                "Conv", [source, f"{name}.w", f"{name}.b"], [name], name,
                kernel_shape=[kernel, kernel], strides=[stride, stride], pads=pads,
            )
        )  # fmt: skip
        return self.op("Relu", name) if relu else name

    def op(self, op_type: str, *sources: str, **attributes: object) -> str:
        """Add a node with one output."""
        name = f"{op_type.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(sources), [name], name, **attributes))
        return name


def build_resnet50(path: Path) -> None:
    """Write the model: input ``image`` [N, 3, 224, 224], output ``logits`` [N, 1000]."""
    builder = _Builder()
    x = builder.conv("image", (3, 64), 7, 2)
    x = builder.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for blocks, width, first_stride in STAGES:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            y = builder.conv(x, (channels, width), 1, 1)
            y = builder.conv(y, (width, width), 3, stride)
            y = builder.conv(y, (width, 4 * width), 1, 1, relu=False)
            if block == 0:
                x = builder.conv(x, (channels, 4 * width), 1, stride, relu=False)
            x = builder.op("Relu", builder.op("Add", x, y))
            channels = 4 * width
    x = builder.op("Flatten", builder.op("GlobalAveragePool", x))
    generator = np.random.default_rng(51)
    weights = [
        *builder.weights,
        numpy_helper.from_array(generator.normal(0, 0.02, (2048, 1000)).astype(np.float32), "fc.w"),
        numpy_helper.from_array(np.zeros(1000, np.float32), "fc.b"),
    ]
    builder.nodes.append(helper.make_node("Gemm", [x, "fc.w", "fc.b"], ["logits"], "fc"))
    graph = helper.make_graph(
        builder.nodes,
        "resnet50",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, 224, 224])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 1000])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
