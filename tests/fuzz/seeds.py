"""Small good files to start from: a case costs milliseconds, thousands fit into a test."""

from __future__ import annotations

import io
import json

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper
from PIL import Image

from tests import opset_nets
from tests.models import ModelBuilder, control_flow, local_function


def small_models() -> list[onnx.ModelProto]:
    """Models that between them use every kind of field and every pass of normalization."""
    every = [convolution(), _matrices(), _shapes(), quantized_pairs(), _two_inputs(), _recurrent()]
    return [*every, control_flow(), local_function()]


def quantizable_models() -> list[onnx.ModelProto]:
    """Those of which some nodes are quantized."""
    return [
        convolution(),
        _matrices(),
        _two_inputs(),
        control_flow(),
        local_function(),
    ]


def convolution() -> onnx.ModelProto:
    """Convolution, BatchNormalization, activations, a pool and a Gemm."""
    b = ModelBuilder()
    x = b.clip(b.batch_norm(b.conv(b.input("image", ["batch", 1, 4, 4]), 1, 2), 2), 0, 6)
    x = b.node("Add", x, b.node("Relu", b.conv(x, 2, 2)))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    b.node("Gemm", x, b.weight(3, 2), b.weight(3), out="logits", transB=1)
    b.output("logits", ["batch", 3])
    return b.build()


def _matrices() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.input("tokens", ["batch", 2, 4])
    y = b.node("Softmax", b.node("MatMul", x, b.node("Transpose", x, perm=[0, 2, 1])), axis=-1)
    y = b.node("Mul", b.node("MatMul", y, x), b.scalar(0.5))
    b.node("LayerNormalization", y, b.weight(4), b.weight(4), out="features", axis=-1)
    b.output("features")
    return b.build()


def _shapes() -> onnx.ModelProto:
    """Sizes that are computed, folded, sliced and resized."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 2, 4, 4])
    ends = b.node("Constant", value=numpy_helper.from_array(np.array([2], np.int64)))
    x = b.node("Slice", b.node("Identity", x), b.ints(0), ends, b.ints(3))
    x = b.node("Pad", x, b.ints(0, 0, 1, 1, 0, 0, 1, 1))
    x = b.node("Resize", x, "", b.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    left, right = b.split(x, [1, 1], axis=1)
    x = b.node("Concat", left, b.node("Expand", right, b.ints(1, 1, 1, 1)), axis=1)
    size = b.node("Concat", b.node("Gather", b.node("Shape", x), b.ints(0)), b.ints(-1), axis=0)
    x = b.node("Tile", b.node("Reshape", x, size), b.ints(1, 2))
    fill = b.node("ConstantOfShape", b.ints(1, 1))
    b.node("Sum", x, fill, b.node("Cast", b.node("Range", *_range(b)), to=1), out="y")
    b.output("y")
    return b.build()


def _range(b: ModelBuilder) -> tuple[str, ...]:
    return tuple(b.constant(np.int64(number)) for number in (0, 1, 1))


def quantized_pairs() -> onnx.ModelProto:
    """A convolution between pairs of QuantizeLinear and DequantizeLinear."""
    b = ModelBuilder()
    scale, zero = b.scalar(0.1), b.constant(np.uint8(3))
    x = b.node("QuantizeLinear", b.input("image", ["batch", 1, 4, 4]), scale, zero)
    weight = b.constant(np.ones((2, 1, 3, 3), np.int8))
    weight = b.node("DequantizeLinear", weight, b.scalar(0.2), b.constant(np.int8(0)))
    x = b.node("Conv", b.node("DequantizeLinear", x, scale, zero), weight, strides=[2, 2])
    b.node("QuantizeLinear", x, scale, zero, out="codes")
    b.node("DequantizeLinear", "codes", scale, zero, out="y")
    b.output("y")
    return b.build()


def fake_quantized() -> onnx.ModelProto:
    """A convolution with quantizers in OpenVINO's form, one of them by channel, one at the end."""
    b = ModelBuilder()
    b.domains["org.openvinotoolkit"] = 1

    def quantizer(x: str, low: npt.ArrayLike, high: npt.ArrayLike, **out: str) -> str:
        ends = [b.constant(np.asarray(end, np.float32)) for end in (low, high)]
        return b.node(
            "FakeQuantize", x, *ends, *ends, domain="org.openvinotoolkit", levels=256, **out
        )

    scale = np.array([0.1, 0.2]).reshape(2, 1, 1, 1)
    x = quantizer(b.input("image", ["batch", 1, 4, 4]), -1.28, 1.27)
    x = b.node("Conv", x, quantizer(b.weight(2, 1, 3, 3), -128 * scale, 127 * scale))
    quantizer(b.node("Relu", x), 0.0, 2.55, out="y")
    b.output("y")
    return b.build()


