"""Every operator that TFLite's targets quantize, from ONNX to the runtime that a target describes.

What the tests of the kernels hold against the runtimes, with an arithmetic that they name, is held
here as the target's file says it: a rule that is wrong or missing there shows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest

from intact.errors import ExportError
from intact.formats.base.report import Verification
from intact.formats.tflite.micro import verify_micro
from intact.formats.tflite.run import Kernels
from intact.formats.tflite.verify import verify_tflite
from intact.plan import QuantizedGraph
from tests.deployment.networks import lowered, written, wrong
from tests.models import ModelBuilder
from tests.plans import calibrate, planned

pytestmark = pytest.mark.runtime_fact("ai-edge-litert")

SHAPE = (6, 8, 8)
"""Of a sample: channels, rows, columns."""

Make = Callable[[ModelBuilder, str], str]


def _conv(groups: int = 1, outputs: int = 12, **attributes: Any) -> Make:
    def make(b: ModelBuilder, x: str) -> str:
        weight = b.weight(outputs, 6 // groups, 3, 3)
        return b.node("Conv", x, weight, b.weight(outputs), group=groups, **attributes)

    return make


def _node(op_type: str, *constants: Any, **attributes: Any) -> Make:
    """A node with constants behind its data, int64 where they are integers."""

    def make(b: ModelBuilder, x: str) -> str:
        given = (np.asarray(each) for each in constants)
        cast = (each if each.dtype.kind == "i" else each.astype(np.float32) for each in given)
        return b.node(op_type, x, *(b.constant(each) for each in cast), **attributes)

    return make


def _with_other(op_type: str) -> Make:
    """An operator on two activations of different scales."""
    return lambda b, x: b.node(op_type, x, b.input("other", ["batch", *SHAPE]))


def _with_channels(op_type: str) -> Make:
    values = np.linspace(-0.7, 0.9, 6, dtype=np.float32).reshape(6, 1, 1)
    return lambda b, x: b.node(op_type, x, b.constant(values))


def _fused(op_type: str) -> Make:
    return lambda b, x: b.clip(b.node(op_type, x, b.input("other", ["batch", *SHAPE])), 0, 1.3)


def _dense(b: ModelBuilder, x: str) -> str:
    return b.node("Gemm", b.node("Flatten", x), b.weight(40, 384), b.weight(40), transB=1)


def _matmul(b: ModelBuilder, x: str) -> str:
    return b.node("MatMul", x, b.weight(8, 9))


def _product(b: ModelBuilder, x: str) -> str:
    return b.node("MatMul", x, b.input("other", ["batch", *SHAPE]))


def _product_around_zero(b: ModelBuilder, x: str) -> str:
    """The right factor has zero point 0."""
    return b.node("MatMul", x, b.node("Tanh", b.input("other", ["batch", *SHAPE])))


def _rsqrt(b: ModelBuilder, x: str) -> str:
    positive = b.node("Add", b.node("Relu", x), b.scalar(0.5))
    return b.node("Reciprocal", b.node("Sqrt", positive))


def _resize(mode: str, scale: float, transformation: str, **attributes: Any) -> Make:
    def make(b: ModelBuilder, x: str) -> str:
        scales = b.constant(np.array([1, 1, scale, scale], np.float32))
        attributes["coordinate_transformation_mode"] = transformation
        return b.node("Resize", x, "", scales, mode=mode, **attributes)

    return make


def _parts(b: ModelBuilder, x: str) -> str:
    left, middle, right = b.split(x, [1, 2, 3], 1)
    return b.node("Concat", right, left, b.node("Tanh", middle), axis=1)


def _moved(b: ModelBuilder, x: str) -> str:
    x = b.node("Reshape", x, b.ints(0, 3, 2, 64))
    x = b.with_axes("Squeeze", b.with_axes("Unsqueeze", x, [1]), [1])
    return b.node("Transpose", x, perm=[0, 3, 1, 2])


def _requantized(b: ModelBuilder, x: str) -> str:
    return b.node("Concat", x, b.node("Sigmoid", x), axis=1)


CASES: dict[str, Make] = {
    "conv": _conv(pads=[1] * 4),
    "conv_pads_before": _conv(pads=[1, 1, 0, 0], strides=[2, 2]),
    "conv_valid": _conv(),
    "conv_grouped": _conv(2, pads=[1] * 4),
    "conv_depthwise": _conv(6, pads=[1] * 4),
    "conv_depthwise_strided": _conv(6, pads=[0, 0, 1, 1], strides=[2, 2]),
    "conv_dilated": _conv(dilations=[2, 2], pads=[2] * 4),
    "conv_depthwise_dilated": _conv(6, dilations=[2, 2], pads=[2] * 4),
    "conv_transposed": lambda b, x: b.node(
        "ConvTranspose", x, b.weight(6, 5, 3, 3), b.weight(5), strides=[2, 2], pads=[0, 0, 1, 1]
    ),
    "conv_1d": lambda b, x: b.node(
        "Conv", b.node("Reshape", x, b.ints(0, 6, 64)), b.weight(8, 6, 3), pads=[1, 1]
    ),
    "fully_connected": _dense,
    "fully_connected_matmul": _matmul,
    "batch_matmul": _product,
    "batch_matmul_around_zero": _product_around_zero,
    "batch_matmul_constant": lambda b, x: b.node("MatMul", x, b.weight(6, 8, 9)),
    "add": _with_other("Add"),
    "add_channels": _with_channels("Add"),
    "add_clipped": _fused("Add"),
    "sub": _with_other("Sub"),
    "sub_channels": _with_channels("Sub"),
    "mul": _with_other("Mul"),
    "mul_channels": _with_channels("Mul"),
    "mul_clipped": _fused("Mul"),
    "minimum": _with_other("Min"),
    "maximum": _with_other("Max"),
    "average_pool": _node("AveragePool", kernel_shape=[3, 3], strides=[2, 2]),
    "average_pool_same": _node("AveragePool", kernel_shape=[3, 3], pads=[1] * 4),
    "average_pool_counting": _node(
        "AveragePool", kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1
    ),
    "max_pool": _node("MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
    "max_pool_same": _node("MaxPool", kernel_shape=[3, 3], pads=[1] * 4),
    "global_average": _node("GlobalAveragePool"),
    "global_max": _node("GlobalMaxPool"),
    "mean": lambda b, x: b.mean(x, [2], keepdims=1),
    "mean_of_channels": lambda b, x: b.mean(x, [1], keepdims=0),
    "sum": lambda b, x: b.with_axes("ReduceSum", x, [2, 3], keepdims=0),
    "reduce_max": lambda b, x: b.with_axes("ReduceMax", x, [2], input_since=18, keepdims=0),
    "reduce_min": lambda b, x: b.with_axes("ReduceMin", x, [3], input_since=18, keepdims=1),
    "softmax": _node("Softmax", axis=-1),
    "softmax_of_channels": _node("Softmax", axis=1),
    "log_softmax": _node("LogSoftmax", axis=-1),
    "sigmoid": _node("Sigmoid"),
    "tanh": _node("Tanh"),
    "relu": _node("Relu"),
    "relu6": _node("Clip", 0.0, 6.0),
    "relu_n1_to_1": _node("Clip", -1.0, 1.0),
    "clip": _node("Clip", -0.7, 0.9),
    "leaky_relu": _node("LeakyRelu", alpha=0.13),
    "leaky_relu_negative": _node("LeakyRelu", alpha=-0.4),
    "prelu": _node("PRelu", np.linspace(-0.3, 0.4, 6).reshape(6, 1, 1)),
    "hard_swish": _node("HardSwish"),
    "gelu": _node("Gelu"),
    "gelu_tanh": _node("Gelu", approximate="tanh"),
    "elu": _node("Elu"),
    "elu_low": _node("Elu", alpha=0.3),
    "average_in_parts": _node(
        "AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 2]
    ),
    "average_rounded_up": _node(
        "AveragePool", kernel_shape=[3, 3], strides=[4, 4], pads=[1] * 4, ceil_mode=1
    ),
    "average_counting_rounded_up": _node(
        "AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4,
        ceil_mode=1, count_include_pad=1,
    ),
    "maximum_rounded_up": _node(
        "MaxPool", kernel_shape=[3, 3], strides=[4, 4], pads=[1] * 4, ceil_mode=1
    ),
    "rsqrt": _rsqrt,
    "parts": _parts,
    "pad": _node("Pad", [0, 0, 1, 2, 0, 1, 0, 3]),
    "moved": _moved,
    "slice": _node("Slice", [1, 7], [6, -9], [1, 3], [1, -2]),
    "gather": _node("Gather", [4, 0, 0, 5], axis=1),
    "tile": _node("Tile", [1, 1, 2, 1]),
    "expand": lambda b, x: b.node("Expand", b.mean(x, [2], keepdims=1), b.ints(1, 6, 3, 8)),
    "nearest": _resize("nearest", 2, "asymmetric", nearest_mode="floor"),
    "nearest_half": _resize("nearest", 1.5, "half_pixel", nearest_mode="round_prefer_ceil"),
    "bilinear": _resize("linear", 2, "asymmetric"),
    "bilinear_half": _resize("linear", 1.5, "half_pixel"),
    "bilinear_corners": _resize("linear", 1.5, "align_corners"),
    "depth_to_space": lambda b, x: b.node(
        "DepthToSpace", b.node("Concat", x, x, axis=1), blocksize=2
    ),
    "space_to_depth": _node("SpaceToDepth", blocksize=2),
    "requantized": _requantized,
}  # fmt: skip


@cache
def _model(name: str) -> onnx.ModelProto:
    b = ModelBuilder(20)
    b.output(CASES[name](b, b.input("image", ["batch", *SHAPE])))
    return b.build()


def _feeds(model: onnx.ModelProto, count: int, scale: float, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        value.name: (random.normal(0.3, scale / (1 + slot), (count, *SHAPE))).astype(np.float32)
        for slot, value in enumerate(model.graph.input)
    }


def _micro(plan: QuantizedGraph, feeds: dict[str, np.ndarray]) -> Verification:
    return verify_micro(plan, written(lowered(plan)), [feeds])


def _litert(kernels: Kernels) -> Callable[[QuantizedGraph, dict[str, np.ndarray]], Verification]:
    return lambda plan, feeds: verify_tflite(plan, written(lowered(plan)), [feeds], kernels)


RUNTIMES = {
    "tflite": _litert(Kernels.REF),
    "tflite-xnnpack": _litert(Kernels.XNNPACK),
    "tflite-micro": _micro,
}


ABSENT = {
    "tflite": {"sum"},
    "tflite-xnnpack": set[str](),
    "tflite-micro": set[str](),
}
"""What a runtime has no kernel for, or a wrong one."""


@pytest.mark.parametrize(
    ("name", "target"),
    [(name, target) for target in RUNTIMES for name in CASES if name not in ABSENT[target]],
)
def test_bits(name: str, target: str) -> None:
    model = _model(name)
    for scale in (0.37, 4.3):
        plan = calibrate(planned(model, target), _feeds(model, 16, scale, 1))
        assert all(decision.quantized for decision in plan.decisions.values())
        found = RUNTIMES[target](plan, _feeds(model, 16, scale, 2))
        assert found.in_float == {}
        assert wrong(found.layers) == []
        (output,) = found.outputs
        assert output.mismatches == 0
        assert output.values >= 16 * 6


def test_the_reason_of_a_refusal_by_micro_is_in_the_message(
    capfd: pytest.CaptureFixture[str],
) -> None:
    b = ModelBuilder(20)
    x = b.input("image", ["batch", *SHAPE])
    b.output(b.node("Relu", b.node("Pow", b.node("Relu", x), b.scalar(2.5))))
    model = b.build()
    feeds = _feeds(model, 4, 0.37, 1)
    with pytest.raises(ExportError, match=r"refuses the file: .*POW.*; keep what it lacks"):
        _micro(calibrate(planned(model, "tflite-micro"), feeds), feeds)
    assert capfd.readouterr().err == ""
