"""Scales as they are stored on the way to the hardware."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.collect import collect
from intact.data.sources import open_samples
from intact.numerics.conversion import six_decimals
from intact.plan import NoteKind, QuantizedGraph, quantization_points
from intact.plan.given_scales import GivenScale, ScaleTable
from tests.models import ModelBuilder, residual_net
from tests.plans import calibrated, config, conv, image, own_target, planned

RULES = """
accumulator = { kind = "exact" }
scale_precision = "decimal6"
[[op]]
ops = ["Conv", "Relu", "Add", "Softmax"]
"""


def is_stored(plan: QuantizedGraph) -> bool:
    scales = [p.config.scale for p in quantization_points(plan) if not p.is_constant]
    return all(s is not None and np.array_equal(six_decimals(s), s) for s in scales)


@pytest.mark.parametrize("target", ["tengine", "tengine-u8"])
def test_every_activation_has_the_number_of_the_text(target: str) -> None:
    plan = calibrated(residual_net(), target)
    assert is_stored(plan)
    weights = [p.config.scale for p in quantization_points(plan) if p.is_constant]
    assert any(w is not None and not np.array_equal(six_decimals(w), w) for w in weights)


def test_bias_scales_are_products_with_the_stored_scale() -> None:
    plan = calibrated(residual_net(), "tengine")
    node = next(node for node in plan.graph.nodes if node.op_type == "Conv")
    name = str(node.name)
    x, w, bias = (config(plan, f"{name}.input[{slot}]").scale for slot in range(3))
    assert x is not None
    assert w is not None
    assert bias is not None
    assert np.array_equal(bias, w * x)


def small_model(scale: float) -> tuple[ModelBuilder, dict[str, npt.NDArray[np.float32]]]:
    b = ModelBuilder()
    b.node("Relu", conv(b, image(b), "one"), out="y", name="relu")
    b.output("y")
    feeds = np.random.default_rng(0).normal(size=(4, 4, 8, 8)) * scale
    return b, {"image": feeds.astype(np.float32)}


@pytest.mark.parametrize("scale", [1e-5, 1e-12])
def test_a_scale_that_would_be_read_as_0_is_raised_and_said(tmp_path: Path, scale: float) -> None:
    b, feeds = small_model(scale)
    plan = planned(b.build(), own_target(tmp_path, RULES))
    statistics = collect(plan.graph, open_samples(feeds, plan.graph), required_tensors(plan))
    made = assign(plan, statistics, Method.of(plan.target))
    assert config(made, "one.input[0]").scale == np.float32(1e-6)
    notes = [note for note in made.notes if note.kind is NoteKind.CALIBRATION]
    assert any("0 in six decimals" in note.message and "'image'" in note.message for note in notes)


def test_a_given_scale_is_stored_too() -> None:
    plan = planned(residual_net(), "tengine")
    names = required_tensors(plan)
    table = ScaleTable.of("mine", [("", name, GivenScale.of(0.0123456789)) for name in names])
    made = assign(plan, None, Method.of(plan.target), table)
    assert is_stored(made)
    assert config(made, f"{plan.graph.nodes[0].name}.input[0]").scale == np.float32(0.012346)


def test_a_given_scale_of_a_weight_stays(tmp_path: Path) -> None:
    plan = planned(small_model(1.0)[0].build(), own_target(tmp_path, RULES))
    weight = plan.graph.nodes[0].inputs[1]
    assert weight is not None
    names = [*required_tensors(plan), str(weight.name)]
    table = ScaleTable.of("mine", [("", name, GivenScale.of(0.0123456789)) for name in names])
    made = assign(plan, None, Method.of(plan.target), table)
    assert config(made, "one.input[0]").scale == np.float32(0.012346)
    assert np.all(config(made, "one.input[1]").scale == np.float32(0.0123456789))


def test_other_targets_keep_their_scales() -> None:
    assert not is_stored(calibrated(residual_net(), "onnxruntime"))
