"""What stands behind the last layers, and what of it may have to stay float."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import onnx
import pytest

from intact.calibrate.collect import collect
from intact.calibrate.tail import Tail
from intact.data.sources import open_samples
from intact.graph import normalize
from intact.plan import QuantizedGraph, build_plan
from intact.targets import load_target
from tests.gallery import vision
from tests.heads import nets
from tests.heads.nets import FAMILIES
from tests.models import ModelBuilder


def planned(model: onnx.ModelProto, target: str = "tflite") -> QuantizedGraph:
    """Plan a model for a target."""
    return build_plan(normalize(model), load_target(target))


@pytest.mark.parametrize("build", [vision.densenet, vision.inception, vision.mobilenet_v3])
@pytest.mark.parametrize("target", ["tflite", "onnxruntime", "openvino"])
def test_a_classifier_has_none(build: Callable[[], onnx.ModelProto], target: str) -> None:
    assert Tail.of(planned(build(), target)) is None


def test_the_expectation_belongs_to_the_tail_and_heads_do_not() -> None:
    tail = Tail.of(planned(nets.yolo_v8()))
    assert tail is not None
    names = {str(node.name) for node in tail.nodes}
    assert "expectation" in names
    assert not any(name.startswith("layer") for name in names)
    assert [node.name for node in tail.decoders] == ["expectation"]


@pytest.mark.parametrize("name", ["yolo_v10", "centernet"])
def test_what_is_chosen_from_is_judged(name: str) -> None:
    model = FAMILIES[name].build()
    makers = {node.output[0]: node.op_type for node in model.graph.node}
    tail = Tail.of(planned(model, "onnxruntime"))
    if tail is None:  # nothing of it is quantized
        return
    assert {makers[part] for part in tail.parts} <= {"Mul", "Sub", "Add", "Sigmoid"}


@pytest.mark.parametrize(("name", "kept"), [("yolo_v10", True), ("yolo_v10_dense", False)])
def test_only_behind_a_choice_is_nothing_measured(name: str, kept: bool) -> None:
    tail = Tail.of(planned(FAMILIES[name].build()))
    assert tail is not None
    joins = [node for node in tail.joins if node.name == "Concat_detections"]
    assert tail.unmeasured(joins) == (("Concat_detections",) if kept else ())
    assert tail.unmeasured([]) == ()


def test_candidates_are_nested() -> None:
    tail = Tail.of(planned(nets.yolo_v8()))
    assert tail is not None
    found = [set(names) for names in tail.candidates(tail.joins[-1:])]
    assert len(found) > 1
    assert all(less < more for less, more in pairwise(found))


def test_unlike_joins_are_found_from_statistics() -> None:
    plan = planned(nets.yolo_v8())
    tail = Tail.of(plan)
    assert tail is not None
    feeds = {"image": np.asarray(nets.images(4), np.float32)}
    statistics = collect(plan.graph, open_samples(feeds, plan.graph), tail.tensors)
    worst, *_ = tail.unlike(statistics)
    assert worst.node.name == "Concat_detections"
    small, large = worst.reach
    assert small <= 1
    assert large > 100


def _weighed(b: ModelBuilder, x: str, y: str, axes: list[int]) -> str:
    """Softmax of one, times both joined, summed."""
    weights = b.node("Softmax", b.node("Concat", x, x, axis=1), axis=1)
    product = b.node("Mul", weights, b.node("Concat", x, y, axis=1))
    return b.with_axes("ReduceSum", product, axes, keepdims=0)


@pytest.mark.parametrize("target", ["tflite", "tengine", "cuda"])
@pytest.mark.parametrize(("axes", "found"), [([2, 3], False), ([1], True)])
def test_what_is_averaged_afterwards_is_no_tail(target: str, axes: list[int], found: bool) -> None:
    b = ModelBuilder()
    x = b.input("x", ["n", 3, 8, 8])
    large = b.node("Mul", b.conv(x, 3, 4), b.scalar(100.0))
    # Over 64 places the noise of both averages out; over 8 channels it does not.
    y = _weighed(b, b.conv(x, 3, 4), large, axes)
    b.output(y)
    assert (Tail.of(planned(b.build(), target)) is not None) is found
