"""Biases of channels whose weights are 0: nothing else is left of them, and it is kept."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import intact
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from tests.models import ModelBuilder
from tests.plans import calibrate, planned

DEAD = [1, 3]


def net(size: float, *, all_dead: bool = False) -> onnx.ModelProto:
    b = ModelBuilder()
    weight = b.random.normal(size=(4, 3, 1, 1)).astype(np.float32) * np.float32(size)
    weight[list(range(4)) if all_dead else DEAD] = 0
    bias = b.constant(np.array([0.5, -0.3, 0.1, 0.7], np.float32) * np.float32(size))
    x = b.input("x", ["batch", 3, 8, 8])
    b.node("Conv", x, b.constant(weight), bias, name="conv", out="y")
    b.output("y")
    return b.build()


def feeds() -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(2).normal(size=(16, 3, 8, 8))
    return {"x": (20 * drawn).astype(np.float32)}


@pytest.mark.crossed
@pytest.mark.parametrize("size", [1e-4, 0.02, 1.0, 1e4])
@pytest.mark.parametrize("all_dead", [False, True])
@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt", "tflite", "integer-pow2"])
def test_the_bias_of_a_channel_without_weights_is_kept(
    target: str, all_dead: bool, size: float
) -> None:
    plan = calibrate(planned(net(size, all_dead=all_dead), target), feeds())
    made, _ = Simulator(plan).run(feeds())
    wanted = FloatModel(plan.graph).run(feeds())["y"]
    step = float(np.max(plan.output_config(plan.graph.nodes[0]).scale or 0))
    assert np.abs(made["y"] - wanted)[:, DEAD].max() <= 0.51 * step


@pytest.mark.parametrize(("target", "format_"), [("tflite", "tflite"), ("integer-pow2", "c")])
def test_what_is_written_keeps_it_too(target: str, format_: str) -> None:
    """What is written runs once and is compared with the plan."""
    found = intact.quantize(net(0.02), feeds(), target=target, formats=[format_], preset="fast")
    assert found.loss is None
    assert intact.verify(found, feeds()).outputs_sqnr_db["y"] > 60
