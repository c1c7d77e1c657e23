"""Errors of layers three ways, against numpy on a net of two layers."""

from __future__ import annotations

import json
import math

import numpy as np
import onnx
import pytest

import intact
from intact.analyze.errors import quant_loss
from intact.analyze.layers import LayerErrors, model_errors
from intact.data.sources import open_samples
from intact.engines.simulate import Simulator
from intact.graph import normalize
from intact.numerics.metrics import sqnr_db
from intact.plan import Overrides, QuantizedGraph, quantization_points
from tests.models import MODELS, ModelBuilder, random_inputs, residual_net
from tests.plans import Arrays, calibrate, calibrated, planned

COUNT = 2
"""Samples that every one of the three ways runs."""


def two_layers() -> onnx.ModelProto:
    """Logits of ``relu(x @ w1 + b1) @ w2 + b2``."""
    b = ModelBuilder(seed=3)
    x = b.input("x", ["batch", 12])
    hidden = b.node("Gemm", x, b.weight(12, 16, name="w1"), b.weight(16, name="b1"), name="first")
    active = b.node("Relu", hidden, name="relu")
    logits = b.node(
        "Gemm",
        active,
        b.weight(16, 10, name="w2"),
        b.weight(10, name="b2"),
        name="last",
        out="logits",
    )
    b.output(logits, ["batch", 10])
    return b.build()


def constants(plan: QuantizedGraph) -> tuple[Arrays, Arrays]:
    """The constants as they are, and as they are stored."""
    exact: Arrays = {}
    stored: Arrays = {}
    for point in quantization_points(plan):
        if point.is_constant and point.value.const_value is not None:
            name = str(point.value.name)
            exact[name] = point.value.const_value.numpy()
            stored[name] = point.config.dequantize(point.constant_codes())
    return exact, stored


def activations(plan: QuantizedGraph, arrays: Arrays) -> Arrays:
    """The activations of the float model as they are quantized."""
    points = {str(p.value.name): p for p in quantization_points(plan) if not p.is_constant}
    return {
        name: points[name].config.fake_quantize(array) if name in points else array
        for name, array in arrays.items()
    }


def layer(found: tuple[LayerErrors, ...], name: str) -> LayerErrors:
    return next(each for each in found if each.name == name)


class TestTwoLayers:
    def setup_method(self) -> None:
        self.plan = calibrated(two_layers(), "onnxruntime")
        self.feeds = random_inputs(two_layers(), batch=COUNT, seed=4)
        self.samples = open_samples(self.feeds, self.plan.graph)
        self.found = model_errors(self.plan, self.samples, threads=1)
        self.exact, self.stored = constants(self.plan)
        names = {"w1", "b1", "w2", "b2"}
        assert names <= self.exact.keys()
        x = self.feeds["x"]
        active = np.maximum(x @ self.exact["w1"] + self.exact["b1"], 0)
        self.tensors = {"x": x, self.relu: active, "logits": self.last(active, self.exact)}

    @property
    def relu(self) -> str:
        return next(str(n.outputs[0].name) for n in self.plan.graph.nodes if n.op_type == "Relu")

    def last(self, active: np.ndarray, of: Arrays) -> np.ndarray:
        return np.asarray(active @ of["w2"] + of["b2"])

    def test_each_layer_by_itself(self) -> None:
        logits = self.found.layers[-1]
        assert logits.name == "last"
        read = activations(self.plan, self.tensors)[self.relu]
        own = activations(self.plan, {logits.tensor: self.last(read, self.stored)})
        wanted = self.tensors["logits"]
        assert logits.own == pytest.approx(sqnr_db(wanted, own[logits.tensor]), abs=0.01)
        by_weights = self.last(self.tensors[self.relu], self.stored)
        assert logits.weights == pytest.approx(sqnr_db(wanted, by_weights), abs=0.01)
        channels = [sqnr_db(a, b) for a, b in zip(wanted.T, own[logits.tensor].T, strict=True)]
        np.testing.assert_allclose(logits.channels, channels, atol=0.01)

    def test_biases_by_what_they_are_stored_as(self) -> None:
        logits = layer(self.found.layers, "last")
        lost = np.square(self.stored["b2"].astype(float) - self.exact["b2"]).mean()
        signal = np.square(self.tensors["logits"].astype(float)).mean()
        assert logits.bias == pytest.approx(10 * math.log10(signal / lost), abs=0.01)

    def test_the_outputs_where_one_layer_alone_is_quantized(self) -> None:
        first = self.found.layers[0]
        read = activations(self.plan, self.tensors)["x"]
        active = np.maximum(read @ self.stored["w1"] + self.stored["b1"], 0)
        quantized = activations(self.plan, {self.relu: active})[self.relu]
        outputs = self.last(quantized, self.exact)
        assert first.alone == pytest.approx(sqnr_db(self.tensors["logits"], outputs), abs=0.01)
        last = self.found.layers[-1]
        assert last.alone == pytest.approx(last.own, abs=0.01)

    def test_accumulated_errors_are_those_of_the_simulation(self) -> None:
        logits = Simulator(self.plan, threads=1).run(self.feeds)[0]["logits"]
        (output,) = self.found.outputs
        wanted = self.tensors["logits"]
        assert output.error.sqnr_db == pytest.approx(sqnr_db(wanted, logits), abs=0.01)
        same = wanted.argmax(axis=1) == logits.argmax(axis=1)
        assert output.agreement == 100 * same.mean()