def trained() -> onnx.ModelProto:
    """A convolution with quantizers of MQBench and QONNX, and a Clip between codes."""
    b = ModelBuilder()
    b.domains["qonnx.custom_op.general"] = 1
    scale, zero = b.scalar(0.1), b.scalar(0.0)
    x = b.input("image", ["batch", 1, 4, 4])
    x = b.node("FixedPerTensorAffine", x, scale, zero, b.ints(-128), b.ints(127))
    steps = b.constant(np.array([0.1, 0.2], np.float32))
    w = b.node("Tanh", b.weight(2, 1, 3, 3))
    w = b.node(
        "FakeQuantizeDSQPerchannel", w, steps, b.constant(np.zeros(2)), quant_min=-8, quant_max=7
    )
    y = b.node("Conv", x, w)
    y = b.node("Quant", y, scale, zero, b.scalar(4.0), domain="qonnx.custom_op.general", signed=1)
    codes = b.node("QuantizeLinear", y, scale, b.constant(np.uint8(3)))
    codes = b.node("Clip", codes, "", b.constant(np.uint8(127)))
    b.output(b.node("DequantizeLinear", codes, scale, b.constant(np.uint8(3)), out="y"))
    return b.build()


def with_ranges() -> onnx.ModelProto:
    """Pairs of MQBench with ranges of codes of 4 and 7 bits, and weights that show theirs."""
    b = ModelBuilder(13)
    scale, zero = b.scalar(0.1), b.constant(np.int8(0))

    def pair(x: str, low: int, high: int) -> str:
        x = b.node("QuantizeLinear", x, scale, zero, quant_min=low, quant_max=high)
        return b.node("DequantizeLinear", x, scale, zero, quant_min=low, quant_max=high)

    x = pair(b.input("image", ["batch", 1, 4, 4]), -64, 63)
    numbers = np.linspace(-0.7, 0.7, 45, dtype=np.float32).reshape(5, 1, 3, 3)
    ends = np.abs(numbers).max(axis=(1, 2, 3)) / 7
    weight = b.node(
        "QuantizeLinear",
        b.constant(numbers),
        b.constant(ends),
        b.constant(np.zeros(5, np.int8)),
        axis=0,
    )
    weight = b.node(
        "DequantizeLinear", weight, b.constant(ends), b.constant(np.zeros(5, np.int8)), axis=0
    )
    y = b.node("Conv", x, weight)
    b.output(b.node("Relu", pair(y, -8, 7), out="y"))
    return b.build()


def models_of_opsets() -> list[onnx.ModelProto]:
    """Operators whose meaning changed, in the first opset that is read, the last, and between."""
    return [opset_nets.net(opset, {"Clip", "Slice", "TopK"}.__contains__) for opset in (7, 12, 24)]


