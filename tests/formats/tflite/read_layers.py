"""Layers as converters write them, with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.formats.tflite.small_files import FileBuilder

SAME, VALID = 0, 1
NONE, RELU, RELU_N1_TO_1, RELU6 = range(4)


def some_scales(count: int) -> list[float]:
    """Return a different scale for each channel."""
    return [0.01 + 0.003 * k for k in range(count)]


def conv(
    b: FileBuilder,
    data: int,
    out: Sequence[int],
    kernel: tuple[int, int, int] = (3, 3, 0),
    *,
    stride: int = 1,
    padding: int = SAME,
    fused: int = NONE,
    dilation: int = 1,
    biased: bool = True,
    per_channel: bool = True,
    scale: float = 0.3,
    zero: int = -5,
    kind: str = "int8",
) -> int:
    """Add a CONV_2D; the last number of ``kernel`` is the channels of a group, 0 for all."""
    shape = b.graph.tensors[data].shape
    channels = kernel[2] or shape[3]
    scales = some_scales(out[3]) if per_channel else 0.02
    zero_weight = {"zero": 131} if kind == "uint8" else {}
    weight = b.codes([out[3], kernel[0], kernel[1], channels], kind, scale=scales, **zero_weight)
    source = float(b.graph.tensors[data].quantization.scale[0])
    bias = b.bias(out[3], [source * s for s in np.atleast_1d(scales)]) if biased else -1
    result = b.tensor(out, kind, scale, zero)
    options = {"padding": padding, "strideH": stride, "strideW": stride}
    options |= {"dilationHFactor": dilation, "dilationWFactor": dilation}
    return b.op(
        "CONV_2D",
        [data, weight, bias],
        result,
        "Conv2DOptions",
        fusedActivationFunction=fused,
        **options,
    )


def depthwise(
    b: FileBuilder, data: int, out: Sequence[int], stride: int = 1, fused: int = RELU6
) -> int:
    """Add a DEPTHWISE_CONV_2D with a 3x3 kernel."""
    scales = some_scales(out[3])
    weight = b.codes([1, 3, 3, out[3]], scale=scales, axis=3)
    source = float(b.graph.tensors[data].quantization.scale[0])
    bias = b.bias(out[3], [source * s for s in scales])
    return b.op(
        "DEPTHWISE_CONV_2D",
        [data, weight, bias],
        b.tensor(out, scale=0.04, zero=-128),
        "DepthwiseConv2DOptions",
        padding=SAME,
        strideH=stride,
        strideW=stride,
        depthMultiplier=out[3] // b.graph.tensors[data].shape[3],
        dilationHFactor=1,
        dilationWFactor=1,
        fusedActivationFunction=fused,
    )


def dense(
    b: FileBuilder, data: int, out: Sequence[int], fused: int = NONE, keep: bool = False
) -> int:
    """Add a FULLY_CONNECTED."""
    size = int(np.prod(b.graph.tensors[data].shape))
    rows = int(np.prod(out)) // out[-1]
    weight = b.codes([out[-1], size // rows], scale=0.02)
    bias = b.bias(out[-1], float(b.graph.tensors[data].quantization.scale[0]) * 0.02)
    return b.op(
        "FULLY_CONNECTED",
        [data, weight, bias],
        b.tensor(out, scale=0.4, zero=7),
        "FullyConnectedOptions",
        fusedActivationFunction=fused,
        keepNumDims=keep,
    )


def image(b: FileBuilder, *shape: int, **more: Any) -> int:
    """Add an int8 image as input of the graph."""
    return b.input(shape or (1, 8, 8, 4), scale=0.05, zero=3, **more)
