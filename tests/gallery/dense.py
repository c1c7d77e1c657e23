"""Models whose outputs are as large as their inputs: detectors, segmentation, upsampling."""

from __future__ import annotations

import numpy as np
import onnx

from tests.gallery.layers import Layers

_END = 2**31 - 1


def yolo() -> onnx.ModelProto:
    """Focus by strided Slices, SiLU, pooling pyramid, upsampling, and two heads."""
    b = Layers()
    x = _focus(b, b.input("image", ("batch", 3, 32, 32)))
    fine = b.silu(b.convolution(x, 12, 16))
    x = b.silu(b.convolution(fine, 16, 24, stride=2))
    x = _pooling_pyramid(b, x, 24)
    up = b.resize(b.silu(b.convolution(x, 24, 16, (1, 1))), 2)
    merged = b.silu(b.convolution(b.node("Concat", up, fine, axis=1), 32, 16))
    for name, source, channels, size in (("fine", merged, 16, 16), ("coarse", x, 24, 8)):
        head = b.convolution(source, channels, 3 * 6, (1, 1), gain=1)
        head = b.node("Reshape", head, b.ints(-1, 3, 6, size, size))
        b.node("Transpose", head, perm=[0, 1, 3, 4, 2], out=name)
        b.output(name, ["batch", 3, size, size, 6])
    scores = b.node("Sigmoid", b.gemm(b.pooled(x), 24, 4), out="scene")
    b.output(scores, ["batch", 4])
    return b.build()


def _focus(b: Layers, x: str) -> str:
    parts = []
    for row in (0, 1):
        for column in (0, 1):
            starts, ends = b.ints(row, column), b.ints(_END, _END)
            parts.append(b.node("Slice", x, starts, ends, b.ints(2, 3), b.ints(2, 2)))
    return b.node("Concat", *parts, axis=1)


def _pooling_pyramid(b: Layers, x: str, channels: int) -> str:
    half = channels // 2
    x = b.silu(b.convolution(x, channels, half, (1, 1)))
    pools = [x, *(b.max_pool(x, size) for size in (3, 5, 7))]
    return b.silu(b.convolution(b.node("Concat", *pools, axis=1), 4 * half, channels, (1, 1)))


def unet() -> onnx.ModelProto:
    """Skip connections; one way up by ConvTranspose, one by linear and one by nearest Resize."""
    b = Layers()
    levels = []
    x, channels = b.input("image", ("batch", 1, 32, 32)), 1
    for width in (8, 12, 16):
        x = b.relu(b.convolution(b.relu(b.convolution(x, channels, width)), width, width))
        levels.append((x, width))
        x, channels = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), width
    x = b.relu(b.convolution(x, channels, channels))
    for way, (skip, width) in zip(("transposed", "linear", "nearest"), levels[::-1], strict=True):
        if way == "transposed":
            x = b.transposed_convolution(x, channels, width, (2, 2), stride=2)
        else:
            x = b.convolution(b.resize(x, 2, mode=way), channels, width)
        x = b.relu(b.convolution(b.node("Concat", x, skip, axis=1), 2 * width, width))
        channels = width
    b.node("Sigmoid", b.convolution(x, channels, 1, (1, 1), gain=1))
    return b.last_as("mask", ("batch", 1, 32, 32))


def upsampler() -> onnx.ModelProto:
    """ConvTranspose in one and two dimensions: one group, groups, and one channel a group."""
    b = Layers()
    x = b.relu(b.convolution(b.input("spectrum", ("batch", 8, 12)), 8, 16, (3,)))
    for group in (1, 4, 16):
        x = b.relu(b.transposed_convolution(x, 16, 16, (4,), stride=2, group=group))
    x = b.convolution(x, 16, 1, (5,), gain=1)
    b.node("Tanh", x, out="audio")
    y = b.relu(b.convolution(b.input("image", ("batch", 3, 6, 6)), 3, 8))
    for group in (1, 2, 8):
        y = b.relu(b.transposed_convolution(y, 8, 8, (2, 2), stride=2, group=group))
    b.convolution(y, 8, 3, gain=1, out="pixels")
    b.output("audio", ["batch", 1, "time"])
    b.output("pixels", ["batch", 3, 48, 48])
    return b.build()


def any_size() -> onnx.ModelProto:
    """A fully convolutional model whose height and width are free, resized back by its shape."""
    b = Layers()
    image = b.input("image", ("batch", 3, "height", "width"))
    x = b.relu(b.convolution(image, 3, 12, stride=2))
    x = b.node("Add", x, b.relu(b.convolution(x, 12, 12, dilation=2)))
    x = b.relu(b.convolution(x, 12, 12, group=12))
    x = b.convolution(x, 12, 5, (1, 1), gain=1)
    shape = b.node("Shape", image)
    size = b.node("Slice", shape, b.ints(2), b.ints(4), b.ints(0))
    full = b.node("Concat", b.node("Slice", b.node("Shape", x), b.ints(0), b.ints(2)), size, axis=0)
    x = b.node(
        "Resize", x, "", "", full, mode="linear", coordinate_transformation_mode="half_pixel"
    )
    b.node("Softmax", x, axis=1)
    return b.last_as("classes", ("batch", 5, "height", "width"))


def split_net() -> onnx.ModelProto:
    """Channels taken apart by Split, Slice and Gather, each with a way of its own."""
    b = Layers()
    x = b.relu(b.convolution(b.input("image", ("batch", 3, 16, 16)), 3, 24, stride=2))
    first, second, third = b.split(x, [8, 8, 8], 1)
    first = b.relu(b.convolution(first, 8, 8))
    second = b.node("Add", first, second)
    second = b.relu(b.convolution(second, 8, 8))
    x = b.node("Concat", first, second, third, axis=1)
    left = b.node("Slice", x, b.ints(0), b.ints(12), b.ints(1))
    right = b.node("Slice", x, b.ints(12), b.ints(_END), b.ints(1))
    x = b.node("Mul", b.convolution(left, 12, 12), b.node("Sigmoid", right))
    order = b.constant(np.arange(12)[::-1].astype(np.int64).copy())
    x = b.relu(b.convolution(b.node("Gather", x, order, axis=1), 12, 12))
    x = b.node("DepthToSpace", x, blocksize=2)
    b.convolution(x, 3, 2, gain=1, out="map")
    features = b.node("Squeeze", b.node("GlobalAveragePool", x), b.ints(2, 3))
    b.gemm(features, 3, 4, out="logits")
    b.output("map", ["batch", 2, 16, 16])
    b.output("logits", ["batch", 4])
    return b.build()
