"""Models of a few operators each, so that between them every operator and option is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.formats.tflite.read_layers import (
    RELU,
    RELU6,
    SAME,
    VALID,
    conv,
    dense,
    image,
    some_scales,
)
from tests.formats.tflite.small_files import TYPES, FileBuilder


def pools(b: FileBuilder) -> list[int]:
    """Both pools, with and without pads, with a fused activation."""
    x = conv(b, image(b, 1, 7, 7, 3), (1, 7, 7, 4))
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


def transposed_valid(b: FileBuilder) -> list[int]:
    """A transposed convolution whose output is larger than its full result."""
    weight = b.codes((3, 2, 2, 4), scale=0.02)
    y = b.tensor((1, 9, 8, 3), scale=0.2, zero=4)
    x = image(b, 1, 4, 4, 4)
    y = b.op("TRANSPOSE_CONV", [b.ints(1, 9, 8, 3), weight, x], y, "TransposeConvOptions",
             padding=VALID, strideH=2, strideW=2)  # fmt: skip
    return [y]


def parts(b: FileBuilder) -> list[int]:
    """SPLIT, SPLIT_V, SLICE, STRIDED_SLICE, PACK, UNPACK, CONCATENATION behind a convolution."""
    q: dict[str, Any] = {"scale": 0.3, "zero": -5}
    x = conv(b, image(b), (1, 8, 8, 6))
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
    x = conv(b, image(b, 1, 4, 4, 4), (1, 4, 4, 4))
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
    x = conv(b, image(b), (1, 8, 8, 4), scale=0.04)
    shape = (1, 8, 8, 4)
    return [
        b.op("TANH", [x], b.tensor(shape, scale=1 / 128)),
        b.op("RELU", [x], b.tensor(shape, scale=0.03, zero=-128)),
        b.op("RELU6", [x], b.tensor(shape, scale=6 / 255, zero=-128)),
        b.op("RELU_N1_TO_1", [x], b.tensor(shape, scale=0.04, zero=-5)),
        b.op("RELU_0_TO_1", [x], b.tensor(shape, scale=0.006, zero=-100)),
        b.op("LEAKY_RELU", [x], b.tensor(shape, scale=0.03), "LeakyReluOptions", alpha=0.1),
        b.op("GELU", [x], b.tensor(shape, scale=0.03), "GeluOptions", approximate=True),
        b.op("GELU", [x], b.tensor(shape, scale=0.03), "GeluOptions"),
        b.op("EXP", [x], b.tensor(shape, scale=0.5, zero=-100)),
        b.op("ABS", [x], b.tensor(shape, scale=0.04, zero=-5), "AbsOptions"),
        b.op("PRELU", [x, b.codes((1, 1, 4), scale=0.004)], b.tensor(shape, scale=0.03)),
        b.op("LOG_SOFTMAX", [x], b.tensor(shape, scale=16 / 256, zero=127), "LogSoftmaxOptions"),
    ]


def binaries(b: FileBuilder) -> list[int]:
    """Binary operators, constants on either side, broadcast both ways."""
    x = conv(b, image(b), (1, 8, 8, 4))
    y = conv(b, x, (1, 8, 8, 4), scale=0.2, zero=9)
    shape = (1, 8, 8, 4)
    one = b.codes((4,), scale=0.07, zero=1)
    factor = b.codes((1, 8, 1, 4), scale=0.02, zero=-3)
    z = b.op(
        "SUB", [one, x], b.tensor(shape, scale=0.5), "SubOptions", fusedActivationFunction=RELU
    )
    w = b.op("MUL", [y, factor], b.tensor(shape, scale=0.1), "MulOptions",
             fusedActivationFunction=RELU6)  # fmt: skip
    q: dict[str, Any] = {"scale": 0.2, "zero": 9}
    again = b.op("QUANTIZE", [x], b.tensor(shape, **q), "QuantizeOptions")
    u = b.op("MAXIMUM", [again, y], b.tensor(shape, **q), "MaximumMinimumOptions")
    v = b.op("MINIMUM", [again, y], b.tensor(shape, **q), "MaximumMinimumOptions")
    return [z, w, u, v]


def float_ports(b: FileBuilder) -> list[int]:
    """Floats in and out, quantized inside."""
    x = b.input((1, 6, 6, 2), "float32")
    x = b.op("QUANTIZE", [x], b.tensor((1, 6, 6, 2), scale=0.05, zero=3), "QuantizeOptions")
    x = conv(b, x, (1, 3, 3, 4), stride=2, fused=RELU)
    y = b.op("DEQUANTIZE", [x], b.tensor((1, 3, 3, 4), "float32"), "DequantizeOptions")
    return [y]


def float_island(b: FileBuilder) -> list[int]:
    """A function in float between integers."""
    x = conv(b, image(b), (1, 8, 8, 4))
    y = b.op("DEQUANTIZE", [x], b.tensor((1, 8, 8, 4), "float32"), "DequantizeOptions")
    y = b.op("SIN", [y], b.tensor((1, 8, 8, 4), "float32"))
    y = b.op("QUANTIZE", [y], b.tensor((1, 8, 8, 4), scale=1 / 128), "QuantizeOptions")
    return [conv(b, y, (1, 8, 8, 2))]


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


def embedding(b: FileBuilder) -> list[int]:
    """Tokens that choose rows of a stored table."""
    ids = b.input((1, 5), "int32", scale=None)
    table = b.codes((7, 8), scale=0.05, zero=2)
    x = b.op("GATHER", [table, ids], b.tensor((1, 5, 8), scale=0.05, zero=2), "GatherOptions")
    return [dense(b, x, (1, 5, 3), keep=True)]


def channel_means(b: FileBuilder) -> list[int]:
    """MEAN over channels and over one spatial axis, of an image with its channels first."""
    x = conv(b, image(b), (1, 4, 4, 6), stride=2)
    outs = {(3,): (1, 4, 4), (1,): (1, 4, 6), (1, 3): (1, 4), (2, 3): (1, 4), (-2,): (1, 4, 6)}
    q: dict[str, Any] = {"scale": 0.2, "zero": 3}
    kept = b.op("MEAN", [x, b.ints(-1)], b.tensor((1, 4, 4, 1), **q), "ReducerOptions",
                keepDims=True)  # fmt: skip
    return [
        kept,
        *(b.op("MEAN", [x, b.ints(*axes)], b.tensor(shape, **q), "ReducerOptions")
          for axes, shape in outs.items()),
    ]  # fmt: skip


def positions(b: FileBuilder) -> list[int]:
    """ARG_MAX to int32 and int64, ARG_MIN, SOFTMAX over the channels of an image."""
    x = conv(b, image(b), (1, 4, 4, 6), stride=2)
    last = b.ints(3, shape=())
    soft = b.tensor((1, 4, 4, 6), scale=1 / 256, zero=-128)
    return [
        b.op("ARG_MAX", [x, last], b.tensor((1, 4, 4), "int32", None), "ArgMaxOptions",
             outputType=2),
        b.op("ARG_MAX", [x, last], b.tensor((1, 4, 4), "int64", None), "ArgMaxOptions",
             outputType=4),
        b.op("ARG_MIN", [x, last], b.tensor((1, 4, 4), "int32", None), "ArgMinOptions",
             outputType=2),
        b.op("SOFTMAX", [x], soft, "SoftmaxOptions", beta=1.0),
    ]  # fmt: skip


def volume(b: FileBuilder) -> list[int]:
    """CONV_3D of floats, quantized behind."""
    x = b.input((1, 5, 6, 7, 3), "float32")
    weight = b.tensor((2, 3, 2, 3, 4), "float32", data=b.random.standard_normal((2, 3, 2, 3, 4)))
    bias, y = b.tensor((4,), "float32", data=[0, 1, 2, 3]), b.tensor((1, 3, 2, 7, 4), "float32")
    fields = {"strideD": 2, "strideH": 3, "strideW": 1, "fusedActivationFunction": RELU}
    fields |= {"dilationDFactor": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    y = b.op("CONV_3D", [x, weight, bias], y, "Conv3DOptions", padding=SAME, **fields)
    y = b.op("MEAN", [y, b.ints(1)], b.tensor((1, 2, 7, 4), "float32"), "ReducerOptions")
    y = b.op("QUANTIZE", [y], b.tensor((1, 2, 7, 4), scale=0.1, zero=3), "QuantizeOptions")
    return [conv(b, y, (1, 2, 7, 2))]


def selections(b: FileBuilder) -> list[int]:
    """TOPK_V2 of codes and floats, CUMSUM forwards and backwards."""
    q: dict[str, Any] = {"scale": 0.3, "zero": -5}
    x = conv(b, image(b), (1, 4, 4, 6), stride=2)
    most, at = b.tensor((1, 4, 4, 2), **q), b.tensor((1, 4, 4, 2), "int32", None)
    b.op("TOPK_V2", [x, b.ints(2, shape=())], [most, at], "TopKV2Options", version=2)
    floats = b.op("DEQUANTIZE", [x], b.tensor((1, 4, 4, 6), "float32"), "DequantizeOptions")
    first, place = b.tensor((1, 4, 4, 1), "float32"), b.tensor((1, 4, 4, 1), "int32", None)
    b.op("TOPK_V2", [floats, b.ints(1, shape=())], [first, place], "TopKV2Options")
    sums = b.op("CUMSUM", [floats, b.ints(3, shape=())], b.tensor((1, 4, 4, 6), "float32"),
                "CumsumOptions", exclusive=True)  # fmt: skip
    back = b.op("CUMSUM", [floats, b.ints(1, shape=())], b.tensor((1, 4, 4, 6), "float32"),
                "CumsumOptions", reverse=True)  # fmt: skip
    return [most, at, first, place, sums, back]


def elements_of_samples(b: FileBuilder) -> list[int]:
    """GATHER_ND and SCATTER_ND of codes and floats, whose places name the sample."""
    q: dict[str, Any] = {"scale": 0.05, "zero": 9}
    x = b.input((1, 6, 3), **q)
    places = b.ints(0, 5, 0, 0, 0, 5, shape=(3, 2))
    taken = b.op("GATHER_ND", [x, places], b.tensor((3, 3), **q), "GatherNdOptions", version=2)
    fed = b.input((1, 4, 3), "int32", scale=None)
    one = b.op("GATHER_ND", [b.codes((3, 4, 3), **q), fed], b.tensor((1, 4), **q),
               "GatherNdOptions", version=2)  # fmt: skip
    put = b.op("SCATTER_ND", [b.ints(3, 0, 2, shape=(3, 1)), taken, b.ints(5, 3)],
               b.tensor((5, 3), **q), "ScatterNdOptions")  # fmt: skip
    floats = b.op("DEQUANTIZE", [taken], b.tensor((3, 3), "float32"), "DequantizeOptions")
    added = b.op("SCATTER_ND", [b.ints(1, 0, 1, shape=(3, 1)), floats, b.ints(2, 3)],
                 b.tensor((2, 3), "float32"), "ScatterNdOptions")  # fmt: skip
    return [taken, one, put, added]


def four_bits(b: FileBuilder) -> list[int]:
    """A dense layer whose weight has two codes in a byte."""
    x = b.input((1, 6), scale=0.05, zero=2)
    weight = b.codes((3, 6), scale=0.03)
    codes = b.random.integers(-7, 8, 18)
    packed = (codes[1::2] & 15) << 4 | codes[::2] & 15
    tensor = b.graph.tensors[weight]
    tensor.type = TYPES["int4"]
    b.model.buffers[tensor.buffer].data = packed.astype(np.uint8)
    out = b.tensor((1, 3), scale=0.05, zero=3)
    return [b.op("FULLY_CONNECTED", [x, weight, -1], out, "FullyConnectedOptions")]


def of_positives(b: FileBuilder) -> list[int]:
    """Functions that are defined above 0 only."""
    x = b.input((1, 40), scale=0.05, zero=-128)
    return [
        b.op("LOG", [x], b.tensor((1, 40), scale=0.04, zero=40)),
        b.op("SQRT", [x], b.tensor((1, 40), scale=0.02, zero=-128)),
        b.op("RSQRT", [x], b.tensor((1, 40), scale=0.02, zero=-128)),
    ]


def computed_places(b: FileBuilder) -> list[int]:
    """Slices that begin where arithmetic of constants says."""
    q: dict[str, Any] = {"scale": 0.05, "zero": 3}
    x = b.input((1, 9), **q)
    outs = []
    for name, options, first, second in (
        ("ADD", "AddOptions", 2, 1),
        ("SUB", "SubOptions", 5, 3),
        ("MUL", "MulOptions", 2, 2),
        ("MAXIMUM", "MaximumMinimumOptions", 1, 5),
        ("MINIMUM", "MaximumMinimumOptions", 6, 8),
    ):
        operands = [b.ints(0, first), b.ints(0, second)]
        begin = b.op(name, operands, b.tensor((2,), "int32", None), options)
        outs.append(b.op("SLICE", [x, begin, b.ints(1, 3)], b.tensor((1, 3), **q), "SliceOptions"))
    return outs


def half_floats(b: FileBuilder) -> list[int]:
    """A float convolution whose weights are stored in 16 bits, quantized behind."""
    x = b.input((1, 4, 4, 3), "float32")
    stored = b.tensor((2, 3, 3, 3), "float16", data=b.random.standard_normal((2, 3, 3, 3)))
    weight = b.op("DEQUANTIZE", [stored], b.tensor((2, 3, 3, 3), "float32"), "DequantizeOptions")
    bias = b.tensor((2,), "float32", data=[0.1, 0.2])
    fields = {"padding": SAME, "strideH": 1, "strideW": 1}
    fields |= {"dilationHFactor": 1, "dilationWFactor": 1}
    y = b.tensor((1, 4, 4, 2), "float32")
    y = b.op("CONV_2D", [x, weight, bias], y, "Conv2DOptions", **fields)
    return [b.op("QUANTIZE", [y], b.tensor((1, 4, 4, 2), scale=0.1, zero=3), "QuantizeOptions")]


def one_type_to_another(b: FileBuilder) -> list[int]:
    """uint8 at the ports, int8 inside."""
    x = b.input((1, 4, 4, 3), "uint8", scale=0.02, zero=128)
    x = b.op("QUANTIZE", [x], b.tensor((1, 4, 4, 3), scale=0.02), "QuantizeOptions")
    x = conv(b, x, (1, 4, 4, 4))
    out = b.tensor((1, 4, 4, 4), "uint8", scale=0.3, zero=123)
    return [b.op("QUANTIZE", [x], out, "QuantizeOptions")]


def slices(b: FileBuilder) -> list[int]:
    """STRIDED_SLICE backwards, with a new axis behind an ellipsis, and GATHER of one element."""
    q: dict[str, Any] = {"scale": 0.05, "zero": 9}
    x = b.input((1, 6, 3), **q)
    back = b.op("STRIDED_SLICE", [x, b.ints(0, -1, 0), b.ints(1, -7, 3), b.ints(1, -1, 2)],
                b.tensor((1, 6, 2), **q), "StridedSliceOptions")  # fmt: skip
    new = b.op("STRIDED_SLICE", [x, b.ints(0, 0, 1), b.ints(0, 0, 3), b.ints(1, 1, 1)],
               b.tensor((1, 6, 1, 2), **q), "StridedSliceOptions", newAxisMask=2,
               ellipsisMask=1)  # fmt: skip
    one = b.op("GATHER", [x, b.ints(2, shape=())], b.tensor((1, 3), **q), "GatherOptions", axis=1)
    wide = b.tensor((1, 7, 4), **q)
    pads = b.ints(0, 0, 1, 0, 0, 1, shape=(3, 2))
    return [back, new, one, b.op("PAD", [x, pads], wide, "PadOptions")]


def products(b: FileBuilder) -> list[int]:
    """BATCH_MATMUL of four dimensions, and with a stored factor."""
    x = b.input((1, 2, 4, 6), scale=0.05, zero=4)
    y = b.input((1, 2, 4, 6), scale=0.03, zero=-4)
    both = b.tensor((1, 2, 6, 6), scale=0.1, zero=4)
    both = b.op("BATCH_MATMUL", [x, y], both, "BatchMatMulOptions", adjX=True)
    stored = b.codes((1, 1, 5, 6), scale=0.02, zero=3)
    out = b.tensor((1, 2, 4, 5), scale=0.1, zero=4)
    return [both, b.op("BATCH_MATMUL", [x, stored], out, "BatchMatMulOptions", adjY=True)]


def inputs_read_twice(b: FileBuilder) -> list[int]:
    """An image that a convolution, a sum and a concatenation read, and a second float input."""
    x = image(b)
    y = b.input((1, 4), "float32")
    y = b.op("QUANTIZE", [y], b.tensor((1, 4), scale=0.03, zero=4), "QuantizeOptions")
    shaped = b.tensor((1, 1, 1, 4), scale=0.03, zero=4)
    y = b.op("RESHAPE", [y, b.ints(1, 1, 1, 4)], shaped)
    y = b.op("MUL", [x, y], b.tensor((1, 8, 8, 4), scale=0.1), "MulOptions")
    z = conv(b, y, (1, 8, 8, 4))
    z = b.op("ADD", [x, z], b.tensor((1, 8, 8, 4), scale=0.3), "AddOptions")
    twice = b.tensor((1, 8, 8, 8), scale=0.05, zero=3)
    return [z, b.op("CONCATENATION", [x, x], twice, "ConcatenationOptions", axis=3)]


def stretched(b: FileBuilder) -> list[int]:
    """RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR in every mode, larger and smaller."""
    x = b.input((1, 4, 5, 3), scale=0.1, zero=4)
    outs = []
    for kind in ("Bilinear", "NearestNeighbor"):
        for align, half in ((False, False), (True, False), (False, True)):
            for height, width in ((8, 10), (3, 9), (1, 1)):
                out = b.tensor((1, height, width, 3), scale=0.1, zero=4)
                name = "RESIZE_BILINEAR" if kind == "Bilinear" else "RESIZE_NEAREST_NEIGHBOR"
                outs.append(b.op(name, [x, b.ints(height, width)], out, f"Resize{kind}Options",
                                 alignCorners=align, halfPixelCenters=half))  # fmt: skip
    return outs


def comparisons(b: FileBuilder) -> list[int]:
    """Comparisons of codes, of indices and of floats, and what CAST makes of them."""
    x = image(b)
    shape = (1, 8, 8, 4)
    y = b.codes((1, 1, 1, 4), scale=0.05, zero=3)
    ids = b.input((1, 5), "int32")
    zero = b.tensor((1,), "int32", None, data=[0])
    found = b.op("EQUAL", [ids, zero], b.tensor((1, 5), "bool"), "EqualOptions")
    other = b.op("NOT_EQUAL", [ids, zero], b.tensor((1, 5), "bool"), "NotEqualOptions")
    return [
        conv(b, x, (1, 4, 4, 3), stride=2),
        b.op("EQUAL", [x, y], b.tensor(shape, "bool"), "EqualOptions", version=2),
        b.op("GREATER", [x, y], b.tensor(shape, "bool"), "GreaterOptions", version=2),
        b.op("LESS", [x, y], b.tensor(shape, "bool"), "LessOptions", version=2),
        b.op("CAST", [found], b.tensor((1, 5), "float32"), "CastOptions"),
        b.op("CAST", [other], b.tensor((1, 5), "int32", None), "CastOptions"),
    ]


def choices(b: FileBuilder) -> list[int]:
    """SELECT_V2 of codes, floats and indices, behind comparisons that are joined."""
    q: dict[str, Any] = {"scale": 0.3, "zero": -5}
    shape = (1, 8, 8, 4)
    x = conv(b, image(b), shape)
    y = b.codes((1, 1, 1, 4), **q)
    most, least, both, other, chosen = (b.tensor(shape, "bool") for _ in range(5))
    b.op("GREATER_EQUAL", [x, y], most, "GreaterEqualOptions", version=2)
    b.op("LESS_EQUAL", [x, y], least, "LessEqualOptions", version=2)
    b.op("LOGICAL_AND", [most, least], both, "LogicalAndOptions")
    b.op("LOGICAL_NOT", [both], other, "LogicalNotOptions")
    row = b.tensor((1, 1, 8, 1), "bool", data=b.random.random((1, 1, 8, 1)) < 0.5)
    b.op("LOGICAL_OR", [most, row], chosen, "LogicalOrOptions")
    ids = b.input((1, 5), "int32", scale=None)
    zero = b.tensor((1, 1), "int32", None, data=[[1]])
    few = b.op("LESS_EQUAL", [ids, zero], b.tensor((1, 5), "bool"), "LessEqualOptions")
    floats = b.op("DEQUANTIZE", [x], b.tensor(shape, "float32"), "DequantizeOptions")
    none = b.tensor((), "float32", data=-1e9)
    where = "SelectV2Options"
    return [
        b.op("SELECT_V2", [chosen, x, y], b.tensor(shape, **q), where, version=1),
        b.op("SELECT_V2", [other, none, floats], b.tensor(shape, "float32"), where),
        b.op("SELECT_V2", [few, ids, zero], b.tensor((1, 5), "int32", None), where),
    ]


def remainders(b: FileBuilder) -> list[int]:
    """FLOOR_MOD of both signs, POW and REDUCE_PROD, of floats and whole numbers."""
    shape = (1, 8, 8, 4)
    x = conv(b, image(b), shape)
    floats = b.op("DEQUANTIZE", [x], b.tensor(shape, "float32"), "DequantizeOptions")
    ids = b.input((1, 5), "int32", scale=None)
    divisors = b.tensor((4,), "float32", data=[1.7, -1.7, 0.3, -30])
    three = b.tensor((1, 1), "int32", None, data=[[-3]])
    two = b.tensor((), "float32", data=2)
    rest = b.op("FLOOR_MOD", [floats, divisors], b.tensor(shape, "float32"), "FloorModOptions")
    axes, out = b.ints(3), b.tensor((1, 8, 8), "float32")
    return [
        rest,
        b.op("FLOOR_MOD", [ids, three], b.tensor((1, 5), "int32", None), "FloorModOptions"),
        b.op("POW", [floats, two], b.tensor(shape, "float32"), "PowOptions"),
        b.op("REDUCE_PROD", [rest, axes], out, "ReducerOptions"),
    ]


def tables(b: FileBuilder) -> list[int]:
    """EMBEDDING_LOOKUP of floats and of codes that become floats, GATHER in each row."""
    ids = b.input((1,), "int32", scale=None)
    rows = b.tensor((9, 4), "float32", data=b.random.standard_normal((9, 4)))
    codes = b.codes((9, 4), scale=0.02)
    x = conv(b, image(b), (1, 8, 8, 4))
    places = b.op("ARG_MAX", [x, b.ints(3)], b.tensor((1, 8, 8), "int32", None), "ArgMaxOptions",
                  outputType=TYPES["int32"], version=2)  # fmt: skip
    places = b.op("RESHAPE", [places, b.ints(1, 8, 8, 1)], b.tensor((1, 8, 8, 1), "int32", None))
    return [
        b.op("EMBEDDING_LOOKUP", [ids, rows], b.tensor((1, 4), "float32")),
        b.op("EMBEDDING_LOOKUP", [ids, codes], b.tensor((1, 4), "float32"), version=3),
        b.op("GATHER", [x, places], b.tensor((1, 8, 8, 1), scale=0.3, zero=-5), "GatherOptions",
             axis=3, batchDims=3, version=5),
    ]  # fmt: skip


def densified(b: FileBuilder) -> list[int]:
    """DENSIFY of a matrix by rows and of a kernel in blocks, int8, float16 and float32."""
    x = image(b, 1, 4, 4, 8)
    kernel = b.random.integers(-127, 128, (6, 1, 1, 8)) * (b.random.random((6, 1, 1, 8)) < 0.3)
    sparse = b.sparse(kernel, scale=some_scales(6))
    weight = b.op("DENSIFY", [sparse], b.tensor(kernel.shape, scale=some_scales(6)),
                  "DensifyOptions")  # fmt: skip
    bias = b.bias(6, [0.05 * each for each in some_scales(6)])
    y = b.op("CONV_2D", [x, weight, bias], b.tensor((1, 4, 4, 6), scale=0.3), "Conv2DOptions",
             strideH=1, strideW=1, dilationHFactor=1, dilationWFactor=1)  # fmt: skip
    outs = [y]
    flat = b.op("DEQUANTIZE", [y], b.tensor((1, 4, 4, 6), "float32"), "DequantizeOptions")
    for kind in ("float32", "float16"):
        matrix = b.random.standard_normal((8, 6)) * (b.random.random((8, 6)) < 0.4)
        sparse = b.sparse(matrix, kind, blocks=((0, 4),))
        full = b.op("DENSIFY", [sparse], b.tensor((8, 6), kind), "DensifyOptions")
        if kind == "float16":
            single = b.tensor((8, 6), "float32")
            full = b.op("DEQUANTIZE", [full], single, "DequantizeOptions", version=3)
        out = b.tensor((1, 4, 4, 8), "float32")
        outs.append(b.op("FULLY_CONNECTED", [flat, full, -1], out, "FullyConnectedOptions",
                         keepNumDims=True))  # fmt: skip
    return outs


CASES = {
    case.__name__: case
    for case in (
        pools,
        transposed_valid,
        parts,
        moves,
        functions,
        binaries,
        float_ports,
        float_island,
        legacy_uint8,
        embedding,
        channel_means,
        positions,
        selections,
        volume,
        elements_of_samples,
        four_bits,
        of_positives,
        computed_places,
        half_floats,
        one_type_to_another,
        slices,
        products,
        inputs_read_twice,
        stretched,
        comparisons,
        choices,
        remainders,
        tables,
        densified,
    )
}
