"""Models of a few operators, as converters write them, that reading has to get right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.formats.tflite.small_files import FileBuilder

SAME, VALID = 0, 1
NONE, RELU, RELU_N1_TO_1, RELU6 = range(4)

Case = Callable[[FileBuilder], Sequence[int]]


def _scales(count: int) -> list[float]:
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
    scales = _scales(out[3]) if per_channel else 0.02
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
    scales = _scales(out[3])
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


def _image(b: FileBuilder, *shape: int, **more: Any) -> int:
    return b.input(shape or (1, 8, 8, 4), scale=0.05, zero=3, **more)


def mobile(b: FileBuilder) -> list[int]:
    """Depthwise blocks with a residual, a mean and a dense layer."""
    x = conv(b, _image(b, 1, 9, 9, 3), (1, 5, 5, 8), stride=2, fused=RELU6)
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
    x = conv(b, _image(b), (1, 8, 8, 8))
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
    x = depthwise(b, _image(b), (1, 8, 8, 4), fused=RELU)
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
    x = conv(b, _image(b), (1, 8, 8, 6), (3, 3, 2), fused=RELU_N1_TO_1, scale=0.01)
    return [conv(b, x, (1, 4, 4, 3), dilation=2, padding=VALID)]


def pools(b: FileBuilder) -> list[int]:
    """Both pools, with and without pads, with a fused activation."""
    x = conv(b, _image(b, 1, 7, 7, 3), (1, 7, 7, 4))
    options = {"strideH": 2, "strideW": 2, "filterHeight": 3, "filterWidth": 3}
    y = b.op("MAX_POOL_2D", [x], b.tensor((1, 4, 4, 4), scale=0.3, zero=-5), "Pool2DOptions",
             padding=SAME, **options)  # fmt: skip
    z = b.op("AVERAGE_POOL_2D", [x], b.tensor((1, 4, 4, 4), scale=0.3, zero=-5), "Pool2DOptions",
             padding=SAME, fusedActivationFunction=RELU, **options)  # fmt: skip
    both = b.tensor((1, 4, 4, 8), scale=0.3, zero=-5)
    y = b.op("CONCATENATION", [y, z], both, "ConcatenationOptions", axis=-1)
    out = b.tensor((1, 1, 1, 8), scale=0.3, zero=-5)
    options = {"strideH": 1, "strideW": 1, "filterHeight": 4, "filterWidth": 4}
    return [b.op("AVERAGE_POOL_2D", [y], out, "Pool2DOptions", padding=VALID, **options)]


def segment(b: FileBuilder) -> list[int]:
    """An encoder and a decoder: pads, transposed convolution, resizing, ARG_MAX-free output."""
    x = _image(b, 1, 6, 6, 3)
    padded = b.tensor((1, 8, 7, 3), scale=0.05, zero=3)
    x = b.op("PAD", [x, b.ints(0, 0, 1, 1, 0, 1, 0, 0, shape=(4, 2))], padded, "PadOptions")
    x = conv(b, x, (1, 3, 3, 4), stride=2, padding=VALID, fused=RELU)
    weight = b.codes((5, 3, 3, 4), scale=_scales(5))
    y = b.tensor((1, 6, 6, 5), scale=0.2, zero=4)
    bias = b.bias(5, [0.3 * s for s in _scales(5)])
    y = b.op("TRANSPOSE_CONV", [b.ints(1, 6, 6, 5), weight, x, bias], y, "TransposeConvOptions",
             padding=SAME, strideH=2, strideW=2)  # fmt: skip
    z = b.tensor((1, 9, 12, 5), scale=0.2, zero=4)
    y = b.op("RESIZE_BILINEAR", [y, b.ints(9, 12)], z, "ResizeBilinearOptions",
             halfPixelCenters=True)  # fmt: skip
    z = b.tensor((1, 5, 7, 5), scale=0.2, zero=4)
    y = b.op("RESIZE_NEAREST_NEIGHBOR", [y, b.ints(5, 7)], z, "ResizeNearestNeighborOptions",
             alignCorners=True)  # fmt: skip
    return [y]


def transposed_valid(b: FileBuilder) -> list[int]:
    """A transposed convolution whose output is larger than its full result."""
    weight = b.codes((3, 2, 2, 4), scale=0.02)
    y = b.tensor((1, 9, 8, 3), scale=0.2, zero=4)
    x = _image(b, 1, 4, 4, 4)
    y = b.op("TRANSPOSE_CONV", [b.ints(1, 9, 8, 3), weight, x], y, "TransposeConvOptions",
             padding=VALID, strideH=2, strideW=2)  # fmt: skip
    return [y]


def conv_1d(b: FileBuilder) -> list[int]:
    """Convolutions over time: EXPAND_DIMS, CONV_2D, SQUEEZE, twice."""
    x = _image(b, 1, 12, 4)
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
    x = _image(b, 1, 6, 8)
    q = dense(b, x, (1, 6, 8), keep=True)
    scores = b.tensor((1, 6, 6), scale=0.5, zero=2)
    y = b.op("BATCH_MATMUL", [q, x], scores, "BatchMatMulOptions", adjY=True)
    soft = b.tensor((1, 6, 6), scale=1 / 256, zero=-128)
    y = b.op("SOFTMAX", [y], soft, "SoftmaxOptions", beta=1.0)
    y = b.op("BATCH_MATMUL", [y, q], b.tensor((1, 6, 8), scale=0.3), "BatchMatMulOptions")
    y = b.op("ADD", [y, x], b.tensor((1, 6, 8), scale=0.3, zero=-4), "AddOptions")
    y = b.op("TRANSPOSE", [y, b.ints(0, 2, 1)], b.tensor((1, 8, 6), scale=0.3, zero=-4))
    return [y]


def layer_norm(b: FileBuilder) -> list[int]:
    """What converters make of LayerNormalization."""
    x = _image(b, 1, 5, 16)
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


def parts(b: FileBuilder) -> list[int]:
    """SPLIT, SPLIT_V, SLICE, STRIDED_SLICE, PACK, UNPACK, CONCATENATION behind a convolution."""
    q: dict[str, Any] = {"scale": 0.3, "zero": -5}
    x = conv(b, _image(b), (1, 8, 8, 6))
    halves = [b.tensor((1, 8, 8, 3), **q) for _ in range(2)]
    b.op("SPLIT", [b.ints(3, shape=()), x], halves, "SplitOptions", numSplits=2)
    rows = [b.tensor((1, n, 8, 3), **q) for n in (2, 5, 1)]
    b.op("SPLIT_V", [halves[0], b.ints(2, -1, 1), b.ints(1, shape=())], rows, "SplitVOptions",
         numSplits=3)  # fmt: skip
    y = b.op("SLICE", [halves[1], b.ints(0, 1, 2, 0), b.ints(1, 5, -1, 3)],
             b.tensor((1, 5, 6, 3), **q), "SliceOptions")  # fmt: skip
    y = b.op("STRIDED_SLICE", [y, b.ints(0, 4, 0, 0), b.ints(0, 0, 6, 1), b.ints(1, -2, 2, 1)],
             b.tensor((1, 3, 3), **q), "StridedSliceOptions",
             beginMask=1 | 2, endMask=1 | 2, shrinkAxisMask=8)  # fmt: skip
    packed = b.op("PACK", [y, y], b.tensor((1, 3, 2, 3), **q), "PackOptions", axis=2, valuesCount=2)
    apart = [b.tensor((1, 2, 3), **q) for _ in range(3)]
    b.op("UNPACK", [packed], apart, "UnpackOptions", axis=1, num=3)
    z = b.op("CONCATENATION", [rows[0], rows[1]], b.tensor((1, 7, 8, 3), **q),
             "ConcatenationOptions", axis=1)  # fmt: skip
    return [*apart, conv(b, z, (1, 7, 8, 2)), rows[2]]


def moves(b: FileBuilder) -> list[int]:
    """TILE, BROADCAST_TO, GATHER, MIRROR_PAD, PADV2, DEPTH_TO_SPACE, SPACE_TO_DEPTH."""
    q: dict[str, Any] = {"scale": 0.3, "zero": -5}
    x = conv(b, _image(b, 1, 4, 4, 4), (1, 4, 4, 4))
    y = b.op("DEPTH_TO_SPACE", [x], b.tensor((1, 8, 8, 1), **q), "DepthToSpaceOptions", blockSize=2)
    y = b.op("SPACE_TO_DEPTH", [y], b.tensor((1, 2, 2, 16), **q), "SpaceToDepthOptions",
             blockSize=4)  # fmt: skip
    t = b.op("TILE", [y, b.ints(1, 2, 1, 1)], b.tensor((1, 4, 2, 16), **q), "TileOptions")
    g = b.op("GATHER", [t, b.ints(3, 0, 3)], b.tensor((1, 4, 2, 3), **q), "GatherOptions", axis=3)
    m = b.op("MIRROR_PAD", [x, b.ints(0, 0, 2, 1, 0, 3, 0, 0, shape=(4, 2))],
             b.tensor((1, 7, 7, 4), **q), "MirrorPadOptions", mode=0)  # fmt: skip
    s = b.op("MIRROR_PAD", [x, b.ints(0, 0, 2, 1, 0, 4, 0, 0, shape=(4, 2))],
             b.tensor((1, 7, 8, 4), **q), "MirrorPadOptions", mode=1)  # fmt: skip
    low = b.tensor((1,), data=[-128], **q)
    p = b.op("PADV2", [x, b.ints(0, 0, 1, 1, 1, 1, 0, 0, shape=(4, 2)), low],
             b.tensor((1, 6, 6, 4), **q), "PadV2Options")  # fmt: skip
    out = b.tensor((1, 1, 16), **q)
    r = b.op("REDUCE_MAX", [y, b.ints(1)], b.tensor((1, 2, 16), **q), "ReducerOptions")
    r = b.op("REDUCE_MIN", [r, b.ints(1)], out, "ReducerOptions", keepDims=True)
    w = b.op("BROADCAST_TO", [r, b.ints(1, 3, 16)], b.tensor((1, 3, 16), **q), version=3)
    return [g, m, s, p, w]


def functions(b: FileBuilder) -> list[int]:
    """Functions of one tensor, one behind the other and side by side."""
    x = conv(b, _image(b), (1, 8, 8, 4), scale=0.04)
    shape = (1, 8, 8, 4)
    outs = [
        b.op("TANH", [x], b.tensor(shape, scale=1 / 128)),
        b.op("RELU", [x], b.tensor(shape, scale=0.03, zero=-128)),
        b.op("RELU6", [x], b.tensor(shape, scale=6 / 255, zero=-128)),
        b.op("RELU_N1_TO_1", [x], b.tensor(shape, scale=0.04, zero=-5)),
        b.op("LEAKY_RELU", [x], b.tensor(shape, scale=0.03), "LeakyReluOptions", alpha=0.1),
        b.op("GELU", [x], b.tensor(shape, scale=0.03), "GeluOptions", approximate=True),
        b.op("GELU", [x], b.tensor(shape, scale=0.03), "GeluOptions"),
        b.op("EXP", [x], b.tensor(shape, scale=0.5, zero=-100)),
        b.op("ABS", [x], b.tensor(shape, scale=0.04, zero=-5), "AbsOptions"),
        b.op("PRELU", [x, b.codes((1, 1, 4), scale=0.004)], b.tensor(shape, scale=0.03)),
        b.op("LOG_SOFTMAX", [x], b.tensor(shape, scale=16 / 256, zero=127), "LogSoftmaxOptions"),
    ]
    return outs


def binaries(b: FileBuilder) -> list[int]:
    """Binary operators, constants on either side, broadcast both ways."""
    x = conv(b, _image(b), (1, 8, 8, 4))
    y = conv(b, x, (1, 8, 8, 4), scale=0.2, zero=9)
    shape = (1, 8, 8, 4)
    one = b.codes((4,), scale=0.07, zero=1)
    image = b.codes((1, 8, 1, 4), scale=0.02, zero=-3)
    z = b.op(
        "SUB", [one, x], b.tensor(shape, scale=0.5), "SubOptions", fusedActivationFunction=RELU
    )
    w = b.op("MUL", [y, image], b.tensor(shape, scale=0.1), "MulOptions",
             fusedActivationFunction=RELU6)  # fmt: skip
    q: dict[str, Any] = {"scale": 0.2, "zero": 9}
    again = b.op("QUANTIZE", [x], b.tensor(shape, **q), "QuantizeOptions")
    u = b.op("MAXIMUM", [again, y], b.tensor(shape, **q), "MaximumMinimumOptions")
    v = b.op("MINIMUM", [again, y], b.tensor(shape, **q), "MaximumMinimumOptions")
    return [z, w, u, v]


def float_ports(b: FileBuilder) -> list[int]:
    """Floats in and out, quantised inside."""
    x = b.input((1, 6, 6, 2), "float32")
    x = b.op("QUANTIZE", [x], b.tensor((1, 6, 6, 2), scale=0.05, zero=3), "QuantizeOptions")
    x = conv(b, x, (1, 3, 3, 4), stride=2, fused=RELU)
    y = b.op("DEQUANTIZE", [x], b.tensor((1, 3, 3, 4), "float32"), "DequantizeOptions")
    return [y]


def float_island(b: FileBuilder) -> list[int]:
    """A function in float between integers."""
    x = conv(b, _image(b), (1, 8, 8, 4))
    y = b.op("DEQUANTIZE", [x], b.tensor((1, 8, 8, 4), "float32"), "DequantizeOptions")
    y = b.op("SIN", [y], b.tensor((1, 8, 8, 4), "float32"))
    y = b.op("QUANTIZE", [y], b.tensor((1, 8, 8, 4), scale=1 / 128), "QuantizeOptions")
    return [conv(b, y, (1, 8, 8, 2))]


def computed_shape(b: FileBuilder) -> list[int]:
    """A flatten whose batch is taken from the shape, as Keras exports it."""
    x = conv(b, _image(b), (1, 4, 4, 3), stride=2)
    shape = b.op("SHAPE", [x], b.tensor((4,), "int32", None), "ShapeOptions", outType=2)
    batch = b.op("STRIDED_SLICE", [shape, b.ints(0), b.ints(1), b.ints(1)],
                 b.tensor((), "int32", None), "StridedSliceOptions", shrinkAxisMask=1)  # fmt: skip
    rest = b.tensor((), "int32", None, data=48)
    target = b.op("PACK", [batch, rest], b.tensor((2,), "int32", None), "PackOptions",
                  axis=0, valuesCount=2)  # fmt: skip
    flat = b.op("RESHAPE", [x, target], b.tensor((1, 48), scale=0.3, zero=-5))
    return [dense(b, flat, (1, 5))]


def legacy_uint8(b: FileBuilder) -> list[int]:
    """Codes from 0 to 255, weights with a zero point."""
    x = b.input((1, 8, 8, 3), "uint8", scale=0.02, zero=120)
    x = conv(b, x, (1, 4, 4, 4), stride=2, per_channel=False, kind="uint8", fused=RELU6, zero=0,
             scale=0.02)  # fmt: skip
    options = {"strideH": 4, "strideW": 4, "filterHeight": 4, "filterWidth": 4}
    pooled = b.tensor((1, 1, 1, 4), "uint8", scale=0.02)
    x = b.op("AVERAGE_POOL_2D", [x], pooled, "Pool2DOptions", padding=VALID, **options)
    x = conv(b, x, (1, 1, 1, 5), (1, 1, 0), per_channel=False, kind="uint8", zero=90)
    x = b.op("RESHAPE", [x, b.ints(1, 5)], b.tensor((1, 5), "uint8", scale=0.3, zero=90))
    out = b.tensor((1, 5), "uint8", scale=1 / 256)
    return [b.op("SOFTMAX", [x], out, "SoftmaxOptions", beta=1.0)]


def dilated_by_batch(b: FileBuilder) -> list[int]:
    """A dilated convolution as older converters write it: space to batch and back."""
    x = conv(b, _image(b), (1, 8, 8, 4))
    q: dict[str, Any] = {"scale": 0.3, "zero": -5}
    around = b.ints(2, 2, 2, 2, shape=(2, 2))
    y = b.op("SPACE_TO_BATCH_ND", [x, b.ints(2, 2), around], b.tensor((4, 6, 6, 4), **q))
    y = conv(b, y, (4, 4, 4, 4), padding=VALID)
    crops = b.ints(0, 0, 0, 0, shape=(2, 2))
    return [b.op("BATCH_TO_SPACE_ND", [y, b.ints(2, 2), crops], b.tensor((1, 8, 8, 4), **q))]


def embedding(b: FileBuilder) -> list[int]:
    """Tokens that choose rows of a stored table."""
    ids = b.input((1, 5), "int32", scale=None)
    table = b.codes((7, 8), scale=0.05, zero=2)
    x = b.op("GATHER", [table, ids], b.tensor((1, 5, 8), scale=0.05, zero=2), "GatherOptions")
    return [dense(b, x, (1, 5, 3), keep=True)]


def channels_moved(b: FileBuilder) -> list[int]:
    """Transposes that only say where the channels lie, from a converter of NCHW models."""
    x = _image(b, 1, 3, 6, 6)
    y = b.op("TRANSPOSE", [x, b.ints(0, 2, 3, 1)], b.tensor((1, 6, 6, 3), scale=0.05, zero=3))
    y = conv(b, y, (1, 6, 6, 4))
    y = b.op("TRANSPOSE", [y, b.ints(0, 3, 1, 2)], b.tensor((1, 4, 6, 6), scale=0.3, zero=-5))
    flat = b.op("RESHAPE", [y, b.ints(1, 144)], b.tensor((1, 144), scale=0.3, zero=-5))
    return [dense(b, flat, (1, 4))]


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        mobile, squeeze_excite, squeeze_excite_flat, grouped_and_dilated, pools, segment,
        transposed_valid, conv_1d, attention, layer_norm, parts, moves, functions, binaries,
        float_ports, float_island, computed_shape, legacy_uint8, dilated_by_batch, embedding,
        channels_moved,
    )
}  # fmt: skip


def build(name: str, seed: int = 0) -> bytes:
    """Return the file of a case."""
    b = FileBuilder(seed)
    return b.build(*CASES[name](b))
