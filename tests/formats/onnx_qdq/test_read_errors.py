"""Quantized models that a plan cannot hold are refused in one line that names the node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from intact.errors import ModelError
from tests.formats.onnx_qdq.pairs import PairBuilder, read
from tests.models import residual_net

Z = np.uint8(0)


def start(b: PairBuilder) -> str:
    return b.input("x", ["n", 4, 6, 6])


def dynamic(b: PairBuilder) -> None:
    node = helper.make_node("DynamicQuantizeLinear", [start(b)], ["q", "s", "z"], name="culprit")
    b.nodes.append(node)
    b.node("DequantizeLinear", "q", "s", "z", out="y")


def integer_product(b: PairBuilder) -> None:
    codes = b.quantize(start(b), 0.1, Z)
    b.node(
        "ConvInteger", codes, b.constant(np.zeros((1, 4, 1, 1), np.int8)), name="culprit", out="i"
    )
    b.node("Cast", "i", to=TensorProto.FLOAT, out="y")


def computed_scale(b: PairBuilder) -> None:
    x = start(b)
    scale = b.node("ReduceMax", x, keepdims=0)
    codes = b.node("QuantizeLinear", x, scale, b.constant(Z), name="culprit")
    b.node("DequantizeLinear", codes, scale, b.constant(Z), out="y")


def by_block(b: PairBuilder) -> None:
    codes = b.constant(np.zeros((4, 6, 1, 1), np.int8))
    scale = b.constant(np.ones((4, 3, 1, 1), np.float32))
    weight = b.node("DequantizeLinear", codes, scale, axis=1, block_size=2)
    b.node("Conv", b.pair(b.input("x", ["n", 6, 3, 3])), weight, out="y", name="culprit")


def float8(b: PairBuilder) -> None:
    zero = b.constant(np.zeros((), ml_dtypes.float8_e4m3fn))
    codes = b.node("QuantizeLinear", start(b), b.scalar(0.1), zero, name="culprit")
    b.node("DequantizeLinear", codes, b.scalar(0.1), zero, out="y")


def half_scale(b: PairBuilder) -> None:
    x = b.node("Cast", start(b), to=TensorProto.FLOAT16)
    scale = b.constant(np.float16(0.1))
    codes = b.node("QuantizeLinear", x, scale, b.constant(Z), name="culprit")
    b.node("Cast", b.node("DequantizeLinear", codes, scale, b.constant(Z)), to=1, out="y")


def another_scale_on_the_way_back(b: PairBuilder) -> None:
    b.dequantize(b.quantize(start(b), 0.1, Z), 0.2, Z, out="y", name="culprit")


def computing_on_codes(b: PairBuilder) -> None:
    codes = b.node("Cast", b.quantize(start(b), 0.1, Z), to=TensorProto.INT32, name="culprit")
    b.node("Cast", codes, to=TensorProto.FLOAT, out="y")


def computed_codes(b: PairBuilder) -> None:
    codes = b.node("Cast", start(b), to=TensorProto.UINT8)
    b.dequantize(codes, 0.1, Z, out="y", name="culprit")


def scale_of(number: Any) -> Callable[[PairBuilder], None]:
    def build(b: PairBuilder) -> None:
        codes = b.quantize(start(b), number, Z, name="culprit")
        b.dequantize(codes, number, Z, out="y")

    return build


def nan_weight(b: PairBuilder) -> None:
    weight = b.constant(np.full((4, 4, 1, 1), np.nan, np.float32))
    codes = b.quantize(weight, 0.1, np.int8(0), name="culprit")
    b.node("Conv", b.pair(start(b)), b.dequantize(codes, 0.1, np.int8(0)), out="y")


def too_many_scales(b: PairBuilder) -> None:
    codes = b.constant(np.zeros((4, 4), np.int8))
    scale = np.ones(3, np.float32)
    weight = b.dequantize(codes, scale, np.zeros(3, np.int8), axis=0, name="culprit")
    b.node("MatMul", b.pair(b.input("x", ["n", 4])), weight, out="y")


def axis_that_is_not_there(b: PairBuilder) -> None:
    codes = b.constant(np.zeros((4, 4), np.int8))
    scale = np.ones(4, np.float32)
    weight = b.dequantize(codes, scale, np.zeros(4, np.int8), axis=5, name="culprit")
    b.node("MatMul", b.pair(b.input("x", ["n", 4])), weight, out="y")


def zero_points_of_another_length(b: PairBuilder) -> None:
    codes = b.constant(np.zeros((4, 4), np.int8))
    scale, zero = np.ones(4, np.float32), np.zeros(3, np.int8)
    weight = b.dequantize(codes, scale, zero, axis=0, name="culprit")
    b.node("MatMul", b.pair(b.input("x", ["n", 4])), weight, out="y")


def too_few_inputs(b: PairBuilder) -> None:
    b.domains["com.microsoft"] = 1
    x = b.node("DequantizeLinear", start(b), name="culprit", domain="com.microsoft")
    b.node("Relu", x, out="y")


def attribute_of(name: str, value: Any) -> Callable[[PairBuilder], None]:
    def build(b: PairBuilder) -> None:
        b.domain = "com.microsoft"  # whose operators are not checked when a model is loaded
        codes = b.constant(np.zeros((4, 4), np.int8))
        scale, zero = np.ones(4, np.float32), np.zeros(4, np.int8)
        weight = b.dequantize(codes, scale, zero, **{name: value}, name="culprit")
        b.node("MatMul", b.pair(b.input("x", ["n", 4])), weight, out="y")

    return build


def quantized_integers(b: PairBuilder) -> None:
    weight = b.constant(np.zeros((4, 4), np.int32))
    codes = b.quantize(weight, 0.1, np.int8(0), name="culprit")
    b.node("MatMul", b.pair(b.input("x", ["n", 4])), b.dequantize(codes, 0.1, np.int8(0)), out="y")


def channels_last(b: PairBuilder) -> None:
    b.domains["com.microsoft"] = 1
    scale, zero = b.scalar(0.1), b.constant(Z)
    x = b.quantize(start(b), 0.1, Z)
    inputs = [x, scale, zero, scale, zero]
    y = b.node(
        "QLinearGlobalAveragePool",
        *inputs,
        domain="com.microsoft",
        name="culprit",
        channels_last=1,
    )
    b.dequantize(y, 0.1, Z, out="y")


def softmax_of_another_opset(b: PairBuilder) -> None:
    b.domains["com.microsoft"] = 1
    scale, zero = b.scalar(0.1), b.constant(Z)
    x = b.quantize(start(b), 0.1, Z)
    inputs = [x, scale, zero, scale, zero]
    y = b.node("QLinearSoftmax", *inputs, domain="com.microsoft", name="culprit", axis=1, opset=11)
    b.dequantize(y, 0.1, Z, out="y")


CASES: tuple[tuple[Callable[[PairBuilder], None], int, str], ...] = (
    (dynamic, 17, "quantized while it runs"),
    (integer_product, 17, "quantized while it runs"),
    (computed_scale, 17, "is computed by the model"),
    (by_block, 21, "blocks are read of MatMul, Gemm and Gather"),
    (float8, 19, "codes are of type float8"),
    (half_scale, 21, "scales are float16"),
    (another_scale_on_the_way_back, 17, "another scale"),
    (computing_on_codes, 17, "computes on the codes"),
    (computed_codes, 17, "reads integers that node"),
    (scale_of(0.0), 17, "a channel of zeros takes any positive scale"),
    (scale_of(-0.1), 17, "a channel of zeros takes any positive scale"),
    (scale_of(np.inf), 17, "a channel of zeros takes any positive scale"),
    (scale_of(np.nan), 17, "a channel of zeros takes any positive scale"),
    (nan_weight, 17, "is NaN"),
    (too_many_scales, 17, "3 scales along axis 0"),
    (axis_that_is_not_there, 17, "axis 5 of a tensor of 2"),
    (zero_points_of_another_length, 17, "4 scales and 3 zero points"),
    (attribute_of("axis", "0"), 17, "axis is no integer"),
    (attribute_of("block_size", 0.5), 21, "block_size is no integer"),
    (attribute_of("output_dtype", 99), 23, "output_dtype is 99"),
    (attribute_of("output_dtype", 10), 23, "it gives float16"),
    (quantized_integers, 17, "cannot quantize values of int32"),
    (too_few_inputs, 17, "1 inputs and 1 outputs"),
    (channels_last, 17, "channels_last is not 0"),
    (softmax_of_another_opset, 17, "the Softmax of opset 11"),
)


@pytest.mark.parametrize(("build", "opset", "reason"), CASES)
def test_what_cannot_be_read(build: Callable[[PairBuilder], None], opset: int, reason: str) -> None:
    b = PairBuilder(opset)
    build(b)
    b.output("y")
    with pytest.raises(ModelError, match="'culprit'") as caught:
        read(b.build())
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_float_model_is_refused() -> None:
    with pytest.raises(ModelError, match="not quantized"):
        read(residual_net())


def test_a_pair_that_leads_nowhere_is_no_quantization() -> None:
    b = PairBuilder()
    x = start(b)
    b.pair(x, 0.1, Z)
    b.node("Relu", x, out="y")
    b.output("y")
    with pytest.raises(ModelError, match="not quantized"):
        read(b.build())


def test_a_damaged_file_is_refused() -> None:
    with pytest.raises(ModelError):
        read(onnx.ModelProto())