@pytest.mark.parametrize("target", ["openvino", "ncnn"])
def test_layers_that_hand_out_floats_are_measured(target: str) -> None:
    b = ModelBuilder()
    x = b.input("x", ["n", 3, 8, 8])
    for name in ("first", "second", "third"):
        x = b.node("HardSwish", b.node("Conv", x, b.weight(3, 3, 1, 1), name=name))
    b.output(x)
    graph = normalize(b.build())
    data = {"x": np.random.default_rng(0).normal(size=(6, 3, 8, 8)).astype(np.float32)}
    plan = intact.quantize(graph.model, data, target=target, preset="fast").plan
    found = model_errors(plan, open_samples(data, plan.graph), threads=1)
    assert [each.name for each in found.layers] == ["first", "second", "third"]
    assert all(each.alone is not None and 10 < each.alone < 80 for each in found.layers)


def test_accumulated_errors_are_those_of_quant_loss() -> None:
    plan = calibrated(residual_net(), "tengine")
    samples = open_samples(random_inputs(residual_net(), batch=23, seed=4), plan.graph)
    found = {each.tensor: each.accumulated for each in model_errors(plan, samples).layers}
    for each in quant_loss(plan, samples).layers:
        assert found[each.tensor].sqnr_db == pytest.approx(each.sqnr_db, abs=1e-9)
        assert found[each.tensor].cosine == pytest.approx(each.cosine, abs=1e-12)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("odd_names", "clutter")])
def test_every_model(name: str) -> None:
    model = MODELS[name].build(17)
    plan = calibrated(model, "tensorrt")
    data = open_samples(random_inputs(model, batch=5, seed=1), plan.graph)
    found = model_errors(plan, data, threads=1)
    assert found.samples == 5
    known = {str(value.name) for value in plan.graph.values}
    for each in found.layers:
        assert each.tensor in known
        assert each.accumulated.kl is None or each.accumulated.kl >= 0
    json.dumps(found.to_json(), allow_nan=False)
    assert found == model_errors(plan, data, threads=2)


def test_what_is_no_number_is_lost_and_not_exact() -> None:
    """A code of 0 stands for a small number, of which a logarithm is taken."""
    b = ModelBuilder()
    x = b.conv(b.input("x", ["n", 3, 4, 4]), 3, 4, kernel=1)
    x = b.node("Log", b.node("Sigmoid", b.node("Mul", x, b.scalar(20.0))))
    b.output(b.node("Relu", b.node("Neg", x), out="y"))
    feeds = random_inputs(b.build(), batch=16, seed=0)
    plan = calibrate(planned(b.build()), feeds)
    assert np.isinf(Simulator(plan).run(feeds)[0]["y"]).any()
    found = model_errors(plan, open_samples(feeds, plan.graph))
    assert found.outputs[0].error.sqnr_db == -100.0
    assert not any(math.isnan(each.accumulated.sqnr_db) for each in found.layers)


def test_a_model_without_layers_in_integers_has_errors_of_outputs_only() -> None:
    model = residual_net()
    names = tuple(str(node.name) for node in normalize(model).nodes)
    plan = calibrated(model, overrides=Overrides(keep_float=names))
    found = model_errors(plan, open_samples(random_inputs(model, batch=3), plan.graph))
    assert found.layers == ()
    assert [each.error.sqnr_db for each in found.outputs] == [math.inf]
