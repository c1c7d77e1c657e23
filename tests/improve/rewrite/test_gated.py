"""Factors of channels pass HardSwish and Swish, whose gates read the values without them."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest

from intact.calibrate.method import Method
from intact.engines.session import FloatModel
from intact.graph import Graph, normalize
from intact.improve.rewrite.equalize import equalize
from intact.improve.rewrite.gate import Gate, equalize_measured
from intact.plan import build_plan
from intact.plan.gains import Gain
from intact.targets import load_target
from tests.improve.rewrite.test_bounded import seen_by
from tests.models import ModelBuilder, random_inputs

GATES = ("HardSwish", "Swish")


def gated(kind: str) -> onnx.ModelProto:
    """One channel of eight is far larger than the others, and a depthwise layer reads them."""
    b = ModelBuilder(seed=4, opset=14)
    rng = b.random
    large = np.array([60, 1, 2, 1, 0.5, 1, 1, 2], np.float32)
    first = (rng.normal(size=(8, 3, 1, 1)) * large[:, None, None, None]).astype(np.float32)
    x = b.node("Conv", b.input("image", ["batch", 3, 16, 16]), b.constant(first), name="first")
    for name in ("deep", "last"):
        x = (
            b.node("HardSwish", x)
            if kind == "HardSwish"
            else b.node("Mul", x, b.node("Sigmoid", x))
        )
        group = 8 if name == "deep" else 1
        weight = rng.normal(size=(8, 8 // group, 3, 3))
        if name == "deep":
            weight /= large[:, None, None, None]
        parameters = b.constant(weight.astype(np.float32))
        more = {"out": "y"} if name == "last" else {}
        x = b.node("Conv", x, parameters, name=name, group=group, **more)
    b.output("y")
    return b.build()


def outputs(graph: Graph, model: onnx.ModelProto) -> np.ndarray:
    return FloatModel(graph, threads=1).run(random_inputs(model, batch=4, seed=9))["y"]


@pytest.mark.parametrize("kind", GATES)
def test_gates_read_values_without_the_factors(kind: str) -> None:
    model = gated(kind)
    graph = normalize(model)
    after = equalize(graph, seen_by(graph, model), per_channel=True)
    assert len(after.nodes) > len(graph.nodes)
    np.testing.assert_allclose(outputs(after, model), outputs(graph, model), rtol=1e-4, atol=1e-4)


def test_without_ranges_nothing_is_put_in_front_of_gates() -> None:
    graph = normalize(gated("Swish"))
    assert [str(n.name) for n in equalize(graph).nodes] == [str(n.name) for n in graph.nodes]


def test_a_gate_that_others_read_stays() -> None:
    b = ModelBuilder(seed=4)
    x = b.conv(b.input("image", ["batch", 3, 16, 16]), 3, 8)
    gate = b.node("Sigmoid", x)
    b.node("Add", b.conv(b.node("Mul", x, gate), 8, 8), gate, out="y")
    b.output("y")
    model = b.build()
    graph = normalize(model)
    assert equalize(graph, seen_by(graph, model), per_channel=True).hash == graph.hash


@pytest.mark.parametrize("name", ["onnxruntime", "tflite"])
@pytest.mark.parametrize("kind", GATES)
def test_a_huge_channel_in_front_of_a_depthwise_layer_gains(kind: str, name: str) -> None:
    model, target = gated(kind), load_target(name)
    graph, gains = normalize(model), list[Gain]()
    feeds = [random_inputs(model, batch=4, seed=seed) for seed in range(4)]
    gate = Gate(graph, partial(build_plan, target=target), Method.of(target), feeds, threads=1)
    seen = seen_by(graph, model)
    after = equalize_measured(
        gate, seen, per_channel=True, expanded=target.expand, report=gains.append
    )
    (gain,) = gains
    assert gain.kept
    assert gain.after > gain.before + 3
    assert "HardSigmoid" not in {node.op_type for node in after.nodes} & set(target.expand)


@pytest.mark.parametrize("tokens", [5, 8])
def test_a_gate_between_dense_layers_is_scaled_along_the_last_axis(tokens: int) -> None:
    b = ModelBuilder(seed=4)
    weight = b.random.normal(size=(8, 8)) * [60, 1, 2, 1, 0.5, 1, 1, 2]
    x = b.node("MatMul", b.input("x", ["batch", tokens, 8]), b.constant(weight.astype(np.float32)))
    x = b.node("Mul", x, b.node("Sigmoid", x))
    b.node("MatMul", x, b.constant(b.random.normal(size=(8, 8)).astype(np.float32)), out="y")
    b.output("y")
    model = b.build()
    graph = normalize(model)
    after = equalize(graph, seen_by(graph, model), per_channel=True)
    assert len(after.nodes) == len(graph.nodes) + 1
    np.testing.assert_allclose(outputs(after, model), outputs(graph, model), rtol=1e-4, atol=1e-4)
