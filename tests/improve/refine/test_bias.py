"""Bias correction: from samples, and from folded BatchNormalizations."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest

from intact.config import QuantState
from intact.data.sources import open_samples
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.improve.refine.bias import clipped_moments, correct_expected_bias, refine_bias
from intact.plan import Overrides, QuantizedGraph, TensorEnd
from intact.plan.gains import Gain
from tests.models import ModelBuilder
from tests.plans import Arrays, calibrate, planned


def net() -> onnx.ModelProto:
    """Two convolutions with BatchNormalization, through a Relu."""
    b = ModelBuilder(seed=3)
    x = b.input("image", ["batch", 3, 8, 8])
    x = b.batch_norm(b.node("Conv", x, b.weight(8, 3, 3, 3), name="first"), 8)
    x = b.node("Conv", b.node("Relu", x), b.weight(6, 8, 1, 1), b.weight(6), name="last", out="y")
    b.output("y", ["batch", 6, 6, 6])
    return b.build()


def feeds(count: int, seed: int) -> Arrays:
    shape = (count, 3, 8, 8)
    return {"image": np.random.default_rng(seed).normal(size=shape).astype(np.float32)}


def plan_of(bits: int = 3) -> QuantizedGraph:
    return calibrate(planned(net(), overrides=Overrides(weight_bits=bits)), feeds(40, 1))


def shift_of(plan: QuantizedGraph, given: Arrays) -> float:
    """Largest difference between the means of channels, in float and quantized."""
    wanted = FloatModel(plan.graph, threads=1).run(given)["y"].mean(axis=(0, 2, 3))
    found = Simulator(plan, threads=1).run(given)[0]["y"].mean(axis=(0, 2, 3))
    return float(np.abs(found - wanted).max())


def test_means_of_results_stay_on_other_samples() -> None:
    plan, gains = plan_of(), list[Gain]()
    samples = open_samples(feeds(40, 1), plan.graph)
    better = refine_bias(plan, samples, threads=1, report=gains.append)
    other = feeds(60, 7)
    assert shift_of(better, other) < 0.5 * shift_of(plan, other)
    assert better.configs[TensorEnd.input("last", 2)].state is QuantState.PASSIVE_BAKED
    assert not plan.baked
    assert {gain.node for gain in gains} == {"first", "last"}
    assert all(gain.after > gain.before for gain in gains if gain.kept)


def test_one_sample_and_baked_biases_change_nothing() -> None:
    plan = plan_of()
    assert not refine_bias(plan, open_samples(feeds(1, 1), plan.graph), threads=1).baked
    samples = open_samples(feeds(40, 1), plan.graph)
    better = refine_bias(plan, samples, threads=1)
    again = refine_bias(better, samples, threads=1)
    assert all(np.array_equal(codes, again.baked[end]) for end, codes in better.baked.items())


def test_the_expected_shift_is_that_of_the_clipped_normal() -> None:
    plan = plan_of()
    better = correct_expected_bias(plan)
    end = TensorEnd.input("last", 2)
    assert list(better.baked) == [end]  # nothing is known of the first layer's input
    norm = plan.graph.batch_norms["first"]
    draws = np.random.default_rng(0).normal(norm.beta, np.abs(norm.gamma), (200_000, 8))
    mean = np.maximum(draws, 0).mean(axis=0)
    node = plan.graph.node("last")
    weight, bias = (plan.graph.constant(node.inputs[slot]) for slot in (1, 2))
    assert weight is not None
    assert bias is not None
    rounded = plan.configs[TensorEnd.input("last", 1)].fake_quantize(weight)
    wanted = bias + (weight - rounded)[:, :, 0, 0] @ mean
    found = better.configs[end].dequantize(better.baked[end])
    np.testing.assert_allclose(found, wanted, atol=5e-3)
    assert np.abs(wanted - bias).max() > 2e-2


@pytest.mark.parametrize(
    ("low", "high"), [(0, math.inf), (0, 6), (-1, 1), (-math.inf, 2), (-math.inf, math.inf)]
)
def test_against_integration(low: float, high: float) -> None:
    mean, deviation = np.array([-3.0, 0.0, 1.0, 5.5]), np.array([0.5, 1.0, 3.0, 2.0])
    found, spread = clipped_moments(mean, deviation**2, low, high)
    steps = np.linspace(-12, 12, 200_001)
    weights = np.exp(-(steps**2) / 2)
    weights /= weights.sum()
    values = np.clip(mean[:, None] + deviation[:, None] * steps, low, high)
    wanted = values @ weights
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    np.testing.assert_allclose(spread, (values**2) @ weights - wanted**2, atol=1e-5)


def test_no_variance_is_the_clipped_mean() -> None:
    found, spread = clipped_moments(np.array([-1.0, 0.5, 9.0]), np.zeros(3), 0, 6)
    np.testing.assert_array_equal(found, [0, 0.5, 6])
    np.testing.assert_array_equal(spread, 0)
