"""What users ask of ``.tflite`` files: LayerNormalization in either form, scales of others kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType

from intact.formats.onnx_qdq.read import read_qdq
from intact.formats.tflite.micro import verify_micro
from intact.formats.tflite.run import Kernels
from intact.formats.tflite.verify import verify_tflite
from intact.graph import load_model, normalize
from intact.graph.graph import Graph
from intact.graph.passes import expand
from intact.plan import QuantizedGraph, build_plan
from intact.program.deployed import deployed_program
from intact.targets import load_target
from tests.deployment.networks import lowered, written, wrong
from tests.formats.onnx_qdq.test_read_runtime import quantized
from tests.formats.tflite.files import model_of, operators_of
from tests.models import ModelBuilder, random_inputs, residual_net
from tests.plans import Arrays, calibrate

PAIRS = [("tflite", Kernels.REF), ("tflite-xnnpack", Kernels.XNNPACK)]


def normed() -> onnx.ModelProto:
    b = ModelBuilder(17)
    x = b.node("MatMul", b.input("x", ["batch", 7, 24]), b.weight(24, 32))
    scale = b.constant(np.linspace(0.5, 1.5, 32, dtype=np.float32))
    x = b.node("LayerNormalization", x, scale, b.weight(32), axis=-1, name="norm", out="normed")
    b.output(b.node("MatMul", x, b.weight(32, 5)))
    return b.build()


def tokens(count: int, seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    return {"x": random.normal(size=(count, 7, 24)).astype(np.float32)}


def plan_of(graph: Graph, target: str) -> QuantizedGraph:
    return calibrate(build_plan(graph, load_target(target)), tokens(32, 1))


@pytest.mark.parametrize(("target", "kernels"), PAIRS)
def test_layer_normalization_is_floats_between_integers(target: str, kernels: Kernels) -> None:
    plan = plan_of(normalize(normed()), target)
    content = written(lowered(plan))
    found = Counter(operators_of(content))
    assert found["FULLY_CONNECTED"] == 2
    assert (found["DEQUANTIZE"], found["QUANTIZE"]) == (1, 1)
    assert found["RSQRT"] == 1
    compared = verify_tflite(plan, content, [tokens(16, 2)], kernels)
    assert wrong(compared.layers) in ([], ["normed_quantized"])  # where floats meet integers
    assert sum(layer.values for layer in compared.layers) > 16 * 7 * 32
    assert compared.outputs[0].largest <= 1


@pytest.mark.parametrize(("target", "kernels"), PAIRS)
def test_layer_normalization_is_integers_on_request(target: str, kernels: Kernels) -> None:
    plan = plan_of(expand.expand(normalize(normed()), ["LayerNormalization"]), target)
    content = written(lowered(plan))
    found = Counter(operators_of(content))
    assert not {"DEQUANTIZE", "QUANTIZE"} & set(found)
    assert (found["MEAN"], found["RSQRT"]) == (2, 1)
    compared = verify_tflite(plan, content, [tokens(16, 2)], kernels)
    assert compared.in_float == {}
    assert len(compared.layers) > 8
    assert wrong(compared.layers) == wrong(compared.end_to_end) == []
    assert [each.mismatches for each in compared.outputs] == [0]


def test_layer_normalization_on_a_microcontroller() -> None:
    graph = expand.expand(normalize(normed()), ["LayerNormalization"])
    plan = plan_of(graph, "tflite-micro")
    found = verify_micro(plan, written(lowered(plan)), [tokens(16, 2)])
    assert [(each.mismatches, each.values) for each in found.outputs] == [(0, 16 * 7 * 5)]


@pytest.mark.parametrize("activations", [QuantType.QUInt8, QuantType.QInt8])
def test_scales_of_quantized_onnx_are_those_of_the_file(activations: QuantType) -> None:
    """Of a model that ONNX Runtime quantized: unsigned codes become signed ones."""
    model = quantized("residual", QuantFormat.QDQ, activations, QuantType.QInt8)
    plan = read_qdq(model, load_target("tflite"))
    content = written(deployed_program(plan, float_operations=True))
    stored: set[float] = set()
    for tensor in model_of(content).subgraphs[0].tensors:
        scales = None if tensor.quantization is None else tensor.quantization.scale
        stored.update(() if scales is None else (float(scale) for scale in scales))
    constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    kept: set[float] = set()
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            kept.update(float(scale) for scale in constants[node.input[1]].reshape(-1))
    assert len(kept) > 20
    assert kept <= stored
    feeds = random_inputs(residual_net(), batch=40, seed=9)
    found = verify_tflite(plan, content, [feeds])
    assert len(found.layers) > 5
    assert wrong(found.layers) == wrong(found.end_to_end) == []
    assert [each.mismatches for each in found.outputs] == [0]


@pytest.mark.parametrize("name", ["mlperf_vww", "mobilenetv2-raw"])
def test_no_transposes_are_left_inside_of_the_zoos_networks(name: str, zoo: Path) -> None:
    graph = normalize(load_model(zoo / f"{name}.onnx"))
    (value,) = graph.inputs
    shape = [size for size in value.shape or () if isinstance(size, int)]
    data = np.random.default_rng(0).random((4, *shape), dtype=np.float32)
    plan = calibrate(build_plan(graph, load_target("tflite")), {str(value.name): data})
    operators = operators_of(written(lowered(plan)))
    assert "CONV_2D" in operators
    assert not {"TRANSPOSE", "QUANTIZE", "DEQUANTIZE"} & set(operators)
