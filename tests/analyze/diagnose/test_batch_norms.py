"""What BatchNormalizations multiply by: the figures, their cost, and what is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from intact.analyze.diagnose.static import batch_norm_findings
from intact.graph.normalization import normalize
from intact.plan import QuantizedGraph, build_plan
from intact.plan.batch_norms import Place, batch_norm_scales
from intact.plan.inspection import inspect_plan
from intact.plan.preparation import graphs_for
from intact.targets import load_target
from tests.models import ModelBuilder


def dense(*, dead: int = 0, tiny: int = 0, relu_behind: bool = True) -> onnx.ModelProto:
    """Dense, Relu, BatchNormalization, Dense, as the TFLite document has it."""
    b, random = ModelBuilder(), np.random.default_rng(0)
    x = b.node("Gemm", b.input("x", ["N", 16]), b.weight(16, 32), b.weight(32))
    variance, mean = random.uniform(0.2, 0.5, (2, 32))
    variance[:dead], mean[:dead] = 1e-9, 0
    variance[dead : dead + tiny], mean[dead : dead + tiny] = 1e-5, 1e-3
    gamma, beta = random.normal(1, 0.2, 32), random.normal(0, 0.2, 32)
    parts = [b.constant(each.astype(np.float32)) for each in (gamma, beta, mean, variance)]
    x = b.node("BatchNormalization", b.node("Relu", x), *parts, name="norm", epsilon=1e-6)
    x = b.node("Relu", x) if relu_behind else x
    b.output(b.node("Gemm", x, b.weight(32, 10), b.weight(10), name="last"), ["N", 10])
    return b.build()


def planned(model: onnx.ModelProto, target: str = "tflite") -> QuantizedGraph:
    described = load_target(target)
    (graph,) = graphs_for(normalize(model), [described])
    return build_plan(graph, described)


@pytest.mark.parametrize(
    ("relu_behind", "place", "node"),
    [(True, Place.APART, "norm"), (False, Place.BEHIND, "last")],
)
def test_figures_are_those_of_the_parameters(relu_behind: bool, place: Place, node: str) -> None:
    (row,) = batch_norm_scales(planned(dense(dead=2, relu_behind=relu_behind)).graph)
    assert (row.node, row.place, row.channels, row.after) == (node, place, 32, "Relu")
    assert row.dead == (0, 1)
    assert row.index in row.dead
    assert row.scale == pytest.approx(row.gamma / np.sqrt(row.variance + 1e-6))
    assert row.largest == row.scale > 100 > row.least


@pytest.mark.parametrize("relu_behind", [True, False])
@pytest.mark.parametrize(
    ("given", "cause"), [({"dead": 2}, "dead_channel"), ({"tiny": 2}, "batch_norm_scale")]
)
def test_a_huge_scale_is_found(given: dict[str, Any], cause: str, relu_behind: bool) -> None:
    plan = planned(dense(relu_behind=relu_behind, **given))
    (found,) = batch_norm_findings(plan)
    assert found.cause == cause
    assert 0.4 < found.severity < 0.5
    options = [dict(each.options) for each in found.remedies if each.options]
    kept = next(each["keep_float"] for each in options if "keep_float" in each)
    assert all(plan.graph.node(name) for name in kept)
    assert len(kept) == (2 if relu_behind else 1)
    assert "in front of the activation" in found.remedies[-1].text


@pytest.mark.parametrize("target", ["tflite", "onnxruntime"])
@pytest.mark.parametrize("relu_behind", [True, False])
def test_channels_that_are_alike_cost_nothing(target: str, relu_behind: bool) -> None:
    plan = planned(dense(relu_behind=relu_behind), target)
    assert batch_norm_findings(plan) == []
    (row,) = batch_norm_scales(plan.graph, plan)
    assert row.cost < 2
    assert row.dead == ()


def folded(spread: float) -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.conv(b.input("x", ["N", 3, 8, 8]), 3, 16)
    scales = np.ones(16)
    scales[0] = spread
    parts = [b.constant(each.astype(np.float32)) for each in (scales, *np.zeros((2, 16)))]
    x = b.node("BatchNormalization", x, *parts, b.constant(np.ones(16, np.float32)))
    b.output(b.node("Relu", x), ["N", 16, 8, 8])
    return b.build()


def test_rows_of_a_weight_suffer_only_where_they_share_a_scale() -> None:
    for target, spread, count in (
        ("onnxruntime", 50.0, 0),  # a scale for each channel
        ("tengine", 1.0, 0),
    ):
        plan = planned(folded(spread), target)
        (row,) = batch_norm_scales(plan.graph, plan)
        assert row.place is Place.IN_FRONT
        assert len(batch_norm_findings(plan)) == count


def test_inspection_lists_them() -> None:
    assert len(inspect_plan(planned(dense())).batch_norms) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("variance", [0.0, 1e-30, 3e38, np.inf])
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_degenerate_parameters_cost_no_warning(weight: float, variance: float) -> None:
    """Weights of zeros and a variance of infinity have figures, or are left out."""
    for behind in (False, True):
        b = ModelBuilder()
        parts = [b.constant(np.full(4, each, np.float32)) for each in (1, 1, 1)]
        parts.append(b.constant(np.array([1, variance, 1, 1], np.float32)))
        x = b.input("x", ["N", 4])
        matrix = b.constant(np.full((4, 4), weight, np.float32))
        if behind:
            x = b.node("Gemm", b.node("BatchNormalization", x, *parts), matrix)
        else:
            x = b.node("BatchNormalization", b.node("Gemm", x, matrix), *parts)
        b.output(x, ["N", 4])
        for target in ("tengine", "tflite"):  # one scale for a weight
            plan = planned(b.build(), target)
            found = batch_norm_scales(plan.graph, plan)
            assert len(found) == np.isfinite(variance)
            assert all(np.isfinite(each.cost) for each in found)
