"""Bounds of a Clip are passive: they have the scale of the data, and change no code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.config import QuantState
from intact.config.grid import FloatArray
from intact.engines.simulate import Simulator
from intact.numerics.affine import fake_quantize
from intact.plan import QuantizedGraph, quantization_points
from intact.plan.plan_file import load_plan, save_plan
from intact.search.strategy import Strategy
from tests.models import ModelBuilder
from tests.plans import calibrated, config, conv, image, own_target

FUSION = '[[fusion]]\npattern = [["Conv"], ["Clip"]]\n'
OPS = '[[op]]\nops = ["Conv", "Clip", "Pad"]\n'


def clipped(folder: Path, rules: str = FUSION, *, name: str = "clip") -> QuantizedGraph:
    b = ModelBuilder()
    x = conv(b, image(b), "conv")
    x = b.node("Clip", x, b.scalar(-0.3), b.scalar(0.7), name=name)
    conv(b, x, "last")
    b.output("last_out")
    return calibrated(b.build(), own_target(folder, OPS + rules))


@pytest.mark.parametrize("rules", [FUSION, ""])
def test_bounds_have_the_scale_of_the_data(tmp_path: Path, rules: str) -> None:
    plan = clipped(tmp_path, rules)
    data = config(plan, "clip.input[0]")
    for slot in (1, 2):
        bound = config(plan, f"clip.input[{slot}]")
        assert bound.state is QuantState.PASSIVE
        assert bound.dominator is data.dominator
        assert bound.scale == data.scale
        assert bound.same_grid(data.dominator)


def test_the_value_of_a_pad_has_the_scale_of_the_data(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.node("Pad", conv(b, image(b), "conv"), b.ints(0, 0, 1, 1, 0, 0, 1, 1), b.scalar(0.5))
    conv(b, x, "last")
    b.output("last_out")
    plan = calibrated(b.build(), own_target(tmp_path, OPS))
    (pad,) = (str(node.name) for node in plan.graph.nodes if node.op_type == "Pad")
    value = config(plan, f"{pad}.input[2]")
    assert value.state is QuantState.PASSIVE
    assert value.dominator is config(plan, f"{pad}.input[0]").dominator


def test_bounds_of_a_clip_in_float_are_float(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.node("Clip", conv(b, image(b), "conv"), b.scalar(0), b.scalar(6), name="clip")
    conv(b, x, "last")
    b.output("last_out")
    plan = calibrated(b.build(), own_target(tmp_path, '[[op]]\nops = ["Conv"]\n'))
    assert config(plan, "clip.input[1]").state is QuantState.FP32


def test_nothing_is_rounded_to_the_codes_of_a_bound(tmp_path: Path) -> None:
    """A Clip whose result has another scale clips at the number, as runtimes do."""
    plan = clipped(tmp_path, "")
    ends = {str(point.end) for point in quantization_points(plan)}
    assert ends.isdisjoint({"clip.input[1]", "clip.input[2]"})
    feeds = images()
    points = Simulator(plan)
    end = next(each for each in points.points if str(each) == "clip.output[0]")
    _, seen = points.run(feeds, observe=[end])
    highest = config(plan, "clip.output[0]").fake_quantize(np.array([0.7], np.float32))[0]
    assert seen[end].max() == highest


def images() -> dict[str, FloatArray]:
    return {"image": 4 * np.random.default_rng(0).normal(size=(2, 4, 8, 8)).astype(np.float32)}


@given(
    st.floats(2.0**-10, 2, width=32),
    st.floats(-3, 3, width=32),
    st.floats(-3, 3, width=32),
    st.integers(0, 255),
    st.integers(0, 9),
)
def test_on_one_scale_the_bound_may_be_quantized_or_not(
    scale: float, first: float, second: float, zero_point: int, seed: int
) -> None:
    """With the document's rule (the bound is quantized like the data) fused codes are the same."""
    low, high = sorted((first, second))
    values = np.random.default_rng(seed).normal(size=200, scale=2).astype(np.float32)
    values = np.concatenate([values, np.array([low, high], np.float32)])

    def rounded(numbers: FloatArray) -> FloatArray:
        step = np.asarray(scale, np.float32)
        return fake_quantize(numbers, step, np.asarray(zero_point), 0, 255)

    bounds = rounded(np.array([low, high], np.float32))
    ours = rounded(np.clip(values, np.float32(low), np.float32(high)))
    np.testing.assert_array_equal(ours, rounded(np.clip(values, *bounds)))


def test_plans_with_bounds_are_saved_and_searched(tmp_path: Path) -> None:
    plan = clipped(tmp_path)
    save_plan(plan, tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json", plan.graph)
    bound = config(again, "clip.input[2]")
    assert bound.state is QuantState.PASSIVE
    assert bound.scale == config(plan, "clip.input[2]").scale
    strategy = Strategy.of(plan)
    assert "clip.input[2]" not in strategy.bits  # a bound follows: there is nothing to choose
    made = strategy.plan(plan.graph, plan.target)
    assert config(made, "clip.input[2]").state is QuantState.PASSIVE
