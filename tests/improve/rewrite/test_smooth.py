"""Channels of activations smoothed into weights: the same function, smaller errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from intact.data.sources import open_samples
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.graph import Graph, normalize
from intact.improve.rewrite.smooth import Widths, smooth
from intact.numerics.metrics import sqnr_db
from intact.plan import Overrides, build_plan
from intact.plan.gains import Gain
from intact.targets import load_target
from tests.models import ModelBuilder
from tests.plans import calibrate

Arrays = dict[str, npt.NDArray[Any]]
CHANNELS = 16


def uneven(b: ModelBuilder) -> npt.NDArray[np.float32]:
    """Factors of channels, two of which are much larger than the others."""
    found = np.exp(0.3 * b.random.normal(size=CHANNELS)).astype(np.float32)
    found[[3, 7]] *= 40
    return found


def _normalized(b: ModelBuilder, x: str) -> str:
    scale, bias = b.constant(uneven(b)), b.weight(CHANNELS)
    return b.node("LayerNormalization", x, scale, bias, axis=-1, name="norm")


def _expanded(b: ModelBuilder, x: str) -> str:
    x = b.node("Mul", b.constant(uneven(b)), x, name="gamma")
    return b.node("Add", x, b.weight(CHANNELS), name="beta")


def _layer(b: ModelBuilder, x: str) -> str:
    weight = b.random.normal(size=(CHANNELS, CHANNELS)).astype(np.float32) * uneven(b)
    return b.node("MatMul", x, b.constant(weight), name="front")


def _gated(b: ModelBuilder, x: str) -> str:
    gate = b.node("Sigmoid", b.node("MatMul", x, b.weight(CHANNELS, CHANNELS)))
    return b.node("Mul", _layer(b, x), gate, name="gate")


FRONTS = {"normalized": _normalized, "expanded": _expanded, "layer": _layer, "gated": _gated}


def net(front: Callable[[ModelBuilder, str], str], *, seen: bool = False) -> onnx.ModelProto:
    b = ModelBuilder(seed=5)
    x = b.node("Tanh", b.input("x", ["batch", CHANNELS]))
    x = front(b, x)
    first = b.node("MatMul", x, b.weight(CHANNELS, 8), name="query")
    second = b.node("Gemm", x, b.weight(8, CHANNELS), b.weight(8), transB=1, name="key")
    y = b.node("Add", first, second, name="sum", out="y")
    b.output(y, ["batch", 8])
    if seen:
        b.output(x, ["batch", CHANNELS])
    return b.build()


def rows(count: int, seed: int = 0) -> Arrays:
    return {"x": np.random.default_rng(seed).normal(size=(count, CHANNELS)).astype(np.float32)}


def smoothed(graph: Graph, feeds: Arrays | None = None, gains: list[Gain] | None = None) -> Graph:
    told: list[Gain] = [] if gains is None else gains
    samples = open_samples(feeds or rows(64, seed=1), graph)
    return smooth(graph, samples, Widths(8, 4), threads=1, report=told.append)


def run(graph: Graph, feeds: Arrays) -> npt.NDArray[Any]:
    return FloatModel(graph, threads=1).run(feeds)["y"]


def decibels(graph: Graph) -> float:
    """Of the plan with 4-bit activations, on samples that were not seen."""
    plan = build_plan(graph, load_target("onnxruntime"), Overrides(activation_bits=4))
    other, plan = rows(200, seed=7), calibrate(plan, rows(64, seed=1))
    return sqnr_db(run(graph, other), Simulator(plan, threads=1).run(other)[0]["y"])


@pytest.mark.parametrize("front", FRONTS)
def test_the_function_stays_and_less_is_lost(front: str) -> None:
    graph, gains, other = normalize(net(FRONTS[front])), list[Gain](), rows(200, seed=7)
    digest = graph.hash
    better = smoothed(graph, gains=gains)
    assert graph.hash == digest
    assert better.hash != digest
    wanted = run(graph, other)
    assert np.abs(run(better, other) - wanted).max() <= 1e-5 * np.abs(wanted).max()
    assert [node.name for node in better.nodes] == [node.name for node in graph.nodes]
    assert any(gain.kept and gain.after > gain.before + 1 for gain in gains)
    assert decibels(better) > decibels(graph) + 0.2


def test_a_layer_that_was_behind_is_in_front_as_it_is_now() -> None:
    """As in decoders: a normalization, a gated layer, another layer."""
    b = ModelBuilder(seed=5)
    x = _expanded(b, b.node("Tanh", b.input("x", ["batch", CHANNELS])))
    b.node("MatMul", _gated(b, x), b.weight(CHANNELS, 8), name="down", out="y")
    b.output("y", ["batch", 8])
    graph, gains, other = normalize(b.build()), list[Gain](), rows(200, seed=7)
    better = smoothed(graph, gains=gains)
    assert sum(gain.kept for gain in gains) == 2
    wanted = run(graph, other)
    assert np.abs(run(better, other) - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_what_else_is_read_stays() -> None:
    graph = normalize(net(_normalized, seen=True))
    assert smoothed(graph).hash == graph.hash


def test_single_samples_and_zeros_change_nothing() -> None:
    graph = normalize(net(_layer))
    assert smoothed(graph, rows(1)).hash == graph.hash
    assert smoothed(graph, {"x": np.zeros((16, CHANNELS), np.float32)}).hash == graph.hash


def test_channels_without_values_keep_their_weights() -> None:
    model = net(_layer)
    weight = next(n for n in model.graph.node if n.name == "front").input[1]
    tensor = next(each for each in model.graph.initializer if each.name == weight)
    array = onnx.numpy_helper.to_array(tensor).copy()
    array[:, 5] = 0
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, weight))
    graph = normalize(model)
    better = smoothed(graph)
    before, after = (each.constant(each.node("query").inputs[1]) for each in (graph, better))
    assert before is not None
    assert after is not None
    np.testing.assert_array_equal(before[5], after[5])
