"""Activations that only zero points stand for are in the float model again, and in no code."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)

from intact.config import PerTensor, QuantState, TensorQuantConfig, make_policy
from intact.engines.integer import IntegerEngine
from intact.formats.base.clamps import is_clamped_only
from intact.formats.onnx_qdq.read import read_qdq
from intact.formats.onnx_qdq.write import write_qdq
from intact.formats.openvino.write import write_openvino
from intact.formats.tflite.read import read_tflite
from intact.numerics.metrics import sqnr_db
from intact.plan import QuantizedGraph
from intact.program.lower import lower
from intact.targets import load_target
from tests.formats.onnx_qdq.pairs import PairBuilder, assert_exact, finish, image, proto, read
from tests.formats.tflite.read_layers import conv
from tests.formats.tflite.read_layers import image as image_codes
from tests.formats.tflite.small_files import FileBuilder
from tests.models import ModelBuilder, random_inputs, run_model


def clamped_net() -> onnx.ModelProto:
    """Relu and Clip behind a convolution, a sum and a dense layer, none of which may be lost."""
    b = ModelBuilder(17)
    x = b.conv(b.input("x", ["batch", 4, 8, 8]), 4, 8)
    left = b.node("Relu", x)
    right = b.node("Clip", b.conv(left, 8, 8), b.scalar(0.0), b.scalar(0.5))
    x = b.node("Relu", b.node("Add", b.conv(right, 8, 8), left))
    x = b.node("Flatten", b.node("GlobalAveragePool", b.node("MaxPool", x, kernel_shape=[2, 2])))
    x = b.node("Relu", b.node("Gemm", x, b.weight(16, 8), b.weight(16), transB=1))
    b.node("Gemm", x, b.weight(5, 16), b.weight(5), out="y", transB=1)
    b.output("y", ["batch", 5])
    return b.build()


class Batches(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, model: onnx.ModelProto) -> None:
        self._batches = iter([random_inputs(model, batch=8, seed=seed) for seed in range(4)])

    def get_next(self) -> Any:
        return next(self._batches, None)


@functools.cache
def quantized(form: QuantFormat, kind: QuantType, method: CalibrationMethod) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "float.onnx", Path(folder) / "quantized.onnx"
        onnx.save(clamped_net(), before)
        quantize_static(
            before,
            after,
            Batches(clamped_net()),
            quant_format=form,
            activation_type=kind,
            weight_type=QuantType.QInt8,
            reduce_range=kind == QuantType.QInt8,  # see test_read_runtime
            calibrate_method=method,
            per_channel=True,
        )
        return onnx.load(after)


def float_error(plan: QuantizedGraph, model: onnx.ModelProto) -> float:
    """How far the float model of a plan is from another one, dB, on new inputs."""
    feeds = random_inputs(model, batch=32, seed=9)
    return sqnr_db(run_model(model, feeds)["y"], run_model(proto(plan.graph.model), feeds)["y"])


@pytest.mark.crossed
@pytest.mark.parametrize("kind", [QuantType.QUInt8, QuantType.QInt8])
@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
@pytest.mark.parametrize("method", [CalibrationMethod.MinMax, CalibrationMethod.Percentile])
def test_the_float_model_of_an_import_is_the_one_that_was_quantized(
    form: QuantFormat, kind: QuantType, method: CalibrationMethod
) -> None:
    model = quantized(form, kind, method)
    assert not {"Relu", "Clip"} & {node.op_type for node in model.graph.node}
    plan, written = assert_exact(model)
    assert float_error(plan, clamped_net()) > 25
    assert not {"Relu", "Clip"} & {node.op_type for node in proto(written.model).graph.node}


def test_a_plan_keeps_its_clamps_on_disk_and_none_in_what_is_written_again(tmp_path: Path) -> None:
    model = quantized(QuantFormat.QDQ, QuantType.QUInt8, CalibrationMethod.MinMax)
    plan = read(model)
    onnx.save(proto(plan.graph.model), tmp_path / "float.onnx")
    stored = onnx.load(tmp_path / "float.onnx")
    assert [node.op_type for node in stored.graph.node].count("Clip") == 4
    first = proto(write_qdq(plan).model)
    again = proto(write_qdq(read(first)).model)
    assert again == first


CLAMPED_BY_ITSELF = {
    "relu": lambda b, x: b.node("Relu", x),
    "clip": lambda b, x: b.node("Clip", x, b.scalar(0.0), b.scalar(3.0)),
    "sigmoid": lambda b, x: b.node("Sigmoid", x),
    "square": lambda b, x: b.node("Mul", x, x),
    "power": lambda b, x: b.node("Pow", x, b.scalar(2.0)),
    "pool": lambda b, x: b.node("AveragePool", b.node("Abs", x), kernel_shape=[2, 2]),
    "sum": lambda b, x: b.node("Add", b.node("Exp", x), b.scalar(0.5)),
    "join": lambda b, x: b.node("Concat", b.node("Relu", x), b.node("Abs", x), axis=1),
}  # fmt: skip


@pytest.mark.parametrize("kind", CLAMPED_BY_ITSELF)
def test_what_is_never_negative_gets_no_clamp(kind: str) -> None:
    def clips(negative: bool) -> int:
        b = PairBuilder()
        x = b.node("Conv", b.pair(image(b)), b.stored((2, 4, 1, 1)))
        x = CLAMPED_BY_ITSELF[kind](b, x)
        x = b.node("Neg", x) if negative else x
        model = finish(b, b.pair(x, 0.02, np.uint8(0)))
        nodes = proto(read(model).graph.model).graph.node
        return sum("clamped" in node.name for node in nodes)

    assert clips(negative=False) == 0
    assert clips(negative=True) == 1


@pytest.mark.parametrize(("zero", "clips"), [(0, 1), (1, 0), (117, 0), (255, 0)])
def test_only_codes_that_begin_at_zero_clamp(zero: int, clips: int) -> None:
    b = PairBuilder()
    x = b.node("Conv", b.pair(image(b)), b.stored((2, 4, 1, 1)))
    plan = read(finish(b, b.pair(x, 0.02, np.uint8(zero))))
    found = [node for node in plan.graph.nodes if node.op_type == "Clip"]
    assert len(found) == clips


def test_inputs_and_what_only_moves_them_are_left_alone() -> None:
    b = PairBuilder()
    x = b.pair(image(b), 0.02, np.uint8(0))
    x = b.pair(b.node("Transpose", x, perm=[0, 2, 3, 1]), 0.02, np.uint8(0))
    plan, _ = assert_exact(finish(b, b.pair(b.node("Sigmoid", x), 0.01, np.uint8(0), out="y")))
    assert [node.op_type for node in plan.graph.nodes if node.op_type == "Clip"] == []


def test_each_of_several_readers_is_clamped_as_its_own_codes_do() -> None:
    b = PairBuilder()
    x = b.node("Conv", b.pair(image(b)), b.stored((2, 4, 1, 1)), out="sums")
    left = b.node("Sigmoid", b.pair(x, 0.02, np.uint8(0)))
    right = b.node("Tanh", b.pair(x, 0.05, np.uint8(120)))
    model = finish(b, left, right, "sums")
    plan, written = assert_exact(model)
    assert [node.op_type for node in plan.graph.nodes].count("Clip") == 1
    assert "Clip" not in {node.op_type for node in proto(written.model).graph.node}
    found = run_model(proto(plan.graph.model), random_inputs(model))
    assert found["sums"].min() < 0  # what is read in float is not clamped


@pytest.mark.parametrize("op_type", ["Pow", "Add", "Clip"])
def test_a_constant_that_is_no_number_says_nothing(op_type: str) -> None:
    text = ir.Value(name="text", const_value=ir.StringTensor([b"text"], shape=ir.Shape([1])))
    source = ir.Node("", "Relu" if op_type == "Add" else "Neg", [ir.Value(name="x")])
    node = ir.Node("", op_type, [source.outputs[0], text])
    config = TensorQuantConfig(
        policy=make_policy(PerTensor(), symmetric=False),
        bits=8,
        quant_min=0,
        quant_max=255,
        scale=np.float32(0.1),
        offset=np.int64(0),
        state=QuantState.ACTIVATED,
    )
    assert is_clamped_only(node.outputs[0], config, set())


def fake_quantized() -> onnx.ModelProto:
    b = ModelBuilder(17)
    b.domains["org.openvinotoolkit"] = 1

    def fake(x: str, low: float, high: float, levels: int = 256) -> str:
        ends = [b.scalar(low), b.scalar(high)]
        return b.node("FakeQuantize", x, *ends, *ends, domain="org.openvinotoolkit", levels=levels)

    x = fake(b.input("x", ["batch", 4, 6, 6]), -1.28, 1.27)
    x = fake(b.node("Conv", x, fake(b.weight(3, 4, 3, 3), -0.5, 0.5, 255)), 0.0, 2.55)
    b.node("Conv", x, fake(b.weight(2, 3, 1, 1), -0.5, 0.5, 255), out="y")
    b.output("y")
    return b.build()


def test_a_range_of_fake_quantize_from_0_on_clamps_too() -> None:
    model = fake_quantized()
    plan = read_qdq(model, load_target("openvino"))
    (clip,) = (node for node in plan.graph.nodes if node.op_type == "Clip")
    assert clip.inputs[2] is not None
    assert clip.inputs[2].const_value.numpy() == pytest.approx(2.55)  # type: ignore[union-attr]
    written = proto(write_openvino(plan).model)
    assert sorted(node.op_type for node in written.graph.node) == sorted(
        node.op_type for node in model.graph.node
    )
    assert proto(write_openvino(read_qdq(written, load_target("openvino"))).model) == (written)


@pytest.mark.parametrize("zero", [-128, -100])
def test_a_tflite_file_without_its_activation_clamps_where_its_codes_do(zero: int) -> None:
    b = FileBuilder()
    y = conv(b, image_codes(b), (1, 8, 8, 6), zero=zero, scale=0.5)
    content = b.build(conv(b, y, (1, 8, 8, 3), scale=1.5))
    plan = read_tflite(content, load_target("tflite"))
    assert [node.op_type for node in plan.graph.nodes].count("Clip") == (zero == -128)
    if zero == -128:
        feeds = random_inputs(proto(plan.graph.model), batch=1)
        floats = run_model(proto(plan.graph.model), feeds)
        for name, codes in IntegerEngine(lower(plan)).run(feeds).outputs.items():
            assert sqnr_db(codes, floats[name]) > 15
