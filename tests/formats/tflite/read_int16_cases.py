"""16x8 models: int16 activations without zero points, int8 weights, biases of 64 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from intact.formats.tflite.spellings import INT16_VERSIONS
from tests.formats.tflite.read_layers import NONE, RELU, RELU6, SAME
from tests.formats.tflite.small_files import FileBuilder

_SCALE = 0.0005
_OWN_SCALE = 2.0**-15
_IMAGE = (1, 8, 8, 4)


def _op(
    b: FileBuilder,
    name: str,
    inputs: Sequence[int],
    out: int | Sequence[int],
    table: str = "",
    **fields: Any,
) -> int:
    return b.op(name, inputs, out, table, INT16_VERSIONS[name], **fields)


def _wide(b: FileBuilder, shape: Sequence[int], scale: float = _SCALE) -> int:
    return b.tensor(shape, "int16", scale)


def _input(b: FileBuilder, shape: Sequence[int] = _IMAGE, scale: float = _SCALE) -> int:
    return b.input(shape, "int16", scale=scale)


def _scales(count: int) -> list[float]:
    return [0.01 + 0.003 * (k % 9) + 0.0001 * k for k in range(count)]


def bias(b: FileBuilder, scales: Sequence[float], size: int = 10**7) -> int:
    """Add an int64 bias."""
    index = b.tensor([len(scales)], "int64", data=b.random.integers(-size, size, len(scales)))
    stored = b.graph.tensors[index].quantization = schema.QuantizationParametersT()
    stored.scale = np.array(scales, np.float32)
    stored.zeroPoint = np.zeros(len(scales), np.int64)
    return index


def _window(
    b: FileBuilder, data: int, out: Sequence[int], name: str = "CONV_2D", fused: int = NONE
) -> int:
    source, depth = float(b.graph.tensors[data].quantization.scale[0]), out[3]
    channels = b.graph.tensors[data].shape[3]
    scales, table = _scales(depth), "Conv2DOptions"
    fields: dict[str, Any] = {}
    if name == "CONV_2D":
        weight = b.codes([depth, 3, 3, channels], scale=scales)
    else:
        weight = b.codes([1, 3, 3, depth], scale=scales, axis=3)
        table, fields = "DepthwiseConv2DOptions", {"depthMultiplier": depth // channels}
    inputs = [data, weight, bias(b, [source * scale for scale in scales])]
    fields |= {"padding": SAME, "strideH": 1, "strideW": 1, "fusedActivationFunction": fused}
    fields |= {"dilationHFactor": 1, "dilationWFactor": 1}
    return _op(b, name, inputs, _wide(b, out, 0.001), table, **fields)


def convolutions(b: FileBuilder) -> list[int]:
    """CONV_2D, DEPTHWISE_CONV_2D and TRANSPOSE_CONV, with fused activations."""
    x = _window(b, _input(b), (1, 8, 8, 6), fused=RELU6)
    x = _window(b, x, (1, 8, 8, 12), "DEPTHWISE_CONV_2D", fused=RELU)
    weight, scales = b.codes((5, 3, 3, 12), scale=_scales(5)), [0.001 * s for s in _scales(5)]
    return [
        _window(b, x, (1, 8, 8, 3)),
        _op(b, "TRANSPOSE_CONV", [b.ints(1, 16, 16, 5), weight, x, bias(b, scales)],
            _wide(b, (1, 16, 16, 5), 0.01), "TransposeConvOptions", padding=SAME, strideH=2,
            strideW=2),
    ]  # fmt: skip


def products(b: FileBuilder) -> list[int]:
    """FULLY_CONNECTED with one scale and with one a channel, BATCH_MATMUL, MEAN, SOFTMAX."""
    x = _input(b, (1, 20, 60))
    outs = []
    for scales in ([0.02], _scales(90)):
        weight = b.codes((90, 60), scale=scales)
        biases = bias(b, [_SCALE * scale for scale in np.broadcast_to(scales, 90)], 10**6)
        outs.append(_op(b, "FULLY_CONNECTED", [x, weight, biases], _wide(b, (1, 20, 90), 0.004),
                        "FullyConnectedOptions", keepNumDims=True))  # fmt: skip
    y = _op(b, "BATCH_MATMUL", outs, _wide(b, (1, 20, 20), 0.3), "BatchMatMulOptions", adjY=True)
    soft = _wide(b, (1, 20, 20), _OWN_SCALE)
    soft = _op(b, "SOFTMAX", [y], soft, "SoftmaxOptions", beta=1.0)
    mean = _op(b, "MEAN", [outs[0], b.ints(1)], _wide(b, (1, 90), 0.002), "ReducerOptions")
    return [outs[1], y, soft, mean]


def binaries(b: FileBuilder) -> list[int]:
    """ADD, SUB, MUL, MAXIMUM and MINIMUM."""
    x, y, outs = _input(b), _input(b, scale=0.0008), []
    for name in ("ADD", "SUB", "MUL"):
        table, fused = f"{name.title()}Options", RELU if name == "SUB" else NONE
        out = _wide(b, _IMAGE, 0.0009)
        outs.append(_op(b, name, [x, y], out, table, fusedActivationFunction=fused))
    for name in ("MAXIMUM", "MINIMUM"):
        z = _op(b, "QUANTIZE", [outs[0]], _wide(b, _IMAGE), "QuantizeOptions")
        outs.append(_op(b, name, [x, z], _wide(b, _IMAGE), "MaximumMinimumOptions"))
    return outs


def functions(b: FileBuilder) -> list[int]:
    """Functions of one tensor: curves at several scales, and straight ones."""
    x, flat, small = _input(b), _input(b, (1, 4000), 1 / 4096), _input(b, (1, 4000), 0.0001)
    own = [
        _op(b, name, [data], _wide(b, shape, _OWN_SCALE))
        for name in ("LOGISTIC", "TANH")
        for data, shape in ((x, _IMAGE), (flat, (1, 4000)), (small, (1, 4000)))
    ]
    slopes = b.codes((1, 1, 4), scale=0.01)
    return [
        *own,
        _op(b, "EXP", [small], _wide(b, (1, 4000), 0.001), "ExpOptions"),
        _op(b, "RELU", [x], _wide(b, _IMAGE, 0.0003)),
        _op(b, "RELU6", [x], _wide(b, _IMAGE, 0.0003)),
        _op(b, "LEAKY_RELU", [x], _wide(b, _IMAGE, 0.0004), "LeakyReluOptions", alpha=0.13),
        _op(b, "PRELU", [x, slopes], _wide(b, _IMAGE, 0.0004)),
        _op(b, "ABS", [x], _wide(b, _IMAGE, 0.0004), "AbsOptions"),
        _op(b, "NEG", [x], _wide(b, _IMAGE), "NegOptions"),
    ]


def moves(b: FileBuilder) -> list[int]:
    """What moves codes, pools and resizes."""
    x = _window(b, _input(b, (1, 4, 4, 4)), (1, 4, 4, 4))

    def same(name: str, out: Sequence[int], *constants: int, table: str = "", **fields: Any) -> int:
        return _op(b, name, [x, *constants], _wide(b, out, 0.001), table, **fields)

    window = {"strideH": 1, "strideW": 1, "filterHeight": 3, "filterWidth": 3, "padding": SAME}
    around = b.ints(0, 0, 1, 1, 0, 1, 0, 0, shape=(4, 2))
    halves = [_wide(b, (1, 4, 4, 2), 0.001) for _ in range(2)]
    rows = [_wide(b, (1, count, 4, 4), 0.001) for count in (3, 1)]
    apart = [_wide(b, (1, 4, 4), 0.001) for _ in range(4)]
    _op(b, "SPLIT", [b.ints(3, shape=()), x], halves, "SplitOptions", numSplits=2)
    _op(b, "SPLIT_V", [x, b.ints(3, 1), b.ints(1, shape=())], rows, "SplitVOptions", numSplits=2)
    most, at = _wide(b, (1, 4, 4, 2), 0.001), b.tensor((1, 4, 4, 2), "int32", None)
    _op(b, "TOPK_V2", [x, b.ints(2, shape=())], [most, at], "TopKV2Options")
    _op(b, "UNPACK", [x], apart, "UnpackOptions", axis=3, num=4)
    return [
        *halves, *rows, *apart, most, at,
        same("AVERAGE_POOL_2D", (1, 4, 4, 4), table="Pool2DOptions", **window),
        same("MAX_POOL_2D", (1, 4, 4, 4), table="Pool2DOptions", **window),
        same("REDUCE_MAX", (1, 4), b.ints(1, 2), table="ReducerOptions"),
        same("REDUCE_MIN", (1, 4), b.ints(1, 2), table="ReducerOptions"),
        same("PAD", (1, 6, 5, 4), around, table="PadOptions"),
        same("PADV2", (1, 6, 5, 4), around, b.tensor((1,), "int16", 0.001, data=[77]),
             table="PadV2Options"),
        same("MIRROR_PAD", (1, 6, 5, 4), around, table="MirrorPadOptions"),
        same("RESIZE_BILINEAR", (1, 9, 7, 4), b.ints(9, 7), table="ResizeBilinearOptions",
             halfPixelCenters=True),
        same("RESIZE_NEAREST_NEIGHBOR", (1, 9, 7, 4), b.ints(9, 7),
             table="ResizeNearestNeighborOptions"),
        same("SLICE", (1, 2, 4, 4), b.ints(0, 1, 0, 0), b.ints(1, 2, 4, 4), table="SliceOptions"),
        same("STRIDED_SLICE", (1, 2, 4, 4), b.ints(0, 0, 0, 0), b.ints(1, 4, 4, 4),
             b.ints(1, 2, 1, 1), table="StridedSliceOptions"),
        same("GATHER", (1, 4, 4, 3), b.ints(3, 0, 3), table="GatherOptions", axis=3),
        same("TILE", (1, 8, 4, 4), b.ints(1, 2, 1, 1), table="TileOptions"),
        same("BROADCAST_TO", (1, 4, 4, 4), b.ints(1, 4, 4, 4)),
        same("TRANSPOSE", (1, 4, 4, 4), b.ints(0, 3, 1, 2)),
        same("RESHAPE", (1, 64), b.ints(1, 64), table="ReshapeOptions"),
        same("EXPAND_DIMS", (1, 1, 4, 4, 4), b.ints(1, shape=()), table="ExpandDimsOptions"),
        _op(b, "SQUEEZE", [_op(b, "PACK", [apart[0]], _wide(b, (1, 1, 4, 4), 0.001), "PackOptions",
                               axis=1, valuesCount=1)],
            _wide(b, (1, 4, 4), 0.001), "SqueezeOptions", squeezeDims=[1]),
        _op(b, "CONCATENATION", [x, x], _wide(b, (1, 4, 4, 8), 0.001), "ConcatenationOptions",
            axis=3),
    ]  # fmt: skip


def samples_of_blocks(b: FileBuilder) -> list[int]:
    """SPACE_TO_BATCH_ND, and back."""
    x = _input(b, (1, 4, 4, 4))
    nothing = b.ints(0, 0, 0, 0, shape=(2, 2))
    y = _op(b, "SPACE_TO_BATCH_ND", [x, b.ints(2, 2), nothing], _wide(b, (4, 2, 2, 4)))
    y = _op(b, "TANH", [y], _wide(b, (4, 2, 2, 4), _OWN_SCALE))
    back = _wide(b, (1, 4, 4, 4), _OWN_SCALE)
    return [_op(b, "BATCH_TO_SPACE_ND", [y, b.ints(2, 2), nothing], back)]


def types(b: FileBuilder) -> list[int]:
    """Floats and int8 codes to int16, and back."""
    x = b.input((1, 4, 4, 3), "float32")
    x = _op(b, "QUANTIZE", [x], _wide(b, (1, 4, 4, 3), 0.0003), "QuantizeOptions")
    x = _window(b, x, (1, 4, 4, 5))
    narrow = b.tensor((1, 4, 4, 5), "int8", 0.2, 3)
    narrow = _op(b, "QUANTIZE", [x], narrow, "QuantizeOptions")
    again = _op(b, "QUANTIZE", [narrow], _wide(b, (1, 4, 4, 5), 0.0008), "QuantizeOptions")
    floats = b.tensor((1, 4, 4, 5), "float32")
    return [again, _op(b, "DEQUANTIZE", [x], floats, "DequantizeOptions")]


CASES = {
    case.__name__: case
    for case in (
        convolutions,
        products,
        binaries,
        functions,
        moves,
        samples_of_blocks,
        types,
    )
}
