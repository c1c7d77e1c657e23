"""The cause that is named is the one that explains most, by measurement."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from intact.analyze.diagnose.counterfactuals import (
    Counterfactuals,
    any_scale,
    by_channel,
    by_whole_channel,
    whole_range,
    without_tail,
)
from intact.analyze.diagnose.diagnosis import check_quantizers
from intact.analyze.diagnose.evidence import Evidence
from intact.calibrate.outputs import FloatRuns
from intact.engines.simulate import Simulator
from intact.plan import QuantizedGraph
from tests.models import ModelBuilder
from tests.plans import calibrate, planned

Array = np.ndarray


def net(sizes: Array, *, is_long: bool = False) -> onnx.ModelProto:
    """Channels of these sizes under one scale, each as important as the others."""
    b = ModelBuilder()
    first, second = b.random.normal(size=(16, 3, 3, 3)), b.random.normal(size=(4, 16, 1, 1))
    weight = b.constant((first * sizes[:, None, None, None]).astype(np.float32))
    x = b.node("Conv", b.input("x", ["batch", 3, 8, 8]), weight, name="conv", out="channels")
    other = b.constant((second / sizes[None, :, None, None]).astype(np.float32))
    b.node("Conv", x, other, name="last", out="between" if is_long else "y")
    if is_long:
        b.node("Relu", b.conv("between", 4, 4, kernel=1), out="y")
    b.output("y")
    return b.build()


def data(kind: str) -> Array:
    random = np.random.default_rng(4)
    shape = (16, 3, 8, 8)
    drawn = random.standard_t(2, size=shape) if kind == "tail" else random.normal(size=shape)
    return drawn.astype(np.float32)


def of_size(large: float, count: int) -> Array:
    sizes = np.ones(16)
    sizes[:count] = large
    return sizes


def calibrated(sizes: Array, kind: str, method: str) -> tuple[QuantizedGraph, FloatRuns]:
    feeds = {"x": data(kind)}
    plan = calibrate(planned(net(sizes), "tensorrt"), feeds, method)
    return plan, FloatRuns(plan.graph, [(feeds, 16)], threads=1)


CASES = {
    "channels of 1 and 97, clipped for that": (of_size(97, 1), "tail", "mse", "outlier_channel"),
    "channels of 1 and 97, held": (of_size(97, 2), "normal", "minmax", "outlier_channel"),
    "half of them of 97": (of_size(97, 8), "tail", "mse", "dead_channel"),
    "equal ones, clipped": (of_size(1, 0), "normal", "percentile", "clipping"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_what_explains_most(name: str) -> None:
    sizes, kind, method, cause = CASES[name]
    plan, runs = calibrated(sizes, kind, method)
    if cause == "clipping":
        roots = (each for each in plan.configs.values() if each.dominator is each)
        for config in (each for each in roots if each.bits == 8 and each.grid.axis is None):
            if config.params is not None:
                config.set_params(config.params.scale / 3, config.params.zero_point)
    (found,) = check_quantizers(Evidence(runs, planned=plan))
    assert found.cause == cause
    # Where mending the quantizer itself gains nothing, float around it may.
    assert any("keep_float" in each.options for each in found.remedies)
    point = next(p for p in Simulator(plan).points.values() if str(p.value.name) == found.tensor)
    trials = Counterfactuals(plan, runs, "y", point)
    widened, by_channels = (
        trials.explained_part(whole_range),
        trials.explained_part(by_whole_channel),
    )
    assert (widened > 0.4) if cause == "clipping" else (by_channels > max(widened, 0.4))


def test_a_channel_for_whose_sake_others_are_clipped_is_named() -> None:
    """One method serves all tensors: what it cuts off of others may cost more than the channel."""
    feeds = {"x": data("normal")}
    graph = planned(net(of_size(20, 1), is_long=True), "tensorrt")
    plan = calibrate(graph, feeds, "minmax")
    runs = FloatRuns(plan.graph, [(feeds, 16)], threads=1)
    for point in Simulator(plan).points.values():
        if point.value.name == "between" and point.config.params is not None:
            point.config.set_params(point.config.params.scale / 9, point.config.params.zero_point)
    (found,) = check_quantizers(Evidence(runs, planned=plan))
    assert (found.cause, found.tensor) == ("outlier_channel", "channels")
    assert "others are cut off by a method that all have for the sake of tensor" in found.evidence


def test_what_is_tried_is_what_a_cause_costs() -> None:
    plan, runs = calibrated(of_size(97, 1), "normal", "minmax")
    points = Simulator(plan).points.values()
    trials = Counterfactuals(plan, runs, "y", next(p for p in points if p.value.name == "channels"))
    assert trials.explained_part(by_channel) > 0.9
    assert abs(trials.explained_part(whole_range)) < 0.2  # nothing was cut off
    assert trials.explained_part(without_tail) < 0.9
    assert trials.explained_part(any_scale) < 0.9


def scores(confident: float) -> tuple[QuantizedGraph, FloatRuns]:
    """A net whose log probabilities have a prescribed scale, which holds 0 to -15.9."""
    b = ModelBuilder(seed=3)
    x = b.node("Relu", b.conv(b.input("x", ["batch", 16, 8, 8]), 16, 24, kernel=3))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    weight = confident * b.random.normal(size=(24, 10))
    x = b.node("Gemm", x, b.constant(weight.astype(np.float32)), name="dense")
    b.node("LogSoftmax", x, name="scores", axis=1, out="y")
    b.output("y", ["batch", 10])
    feeds = {"x": np.random.default_rng(0).normal(size=(32, 16, 8, 8)).astype(np.float32)}
    plan = calibrate(planned(b.build(), "tflite"), feeds, "mse")
    return plan, FloatRuns(plan.graph, [(feeds, 32)], threads=1)


@pytest.mark.parametrize(("confident", "least", "most"), [(1.2, 12, 20), (1.0, 20, 30)])
def test_one_tensor_that_costs_half_of_the_noise_is_named_at_any_level(
    confident: float, least: float, most: float
) -> None:
    plan, runs = scores(confident)
    simulator = Simulator(plan, threads=1, switched=True)
    (errors,) = runs.errors(lambda feeds: simulator.run(feeds)[0])
    assert least < errors.decibels["y"] < most
    (found,) = check_quantizers(Evidence(runs, planned=plan))
    assert (found.node, found.tensor) == ("scores", "y")
    assert found.remedies[0].options == {"keep_float": ["scores"]}
    (point,) = (end for end, each in simulator.points.items() if each.value.name == "y")
    (without,) = runs.errors(lambda feeds: simulator.run(feeds, disabled=frozenset([point]))[0])
    assert without.decibels["y"] > errors.decibels["y"] + 3
