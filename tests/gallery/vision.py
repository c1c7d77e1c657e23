"""Image classifiers: the building blocks of the well-known families, a few layers of each."""

from __future__ import annotations

import numpy as np
import onnx

from tests.gallery.layers import Layers

IMAGE = ("batch", 3, 16, 16)
CLASSES = ("batch", 10)


def mobilenet_v3() -> onnx.ModelProto:
    """Inverted residuals with HardSwish (as one op and decomposed) and squeeze-and-excite."""
    b = Layers()
    x = b.node("HardSwish", b.convolution(b.input("image", IMAGE), 3, 16, stride=2))
    for block in range(2):
        y = b.convolution(x, 16, 32, (1, 1))
        y = b.node("HardSwish", y) if block == 0 else _hard_swish(b, y)
        y = b.convolution(y, 32, 32, group=32)
        y = b.node("HardSwish", _squeeze_and_excite(b, y, 32, 8))
        x = b.node("Add", x, b.convolution(y, 32, 16, (1, 1), gain=1))
    x = b.node("HardSwish", b.gemm(b.pooled(x), 16, 32))
    b.gemm(x, 32, 10)
    return b.last_as("logits", CLASSES)


def _hard_swish(b: Layers, x: str) -> str:
    six = b.clip(b.node("Add", x, b.scalar(3)), 0, 6)
    return b.node("Div", b.node("Mul", x, six), b.scalar(6))


def _squeeze_and_excite(b: Layers, x: str, channels: int, squeezed: int) -> str:
    gate = b.node("GlobalAveragePool", x)
    gate = b.relu(b.convolution(gate, channels, squeezed, (1, 1)))
    gate = b.node("HardSigmoid", b.convolution(gate, squeezed, channels, (1, 1)), alpha=1 / 6)
    return b.node("Mul", x, gate)


