"""BatchNormalization behind Relu, at the input, behind pools, Concat and Add, in real runtimes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import intact
from intact.targets import load_target
from tests.models import ModelBuilder

SAMPLES = {"image": np.random.default_rng(0).normal(0, 1, (32, 3, 8, 8)).astype(np.float32)}


def network() -> onnx.ModelProto:
    """BatchNormalization behind Relu, as in the document, and wherever else none can be folded."""
    b = ModelBuilder()
    x = b.batch_norm(b.input("image", ["batch", 3, 8, 8]), 3)
    x = b.batch_norm(b.node("Relu", b.conv(x, 3, 8)), 8)
    y = b.batch_norm(b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 8)
    z = b.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.batch_norm(b.node("Concat", y, b.batch_norm(z, 8), axis=1), 16)
    x = b.node("Conv", x, b.weight(8, 16, 1, 1), name="pointwise")  # takes the one in front
    x = b.batch_norm(b.node("Add", x, y), 8)
    x = b.node("Flatten", b.mean(b.node("Relu", x), [2, 3], keepdims=1))
    b.node("Gemm", b.batch_norm(x, 8), b.weight(8, 5), b.weight(5), out="logits", name="dense")
    b.output("logits", ["batch", 5])
    return b.build()


@pytest.mark.parametrize(
    ("target", "format_name", "package", "floor"),
    [
        ("tflite", "tflite", "ai_edge_litert", 20),
        ("tflite-xnnpack", "tflite", "ai_edge_litert", 20),
        ("tflite-micro", "tflite", "tflite_micro", 20),
        ("tflite-micro", "c", "", 20),
        ("tvm", "onnx_integer", "", 15),
        pytest.param("tvm", "tvm", "tvm", 15, marks=pytest.mark.slow),  # it compiles each layer
        ("integer-pow2", "onnx_integer", "", 5),
    ],
)
def test_it_runs_on_integers(
    target: str, format_name: str, package: str, floor: float, tmp_path: Path
) -> None:
    if package:
        pytest.importorskip(package)
    kind = "BatchNormalization"
    asked = [] if kind in load_target(target).expand else [kind]
    result = intact.quantize(network(), SAMPLES, target=target, formats=[format_name], expand=asked)
    plan = result.plan
    assert all(decision.quantized for decision in plan.decisions.values())
    assert len(plan.graph.batch_norms) + len(plan.graph.input_batch_norms) == 7
    assert set(plan.graph.input_batch_norms) == {"pointwise", "dense"}
    result.save(tmp_path / "result")
    found = intact.verify(tmp_path / "result")
    assert [each.mismatches for each in found.outputs] == [0]
    wanted = intact.execute(network(), SAMPLES, executor="float").outputs["logits"]
    given = intact.execute(result, SAMPLES).outputs["logits"]
    error = np.square(given - wanted).sum() / np.square(wanted).sum()
    assert -10 * np.log10(error) > floor


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "ncnn", "integer-pow2", "vta"])
def test_it_stays_one_operator_where_that_runs(target: str) -> None:
    plan = intact.quantize(network(), SAMPLES, target=target, formats=[]).plan
    kinds = [node.op_type for node in plan.graph.nodes]
    assert kinds.count("BatchNormalization") == 7
    assert "Mul" not in kinds


def test_inspect_shows_what_quantize_plans() -> None:
    names = [node.node for node in intact.inspect(network(), target="tflite").nodes]
    plan = intact.quantize(network(), SAMPLES, target="tflite", formats=[]).plan
    assert names == list(plan.decisions)
