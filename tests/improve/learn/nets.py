"""Small nets for tests of the module: every kind of layer, and BatchNormalization behind layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import numpy_helper

from intact.improve.learn.module import QuantizedModule
from intact.improve.learn.training import parameter_groups
from tests.models import ModelBuilder, random_inputs


def every_layer() -> onnx.ModelProto:
    """Convolutions (plain, no bias, strided, depthwise), a residual, joins, pools and products."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 3, 8, 8])
    x = b.node("Relu", b.conv(x, 3, 8))
    weight = b.weight(8, 8, 3, 3)
    x = b.node("Relu", b.node("Conv", x, weight, strides=[2, 2], pads=[1] * 4))
    y = b.node("Relu", b.conv(x, 8, 8, group=8))
    y = b.conv(y, 8, 8, kernel=1, bias=False)
    x = b.node("Relu", b.node("Add", x, y))
    window: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1] * 4}
    left = b.node("MaxPool", x, **window)
    right = b.node("AveragePool", x, **window)
    x = b.node("Concat", left, right, b.node("Sigmoid", b.conv(x, 8, 4, kernel=1)), axis=1)
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    hidden = b.node("Relu", b.node("Gemm", x, b.weight(20, 12), b.weight(12)))
    b.node("MatMul", hidden, b.weight(12, 6), out="embedding")
    scores = b.node("Gemm", hidden, b.weight(5, 12), b.weight(5), transB=1)
    b.node("Softmax", scores, out="scores", axis=1)
    b.output("embedding", ["batch", 6])
    b.output("scores", ["batch", 5])
    return b.build()


def normed() -> onnx.ModelProto:
    """BatchNormalization behind Conv (with and without bias), ConvTranspose and Gemm."""
    b = ModelBuilder(seed=3)
    x = b.input("image", ["batch", 3, 6, 6])
    x = b.node("Relu", b.batch_norm(b.conv(x, 3, 6), 6))
    x = b.node("Relu", b.batch_norm(b.conv(x, 6, 6, group=6, bias=False), 6))
    turned = b.node("ConvTranspose", x, b.weight(6, 2, 2, 2), group=2, strides=[2, 2])
    x = b.node("Relu", b.batch_norm(turned, 4))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    x = b.batch_norm(b.node("Gemm", x, b.weight(4, 8), b.weight(8)), 8)
    b.node("Gemm", b.node("Relu", x), b.weight(5, 8), b.weight(5), out="logits", transB=1)
    b.output("logits", ["batch", 5])
    return b.build()


def one_layer(op: str, gamma: npt.NDArray[np.float32] | None = None) -> onnx.ModelProto:
    """A Conv, ConvTranspose or Gemm of four channels with BatchNormalization."""
    b = ModelBuilder(seed=7)
    shape: list[int | str] = ["batch", 3] if op == "Gemm" else ["batch", 3, 5, 5]
    x = b.input("x", shape)
    weight = {"Conv": (4, 3, 3, 3), "ConvTranspose": (3, 4, 3, 3), "Gemm": (3, 4)}[op]
    layer = b.node(op, x, b.weight(*weight), b.weight(4), name="layer")
    norm = b.batch_norm(layer, 4, out="y")
    if gamma is not None:
        name = next(node.input[1] for node in b.nodes if node.op_type == "BatchNormalization")
        (old,) = (each for each in b.initializers if each.name == name)
        old.CopyFrom(numpy_helper.from_array(gamma, name))
    b.output(norm)
    return b.build()


def tensors(model: onnx.ModelProto, batch: int = 4, seed: int = 5) -> list[torch.Tensor]:
    """Random inputs in their order."""
    return [torch.from_numpy(a) for a in random_inputs(model, batch=batch, seed=seed).values()]


def trained(module: QuantizedModule, model: onnx.ModelProto, steps: int = 3) -> QuantizedModule:
    """Train towards zeros for some steps, fast enough that codes and scales move."""
    optimizer = torch.optim.Adam(parameter_groups(module, rate=0.5))
    module.train()
    for step in range(steps):
        optimizer.zero_grad()
        found = module(*tensors(model, batch=6, seed=step))
        outputs = found if isinstance(found, tuple) else (found,)
        sum(each.float().square().mean() for each in outputs).backward()
        optimizer.step()
    return module