def _two_inputs() -> onnx.ModelProto:
    """Integers, an Embedding, a mask, and an initializer that is also an input."""
    b = ModelBuilder()
    ids = b.input("ids", ["batch", 3], TensorProto.INT64)
    x = b.node("Gather", b.weight(5, 4, name="table"), ids)
    mask = b.node("Unsqueeze", b.input("mask", ["batch", 3]), b.ints(2))
    x = b.node("MatMul", b.node("Mul", x, mask), b.weight(4, 4, name="shared"))
    b.node("MatMul", x, "shared", out="y")
    b.input("table", [5, 4])
    b.output("y", ["batch", 3, 4])
    return b.build()


def _recurrent() -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.input("signal", [2, "batch", 3])
    y = b.node("LSTM", x, b.weight(1, 8, 3), b.weight(1, 8, 2), hidden_size=2)
    b.node("ConvTranspose", b.node("Squeeze", y, b.ints(1)), b.weight(2, 2, 3), out="y")
    b.output("y")
    return b.build()


def sample_files() -> list[bytes]:
    """Archives, stored and compressed, and an array, all for `convolution`."""
    images = np.linspace(-1, 1, 6 * 16, dtype=np.float32).reshape(6, 1, 4, 4)
    labels = np.arange(6)
    stored, packed, single = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez(stored, image=images, labels=labels)
    np.savez_compressed(packed, image=images.astype(np.float64))
    np.save(single, images)
    return [stored.getvalue(), packed.getvalue(), single.getvalue()]


def scale_tables() -> list[bytes]:
    """Tables of Tengine and TensorRT and the three forms of encodings, for `convolution`."""
    old = {"bitwidth": 8, "is_symmetric": "False", "scale": 0.25, "offset": -41, "min": -10.25}
    channels = [old | {"scale": scale, "offset": -128} for scale in (0.1, 0.2)]
    new = {"enc_type": "PER_TENSOR", "dtype": "INT", "bw": 8, "is_sym": False}
    newest = {"output_dtype": "uint8", "y_scale": 0.25, "y_zero_point": 41}
    names = ("image", "logits")
    documents = [
        {
            "version": "0.6.1",
            "activation_encodings": {name: [old | {"max": 53.5}] for name in names},
            "param_encodings": {"constant_1": channels},
        },
        {
            "version": "1.0.0",
            "activation_encodings": [
                {"name": name, "scale": [0.25], "offset": [-41.0], **new} for name in names
            ],
        },
        {"version": "2.0.0", "encodings": [{"name": name, **newest} for name in names]},
    ]
    documents.append({"tensorrt": {"blob_range": {"image": 31.75, "logits": [-1.0, 12.7]}}})
    table = b"image 0.250000 41\nconstant_1 0.00125000 0.25000000 \nlogits 0.100000 0\n"
    cache = b"TRT-8601-EntropyCalibration2\nimage: 3e800000\nlogits: 3dcccccd\n"
    layers = b"Conv_conv_3_param_0 79.5 127.0\n#Conv_conv_4_param_0 1.0\nConv_conv_3 31.75\n"
    return [table, cache, layers, *(json.dumps(document).encode() for document in documents)]


def preprocess_files() -> list[bytes]:
    """Every key between them."""
    return [
        b"format = 1\nmean = [123.675, 116.28, 103.53]\nscale = [0.0171, 0.0175, 0.0174]\n"
        b"[image]\nshorter_side = 256\n",
        b"format = 1\nscale = [0.25]\n[image]\norder = 'bgr'\nresize = 'nearest'\n"
        b"letterbox = [8, 6]\npad = [1, 2, 3]\nfocus = true\n",
        b"format = 1\nmean = [1]\n[image]\nsize = [4, 4]\ncenter_crop = true\n",
    ]


def image_files() -> list[bytes]:
    """A small picture in some formats; what a file is says its content."""
    picture = Image.fromarray(np.arange(8 * 6 * 3, dtype=np.uint8).reshape(8, 6, 3))
    files = []
    for name in ("png", "jpeg", "bmp", "gif", "tiff", "webp", "ppm"):
        buffer = io.BytesIO()
        picture.save(buffer, name)
        files.append(buffer.getvalue())
    return files