def shufflenet() -> onnx.ModelProto:
    """Grouped convolutions with channel shuffles, one block with Add and one with Concat."""
    b = Layers()
    x = b.relu(b.convolution(b.input("image", IMAGE), 3, 16, stride=2))
    y = b.relu(b.convolution(x, 16, 16, (1, 1), group=4))
    y = b.convolution(_shuffle(b, y, 16, 4, 8), 16, 16, group=16)
    x = b.relu(b.node("Add", x, b.convolution(y, 16, 16, (1, 1), group=4, gain=1)))
    y = b.convolution(_shuffle(b, x, 16, 4, 8), 16, 16, group=16, stride=2)
    y = b.convolution(y, 16, 16, (1, 1), group=4)
    short = b.node("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = b.relu(b.node("Concat", short, y, axis=1))
    b.gemm(b.pooled(x), 32, 10)
    return b.last_as("logits", CLASSES)


def _shuffle(b: Layers, x: str, channels: int, groups: int, size: int) -> str:
    x = b.node("Reshape", x, b.ints(-1, groups, channels // groups, size, size))
    x = b.node("Transpose", x, perm=[0, 2, 1, 3, 4])
    return b.node("Reshape", x, b.ints(-1, channels, size, size))


def inception() -> onnx.ModelProto:
    """Branches with kernels of one row or column, one-sided padding and averages over padding."""
    b = Layers()
    x = b.relu(b.convolution(b.input("image", IMAGE), 3, 12, pads=[0, 0, 1, 1], stride=2))
    for width in (12, 32):
        tall = b.relu(b.convolution(x, width, 8, (1, 1)))
        tall = b.relu(b.convolution(tall, 8, 8, (1, 7)))
        tall = b.relu(b.convolution(tall, 8, 8, (7, 1)))
        lopsided = b.relu(b.convolution(x, width, 8, (2, 2), pads=[0, 1, 1, 0]))
        average = b.node(
            "AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1
        )
        average = b.relu(b.convolution(average, width, 8, (1, 1)))
        largest = b.relu(b.convolution(b.max_pool(x, 3), width, 8, (1, 1)))
        x = b.node("Concat", tall, lopsided, average, largest, axis=1)
    b.gemm(b.pooled(x), 32, 10)
    return b.last_as("logits", CLASSES)


def densenet() -> onnx.ModelProto:
    """Every layer reads all before it; BatchNormalization and Relu stand before convolutions."""
    b = Layers()
    x = b.convolution(b.input("image", IMAGE), 3, 8, stride=2)
    channels = 8
    for stage in range(2):
        for _ in range(3):
            y = b.relu(b.batch_norm(x, channels))
            y = b.relu(b.batch_norm(b.convolution(y, channels, 16, (1, 1)), 16))
            x = b.node("Concat", x, b.convolution(y, 16, 4), axis=1)
            channels += 4
        if stage == 0:
            x = b.convolution(b.relu(b.batch_norm(x, channels)), channels, 8, (1, 1))
            x, channels = b.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]), 8
    x = b.relu(b.batch_norm(x, channels))
    b.gemm(b.pooled(x), channels, 10)
    return b.last_as("logits", CLASSES)


def separable() -> onnx.ModelProto:
    """Depthwise separable convolutions with Clip(0, 6) and BatchNormalization."""
    b = Layers()
    x, channels = b.clip(b.convolution(b.input("image", IMAGE), 3, 8, stride=2), 0, 6), 8
    for stride in (1, 2):
        x = b.convolution(x, channels, channels, group=channels, stride=stride)
        x = b.clip(b.batch_norm(x, channels), 0, 6)
        x = b.convolution(x, channels, 2 * channels, (1, 1))
        channels *= 2
        x = b.clip(b.batch_norm(x, channels), 0, 6)
    x = b.mean(x, [2, 3], keepdims=0)
    b.gemm(x, channels, 10)
    return b.last_as("logits", CLASSES)


def prelu_net() -> onnx.ModelProto:
    """A face-recognition stem: PRelu with a slope for each channel, and residuals."""
    b = Layers()
    x = _prelu(b, b.convolution(b.input("image", IMAGE), 3, 12, stride=2), 12)
    for _ in range(2):
        y = _prelu(b, b.convolution(x, 12, 12), 12)
        x = b.node("Add", x, b.convolution(y, 12, 12, gain=0.7))
    x = b.node("Flatten", b.convolution(x, 12, 12, (8, 8), group=12, pads=[0] * 4))
    b.gemm(x, 12, 10)
    return b.last_as("embedding", CLASSES)


def _prelu(b: Layers, x: str, channels: int) -> str:
    slope = b.random.uniform(0.05, 0.4, (channels, 1, 1)).astype(np.float32)
    return b.node("PRelu", x, b.constant(slope))


def tensorflow_layout() -> onnx.ModelProto:
    """NHWC input; every convolution stands between two Transposes, as in converted models."""
    b = Layers()
    x = b.input("image", ("batch", 16, 16, 3))
    x = _nhwc_convolution(b, x, 3, 8, stride=2)
    x = b.clip(x, 0, 6)
    y = _nhwc_convolution(b, x, 8, 8)
    x = b.node("Add", x, b.relu(y))
    x = b.node("Transpose", x, perm=[0, 3, 1, 2])
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("Transpose", x, perm=[0, 2, 3, 1])
    x = b.mean(x, [1, 2], keepdims=0)
    b.linear(x, 8, 10)
    return b.last_as("logits", CLASSES)


def _nhwc_convolution(b: Layers, x: str, inputs: int, outputs: int, *, stride: int = 1) -> str:
    x = b.node("Transpose", x, perm=[0, 3, 1, 2])
    x = b.convolution(x, inputs, outputs, stride=stride)
    return b.node("Transpose", x, perm=[0, 2, 3, 1])


def normalized_net() -> onnx.ModelProto:
    """InstanceNormalization alone, as GroupNormalization is exported, and the operator itself."""
    b = Layers(21)
    x = b.convolution(b.input("image", IMAGE), 3, 16, stride=2)
    x = b.relu(b.node("InstanceNormalization", x, b.norm_scale(16), b.small_bias(16)))
    x = b.relu(_exported_group_norm(b, b.convolution(x, 16, 16), 16, 4, 8))
    x = b.convolution(x, 16, 16)
    x = b.node("GroupNormalization", x, b.norm_scale(16), b.small_bias(16), num_groups=4)
    b.gemm(b.pooled(b.relu(x)), 16, 10)
    return b.last_as("logits", CLASSES)


def _exported_group_norm(b: Layers, x: str, channels: int, groups: int, size: int) -> str:
    x = b.node("Reshape", x, b.ints(0, groups, -1))
    one, zero = (b.constant(np.full(groups, value, np.float32)) for value in (1, 0))
    x = b.node("InstanceNormalization", x, one, zero)
    x = b.node("Reshape", x, b.ints(-1, channels, size, size))
    scale = b.constant(b.random.uniform(0.7, 1.3, (channels, 1, 1)).astype(np.float32))
    shift = b.constant(b.random.normal(0, 0.1, (channels, 1, 1)).astype(np.float32))
    return b.node("Add", b.node("Mul", x, scale), shift)
