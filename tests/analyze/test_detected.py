"""What a detector finds decides over decibels, which a changed order of its boxes takes away."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import intact
from intact.analyze import detected
from intact.analyze.detected import finds_more
from intact.analyze.verdict import Judgement
from intact.calibrate.assign import required_tensors
from intact.calibrate.choice import Choice, choose
from intact.calibrate.collect import collect
from intact.calibrate.method import Method
from intact.calibrate.outputs import FloatRuns
from intact.data.detections import DetectionMetric
from intact.data.sources import open_samples
from intact.graph import Graph, normalize
from intact.plan import Overrides
from intact.plan.build import build_plan
from intact.targets import load_target
from tests.models import ModelBuilder

PLACES = 6


def ranked(*, flat: bool = False) -> onnx.ModelProto:
    """A net that gives fixed boxes in the order of scores that are nearly equal."""
    build = ModelBuilder()
    x = build.input("x", ["n", 1, 4, 4])
    # They differ by less than a step of the weights.
    weights = build.random.normal(0, 0.05, (16, 1)) + build.random.normal(0, 2e-4, (16, PLACES))
    weight = build.constant(weights.astype(np.float32))
    bias = build.constant(np.full(PLACES, 0.5, np.float32))
    logits = build.node("Gemm", build.node("Flatten", x), weight, bias)
    build.nodes.append(
        onnx.helper.make_node(
            "TopK", [build.node("Sigmoid", logits), build.ints(PLACES)], ["best", "at"], "chosen"
        )
    )
    corners = np.arange(PLACES, dtype=np.float32)[:, None] * 50
    boxes = build.constant(corners + np.array([[1, 2, 30, 40]], np.float32))
    build.node("Gather", boxes, "at", out="boxes", axis=0)
    build.with_axes("Unsqueeze", "best", [2])
    build.nodes[-1].output[0] = "scores"
    build.output("boxes", ["n", PLACES, 4])
    build.output("scores", ["n", PLACES, 1])
    if flat:
        del build.outputs[1]
    return build.build()


def test_boxes_in_another_order_are_no_loss() -> None:
    data = {"x": np.random.default_rng(0).normal(size=(64, 1, 4, 4)).astype(np.float32)}
    found = intact.quantize(ranked(), data, target="openvino", keep_float=["chosen"])
    evaluated = intact.evaluate(found, data)
    assert evaluated.outputs["boxes"].sqnr_db < 25  # or the test says nothing
    assert found.loss is None
    told = found.verdict
    assert told is not None
    assert told.judgement is Judgement.GOOD
    assert "detections kept" in str(told)
    assert "--metric detections" in str(evaluated.verdict)
    asked = intact.evaluate(found, data, metric="detections")
    assert asked.verdict is not None
    assert asked.verdict.judgement is Judgement.GOOD


@pytest.mark.parametrize("shape", [(10,), (9, 10), (4, 8, 8)])
def test_what_is_no_list_of_boxes_is_judged_as_before(shape: tuple[int, ...]) -> None:
    build = ModelBuilder()
    x = build.input("x", ["n", 1, 4, 4])
    size = int(np.prod(shape))
    out = build.node("Gemm", build.node("Flatten", x), build.weight(16, size))
    build.node("Reshape", out, build.ints(-1, *shape), out="y")
    build.output("y", ["n", *shape])
    graph = normalize(build.build())
    metric = DetectionMetric.of_model(graph)
    outputs = {"y": np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)}
    assert metric is None or not metric.reads(outputs)


def test_a_map_of_depths_loses_as_it_does() -> None:
    build = ModelBuilder()
    x = build.input("x", ["n", 3, 16, 16])
    weight = build.constant(build.random.normal(size=(1, 3, 3, 3)).astype(np.float32))
    build.with_axes("Squeeze", build.node("Conv", x, weight, pads=[1] * 4), [1])
    build.nodes[-1].output[0] = "depth"
    build.output("depth", ["n", 16, 16])
    data = {"x": np.random.default_rng(0).normal(size=(64, 3, 16, 16)).astype(np.float32)}
    found = intact.quantize(build.build(), data, weight_bits=2, preset="fast")
    told = intact.evaluate(found, data).verdict
    assert told is not None
    assert told.judgement is Judgement.LOSES


def test_boxes_and_scores_in_one_output_are_not_judged_by_the_decibels_of_boxes() -> None:
    build = ModelBuilder(seed=4)
    x = build.node("Flatten", build.input("x", ["n", 1, 4, 4]))
    parts = []
    for width, scale in ((4, 600.0), (1, 1.0)):
        y = build.node("Sigmoid", build.node("Gemm", x, build.weight(16, PLACES * width)))
        y = build.node("Reshape", y, build.ints(-1, PLACES, width))
        parts.append(build.node("Mul", y, build.scalar(scale)))
    build.output(build.node("Concat", *parts, axis=2, out="y"), ["n", PLACES, 5])
    data = {"x": np.random.default_rng(0).normal(size=(96, 1, 4, 4)).astype(np.float32)}
    made = intact.quantize(build.build(), data, target="tflite", quantize_heads=True, preset="fast")
    # A step of the boxes is more than any score.
    assert made.verdict is not None
    assert made.verdict.judgement is Judgement.LOSES
    assert "detections kept" in str(made.verdict)
    found = intact.evaluate(made, data)
    assert found.sqnr_db > 35
    assert found.verdict is not None
    assert found.verdict.judgement is Judgement.UNSURE
    assert "decibels of boxes" in str(found.verdict)


def test_images_of_any_size_are_images() -> None:
    build = ModelBuilder()
    x = build.conv(build.input("x", ["n", 3, "rows", "columns"]), 3, 6)
    build.node("Reshape", x, build.ints(0, 6, -1), out="y")
    build.output("y", ["n", 6, "places"])
    metric = DetectionMetric.of_model(normalize(build.build()))
    assert metric is not None
    assert metric.size is None


def chosen(graph: Graph, weight_bits: int) -> Choice:
    feeds = {"x": np.random.default_rng(0).normal(size=(16, 1, 4, 4)).astype(np.float32)}
    target = load_target("onnxruntime")
    plan = build_plan(graph, target, Overrides(weight_bits=weight_bits))
    statistics = collect(graph, open_samples(feeds, graph), required_tensors(plan), threads=1)
    runs = FloatRuns(graph, [(feeds, 16)], threads=1)
    return choose(plan, statistics, [Method.of(target, "minmax", "minmax")], runs)


def faint() -> onnx.ModelProto:
    """Scores that a net of few bits does not reach."""
    build = ModelBuilder()
    x = build.input("x", ["n", 1, 4, 4])
    weight = build.constant(build.random.normal(0, 1, (16, PLACES)).astype(np.float32))
    bias = build.constant(np.full(PLACES, -1.0, np.float32))
    logits = build.node("Gemm", build.node("Flatten", x), weight, bias)
    shape = build.ints(-1, PLACES, 1)
    build.node("Reshape", build.node("Sigmoid", logits), shape, out="scores")
    corners = np.arange(PLACES, dtype=np.float32)[None, :, None] * 50
    boxes = build.constant(corners + np.array([[[1, 2, 30, 40]]], np.float32))
    zero = build.node("Mul", "scores", build.scalar(0.0))
    build.node("Add", zero, boxes, out="boxes")
    build.output("boxes", ["n", PLACES, 4])
    build.output("scores", ["n", PLACES, 1])
    return build.build()


def test_a_plan_that_finds_less_loses() -> None:
    graph = normalize(faint())
    fine, coarse = chosen(graph, 8), chosen(graph, 2)
    assert finds_more(coarse, fine) is False
    assert finds_more(fine, coarse) is True
    assert finds_more(fine, fine) is None


def test_nothing_is_run_for_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    build = ModelBuilder()
    x = build.input("x", ["n", 1, 4, 4])
    build.node("Gemm", build.node("Flatten", x), build.weight(16, 10), out="y")
    build.output("y", ["n", 10])
    choice = chosen(normalize(build.build()), 8)
    monkeypatch.delattr(detected, "_outputs")
    assert finds_more(choice, choice) is None
