"""A small residual network with scales that are powers of two, so that its files fit on a page."""

from __future__ import annotations

import numpy as np
import onnx

from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.collect import collect
from intact.data.sources import open_samples
from intact.plan import QuantizedGraph
from intact.plan.given_scales import GivenScale, ScaleTable
from tests.models import ModelBuilder, random_inputs
from tests.plans import planned

SCALES = {"image": 0.5, "relu1": 0.25, "relu2": 1.0, "conv3": 2.0}
"""Of the activations; what a fused chain computes before its end has none."""


def residual() -> onnx.ModelProto:
    """image -> conv1 -> relu1 -> conv2 -> + relu1 -> relu2 -> conv3 -> pool."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 2, 4, 4])
    first = b.node("Conv", x, _weight(b, "w1"), _bias(b, "b1"), out="conv1", name="first")
    relu = b.node("Relu", first, out="relu1", name="first_relu")
    second = b.node("Conv", relu, _weight(b, "w2"), _bias(b, "b2"), out="conv2", name="second")
    total = b.node("Add", second, relu, out="sum", name="plus")
    last = b.node("Relu", total, out="relu2", name="second_relu")
    third = b.node("Conv", last, _weight(b, "w3"), _bias(b, "b3"), out="conv3", name="third")
    b.node("MaxPool", third, out="pool", name="pooled", kernel_shape=[2, 2])
    b.node("Conv", "pool", _weight(b, "w4"), _bias(b, "b4"), out="y", name="fourth")
    b.output("y")
    return b.build()


def _weight(b: ModelBuilder, name: str) -> str:
    """Two output channels with the scales 1 and 0.5."""
    return b.constant(np.array([127, -3, 63.5, 1.5], np.float32).reshape(2, 2, 1, 1), name)


def _bias(b: ModelBuilder, name: str) -> str:
    return b.constant(np.array([0.1, -0.2], np.float32), name)


def planned_with(
    scales: dict[str, float], model: onnx.ModelProto, target: str = "tensorrt"
) -> QuantizedGraph:
    """A plan whose activations have these scales, the weights those of their largest value."""
    plan = planned(model, target)
    samples = open_samples(random_inputs(model, batch=2), plan.graph)
    statistics = collect(plan.graph, samples, required_tensors(plan), threads=1)
    entries = [("", name, GivenScale.of(scale)) for name, scale in scales.items()]
    table = ScaleTable.of("by hand", entries)
    return assign(plan, statistics, Method.of(plan.target, "minmax"), table)
