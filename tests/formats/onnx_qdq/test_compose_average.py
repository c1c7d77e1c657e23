"""An AveragePool of codes is a depthwise convolution, of which the engine knows every code."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import intact
from intact.formats.onnx_qdq.executed import profile_kernels
from intact.formats.onnx_qdq.verify import verify_qdq
from intact.formats.onnx_qdq.write import write_qdq
from intact.plan import Overrides, QuantizedGraph
from tests.models import ModelBuilder
from tests.plans import Arrays, calibrate, planned

EVEN: tuple[dict[str, Any], ...] = (
    {"kernel_shape": [2, 2], "strides": [2, 2]},
    {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    {"kernel_shape": [2, 5], "strides": [1, 3], "pads": [0, 2, 1, 0], "count_include_pad": 1},
    {"kernel_shape": [9, 9]},
)
UNEVEN: tuple[dict[str, Any], ...] = (
    {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
)


def net(attributes: dict[str, Any], act: str = "") -> onnx.ModelProto:
    """An AveragePool between convolutions, and what may be fused behind it."""
    b = ModelBuilder()
    x = b.input("image", ["n", 4, 9, 9])
    x = b.node("Conv", x, b.weight(6, 4, 1, 1), name="first")
    x = b.node("AveragePool", x, name="pool", **attributes)
    x = b.node(act, x, name="act") if act else x
    x = b.node("Conv", x, b.weight(4, 6, 1, 1), name="last", out="y")
    b.output("y", ["n", 4, "h", "w"])
    return b.build()


def feeds(scale: float, seed: int = 0) -> Arrays:
    random = np.random.default_rng(seed)
    return {"image": random.normal(0, scale, (8, 4, 9, 9)).astype(np.float32)}


def plan_of(attributes: dict[str, Any], act: str = "", **overrides: Any) -> QuantizedGraph:
    given = Overrides(**overrides) if overrides else None
    return calibrate(planned(net(attributes, act), overrides=given), feeds(1.0))


def written(plan: QuantizedGraph) -> tuple[str, list[str]]:
    """Return what the pool is written as, and the runtime's kernels."""
    model = write_qdq(plan).model
    (kind,) = [node.op_type for node in model.graph if node.name == "pool"]
    kernels = profile_kernels(model, feeds(1.0), runs=1, threads=1)
    return kind, [each.op_type for each in kernels]


def mismatches(plan: QuantizedGraph) -> int:
    batches = [feeds(scale, seed) for seed, scale in enumerate((0.5, 1.0, 2.0))]
    found = verify_qdq(plan, write_qdq(plan), batches)
    assert "pool" in {layer.end.split(".")[0] for layer in found.layers} or "act" in {
        layer.end.split(".")[0] for layer in found.layers
    }
    return sum(layer.mismatches for layer in found.layers)


@pytest.mark.crossed
@pytest.mark.runtime_fact
@pytest.mark.parametrize("act", ["", "Relu"])
@pytest.mark.parametrize("attributes", EVEN)
def test_windows_that_count_alike_are_a_convolution_of_the_engines_codes(
    attributes: dict[str, Any], act: str
) -> None:
    plan = plan_of(attributes, act)
    kind, kernels = written(plan)
    assert kind == "Conv"
    assert kernels.count("QLinearConv") == 3
    assert not {"Conv", "QLinearAveragePool", "Relu"} & set(kernels)
    assert mismatches(plan) == 0


@pytest.mark.parametrize("attributes", UNEVEN)
def test_other_windows_stay_an_average(attributes: dict[str, Any]) -> None:
    plan = plan_of(attributes)
    assert written(plan)[0] == "AveragePool"
    assert mismatches(plan) == 0


@pytest.mark.parametrize("overrides", [{"keep_float": ("pool",)}, {"bits": {"pool": 6}}])
def test_a_float_average_and_one_of_fewer_bits_stay_as_they_are(overrides: dict[str, Any]) -> None:
    plan = plan_of(EVEN[0], **overrides)
    assert written(plan)[0] == "AveragePool"


def test_what_is_written_reads_back_as_an_average() -> None:
    plan = plan_of(EVEN[1])
    result = intact.read_quantized(ir.to_proto(write_qdq(plan).model))
    (pool,) = [node for node in result.plan.graph.nodes if node.op_type == "AveragePool"]
    assert pool.attributes.get_int("count_include_pad") == 1
    assert mismatches(result.plan) == 0
