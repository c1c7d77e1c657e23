"""Networks as converters write them, that reading has to get right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from intact.targets import Target, load_target
from tests.formats.tflite import read_int16_cases, read_operator_cases
from tests.formats.tflite.read_layers import (
    NONE,
    RELU,
    RELU6,
    RELU_N1_TO_1,
    SAME,
    VALID,
    conv,
    dense,
    depthwise,
    image,
    some_scales,
)
from tests.formats.tflite.small_files import FileBuilder

Case = Callable[[FileBuilder], Sequence[int]]


def mobile(b: FileBuilder) -> list[int]:
    """Depthwise blocks with a residual, a mean and a dense layer."""
    x = conv(b, image(b, 1, 9, 9, 3), (1, 5, 5, 8), stride=2, fused=RELU6)
    y = depthwise(b, x, (1, 5, 5, 8))
    y = conv(b, y, (1, 5, 5, 8), (1, 1, 0))
    y = b.op("ADD", [x, y], b.tensor((1, 5, 5, 8), scale=0.5, zero=1), "AddOptions")
    y = depthwise(b, y, (1, 3, 3, 16), stride=2, fused=NONE)
    y = b.op("MEAN", [y, b.ints(1, 2)], b.tensor((1, 16), scale=0.02, zero=9), "ReducerOptions")
    y = dense(b, y, (1, 5))
    out = b.tensor((1, 5), scale=1 / 256, zero=-128)
    return [b.op("SOFTMAX", [y], out, "SoftmaxOptions", beta=1.0)]


def squeeze_excite(b: FileBuilder) -> list[int]:
    """MobileNetV3: hard swish, and channels weighed by what a mean says."""
    x = conv(b, image(b), (1, 8, 8, 8))
    x = b.op("HARD_SWISH", [x], b.tensor((1, 8, 8, 8), scale=0.2, zero=-100), "HardSwishOptions")
    mean = b.tensor((1, 1, 1, 8), scale=0.02, zero=9)
    y = b.op("MEAN", [x, b.ints(1, 2)], mean, "ReducerOptions", keepDims=True)
    y = conv(b, y, (1, 1, 1, 2), (1, 1, 0), fused=RELU)
    y = conv(b, y, (1, 1, 1, 8), (1, 1, 0))
    y = b.op("LOGISTIC", [y], b.tensor((1, 1, 1, 8), scale=1 / 256, zero=-128))
    y = b.op("MUL", [x, y], b.tensor((1, 8, 8, 8), scale=0.2, zero=-90), "MulOptions")
    return [conv(b, y, (1, 6, 6, 4), padding=VALID)]


def squeeze_excite_flat(b: FileBuilder) -> list[int]:
    """The same with a mean that drops its axes, a RESHAPE, and hard sigmoid as operators."""
    x = depthwise(b, image(b), (1, 8, 8, 4), fused=RELU)
    y = b.op("MEAN", [x, b.ints(1, 2)], b.tensor((1, 4), scale=0.03, zero=1), "ReducerOptions")
    y = dense(b, y, (1, 6), fused=RELU)
    y = dense(b, y, (1, 4))
    shaped = b.tensor((1, 1, 1, 4), scale=0.4, zero=7)
    y = b.op("RESHAPE", [y, b.ints(1, 1, 1, 4)], shaped, "ReshapeOptions", newShape=[1, 1, 1, 4])
    half = b.tensor((), data=np.int8(100), scale=0.03)
    y = b.op("ADD", [y, half], b.tensor((1, 1, 1, 4), scale=0.02, zero=-128), "AddOptions",
             fusedActivationFunction=RELU6)  # fmt: skip
    y = b.op("MUL", [x, y], b.tensor((1, 8, 8, 4), scale=0.3), "MulOptions")
    return [conv(b, y, (1, 4, 4, 3), stride=2)]


def grouped_and_dilated(b: FileBuilder) -> list[int]:
    """A grouped convolution and a dilated one."""
    x = conv(b, image(b), (1, 8, 8, 6), (3, 3, 2), fused=RELU_N1_TO_1, scale=0.01)
    return [conv(b, x, (1, 4, 4, 3), dilation=2, padding=VALID)]


def segment(b: FileBuilder) -> list[int]:
    """An encoder and a decoder: pads, transposed convolution, resizing, ARG_MAX-free output."""
    x = image(b, 1, 6, 6, 3)
    padded = b.tensor((1, 8, 7, 3), scale=0.05, zero=3)
    x = b.op("PAD", [x, b.ints(0, 0, 1, 1, 0, 1, 0, 0, shape=(4, 2))], padded, "PadOptions")
    x = conv(b, x, (1, 3, 3, 4), stride=2, padding=VALID, fused=RELU)
    weight = b.codes((5, 3, 3, 4), scale=some_scales(5))
    y = b.tensor((1, 6, 6, 5), scale=0.2, zero=4)
    bias = b.bias(5, [0.3 * s for s in some_scales(5)])
    y = b.op("TRANSPOSE_CONV", [b.ints(1, 6, 6, 5), weight, x, bias], y, "TransposeConvOptions",
             padding=SAME, strideH=2, strideW=2)  # fmt: skip
    z = b.tensor((1, 9, 12, 5), scale=0.2, zero=4)
    y = b.op("RESIZE_BILINEAR", [y, b.ints(9, 12)], z, "ResizeBilinearOptions",
             halfPixelCenters=True)  # fmt: skip
    z = b.tensor((1, 5, 7, 5), scale=0.2, zero=4)
    y = b.op("RESIZE_NEAREST_NEIGHBOR", [y, b.ints(5, 7)], z, "ResizeNearestNeighborOptions",
             alignCorners=True)  # fmt: skip
    return [y]


def conv_1d(b: FileBuilder) -> list[int]:
    """Convolutions over time: EXPAND_DIMS, CONV_2D, SQUEEZE, twice."""
    x = image(b, 1, 12, 4)
    for _ in range(2):
        scale, zero = (0.05, 3) if x == 0 else (0.3, -5)
        wide = b.tensor((1, 1, 12, 4), scale=scale, zero=zero)
        x = b.op("EXPAND_DIMS", [x, b.ints(1, shape=())], wide, "ExpandDimsOptions")
        x = conv(b, x, (1, 1, 12, 4), (1, 3, 0))
        narrow = b.tensor((1, 12, 4), scale=0.3, zero=-5)
        x = b.op("SQUEEZE", [x], narrow, "SqueezeOptions", squeezeDims=[1])
    return [x]


def attention(b: FileBuilder) -> list[int]:
    """BATCH_MATMUL both ways, SOFTMAX, TRANSPOSE, and a dense layer on three dimensions."""
    x = image(b, 1, 6, 8)
    q = dense(b, x, (1, 6, 8), keep=True)
    scores = b.tensor((1, 6, 6), scale=0.5, zero=2)
    y = b.op("BATCH_MATMUL", [q, x], scores, "BatchMatMulOptions", adjY=True)
    soft = b.tensor((1, 6, 6), scale=1 / 256, zero=-128)
    y = b.op("SOFTMAX", [y], soft, "SoftmaxOptions", beta=1.0)
    y = b.op("BATCH_MATMUL", [y, q], b.tensor((1, 6, 8), scale=0.3), "BatchMatMulOptions")
    y = b.op("ADD", [y, x], b.tensor((1, 6, 8), scale=0.3, zero=-4), "AddOptions")
    y = b.op("TRANSPOSE", [y, b.ints(0, 2, 1)], b.tensor((1, 8, 6), scale=0.3, zero=-4))
    return [y]


def heads(b: FileBuilder) -> list[int]:
    """Queries and keys cut out of one product; the batch lies behind an axis of one for a while."""
    q: dict[str, Any] = {"scale": 0.4, "zero": 7}
    x = dense(b, image(b, 1, 6, 4), (1, 6, 24), keep=True)
    x = b.op("RESHAPE", [x, b.ints(1, 6, 3, 2, 4)], b.tensor((1, 6, 3, 2, 4), **q))
    parts = []
    for k in (0, 2):
        y = b.op("SLICE", [x, b.ints(0, 0, k, 0, 0), b.ints(1, 6, 1, 2, 4)],
                 b.tensor((1, 6, 1, 2, 4), **q), "SliceOptions")  # fmt: skip
        y = b.op("TRANSPOSE", [y, b.ints(2, 0, 3, 1, 4)], b.tensor((1, 1, 2, 6, 4), **q))
        y = b.op("SQUEEZE", [y], b.tensor((1, 2, 6, 4), **q), "SqueezeOptions", squeezeDims=[0])
        parts.append(y)
    scores = b.tensor((1, 2, 6, 6), scale=3.0, zero=2)
    return [b.op("BATCH_MATMUL", parts, scores, "BatchMatMulOptions", adjY=True)]


def layer_norm(b: FileBuilder) -> list[int]:
    """What converters make of LayerNormalization."""
    x = image(b, 1, 5, 16)
    last = b.ints(2)
    keep = {"keepDims": True}
    mean = b.op("MEAN", [x, last], b.tensor((1, 5, 1), scale=0.01), "ReducerOptions", **keep)
    square = b.tensor((1, 5, 16), scale=0.1, zero=-128)
    square = b.op("SQUARED_DIFFERENCE", [x, mean], square, "SquaredDifferenceOptions")
    variance = b.tensor((1, 5, 1), scale=0.05, zero=-128)
    variance = b.op("MEAN", [square, last], variance, "ReducerOptions", **keep)
    epsilon = b.tensor((1, 1, 1), data=[[[3]]], scale=0.01, zero=2)
    variance = b.op("ADD", [variance, epsilon], b.tensor((1, 5, 1), scale=0.05, zero=-128),
                    "AddOptions")  # fmt: skip
    inverse = b.op("RSQRT", [variance], b.tensor((1, 5, 1), scale=0.02, zero=-128))
    y = b.op("SUB", [x, mean], b.tensor((1, 5, 16), scale=0.06, zero=1), "SubOptions")
    y = b.op("MUL", [y, inverse], b.tensor((1, 5, 16), scale=0.03, zero=1), "MulOptions")
    gamma = b.codes((16,), scale=0.01)
    return [b.op("MUL", [y, gamma], b.tensor((1, 5, 16), scale=0.03, zero=2), "MulOptions")]


def computed_shape(b: FileBuilder) -> list[int]:
    """A flatten whose batch is taken from the shape, as Keras exports it."""
    x = conv(b, image(b), (1, 4, 4, 3), stride=2)
    shape = b.op("SHAPE", [x], b.tensor((4,), "int32", None), "ShapeOptions", outType=2)
    batch = b.op("STRIDED_SLICE", [shape, b.ints(0), b.ints(1), b.ints(1)],
                 b.tensor((), "int32", None), "StridedSliceOptions", shrinkAxisMask=1)  # fmt: skip
    rest = b.tensor((), "int32", None, data=48)
    target = b.op("PACK", [batch, rest], b.tensor((2,), "int32", None), "PackOptions",
                  axis=0, valuesCount=2)  # fmt: skip
    flat = b.op("RESHAPE", [x, target], b.tensor((1, 48), scale=0.3, zero=-5))
    return [dense(b, flat, (1, 5))]


def dilated_by_batch(b: FileBuilder) -> list[int]:
    """A dilated convolution as older converters write it: space to batch and back."""
    x = conv(b, image(b), (1, 8, 8, 4))
    q: dict[str, Any] = {"scale": 0.3, "zero": -5}
    around = b.ints(2, 2, 2, 2, shape=(2, 2))
    y = b.op("SPACE_TO_BATCH_ND", [x, b.ints(2, 2), around], b.tensor((4, 6, 6, 4), **q))
    y = conv(b, y, (4, 4, 4, 4), padding=VALID)
    crops = b.ints(0, 0, 0, 0, shape=(2, 2))
    return [b.op("BATCH_TO_SPACE_ND", [y, b.ints(2, 2), crops], b.tensor((1, 8, 8, 4), **q))]


def channels_moved(b: FileBuilder) -> list[int]:
    """Transposes that only say where the channels lie, from a converter of NCHW models."""
    x = image(b, 1, 3, 6, 6)
    y = b.op("TRANSPOSE", [x, b.ints(0, 2, 3, 1)], b.tensor((1, 6, 6, 3), scale=0.05, zero=3))
    y = conv(b, y, (1, 6, 6, 4))
    y = b.op("TRANSPOSE", [y, b.ints(0, 3, 1, 2)], b.tensor((1, 4, 6, 6), scale=0.3, zero=-5))
    flat = b.op("RESHAPE", [y, b.ints(1, 144)], b.tensor((1, 144), scale=0.3, zero=-5))
    return [dense(b, flat, (1, 4))]


CASES: dict[str, Case] = {
    **{
        case.__name__: case
        for case in (
            mobile,
            squeeze_excite,
            squeeze_excite_flat,
            grouped_and_dilated,
            segment,
            conv_1d,
            attention,
            heads,
            layer_norm,
            computed_shape,
            dilated_by_batch,
            channels_moved,
        )
    },
    **read_operator_cases.CASES,
}

WIDE = {f"int16_{name}": case for name, case in read_int16_cases.CASES.items()}
"""Models with int16 activations, which are read for another target."""


def build(name: str, seed: int = 0) -> bytes:
    """Return the file of a case."""
    b = FileBuilder(seed)
    return b.build(*(CASES | WIDE)[name](b))


def target_of(name: str) -> Target:
    """Return the target that a case is read for."""
    return load_target("tflite-16x8" if name in WIDE else "tflite")
