"""Input channels of weights in blocks scaled by what they matter: the same function, less lost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import intact
from intact.calibrate.assign import assign
from intact.calibrate.method import Method
from intact.data.sources import open_samples
from intact.engines.session import FloatModel
from intact.graph import Graph
from intact.improve.rewrite import smooth_blocks
from intact.improve.rewrite.smooth import smooth_plan
from intact.plan import QuantizedGraph, build_plan
from intact.plan.gains import Gain
from intact.targets import in_blocks, load_target
from tests.block_nets import WIDTH, WORDS
from tests.models import ModelBuilder
from tests.plans import lost, planned

Arrays = dict[str, npt.NDArray[np.float32]]
Front = Callable[[ModelBuilder, str], str]


def uneven(b: ModelBuilder) -> str:
    """Factors of channels, some of which are much larger than the others."""
    found = np.exp(0.3 * b.random.normal(size=WIDTH)).astype(np.float32)
    found[::16] *= 30
    return b.constant(found)


def _scaled(b: ModelBuilder, x: str) -> str:
    return b.node("Mul", uneven(b), x, name="norm")


def _layer_norm(b: ModelBuilder, x: str) -> str:
    return b.node("LayerNormalization", x, uneven(b), b.weight(WIDTH), name="norm")


def _rms_norm(b: ModelBuilder, x: str) -> str:
    return b.node("SimplifiedLayerNormalization", x, uneven(b), name="norm")


def _skip_norm(b: ModelBuilder, x: str) -> str:
    kind, domain = "SkipSimplifiedLayerNormalization", "com.microsoft"
    return b.node(kind, x, x, uneven(b), name="norm", domain=domain)


FRONTS = {"mul": _scaled, "layer": _layer_norm, "rms": _rms_norm, "skip": _skip_norm}


def net(front: Front = _scaled) -> onnx.ModelProto:
    """A gated layer as decoders have it, behind a normalization."""
    b = ModelBuilder(seed=3)
    x = b.node("Tanh", b.input("x", ["batch", 3, WIDTH]))
    x = front(b, x)
    up = b.random.normal(size=(WIDTH, 96)) * np.exp(b.random.normal(size=96))
    gate = b.node("Sigmoid", b.node("MatMul", x, b.weight(WIDTH, 96), name="gate"))
    wide = b.node("MatMul", x, b.constant(up.astype(np.float32)), name="up")
    wide = b.node("Mul", gate, wide, name="gated")
    b.node("MatMul", wide, b.weight(96, 40), out="y", name="down")
    b.output("y")
    return b.build()


def tied() -> onnx.ModelProto:
    """A table that is looked up, normalized and multiplied with."""
    b = ModelBuilder(seed=3)
    table = b.constant(b.random.normal(size=(WORDS, WIDTH)).astype(np.float32), "table")
    words = b.node("Gather", table, b.input("ids", ["batch", 6], onnx.TensorProto.INT64))
    x = b.node("Mul", uneven(b), words, name="norm")
    turned = b.node("Transpose", table, perm=[1, 0])
    b.node("MatMul", x, turned, out="y", name="head")
    b.output("y")
    return b.build()


def rows(count: int, seed: int = 1) -> Arrays:
    random = np.random.default_rng(seed)
    return {"x": random.normal(size=(count, 3, WIDTH)).astype(np.float32)}


def plan_of(model: onnx.ModelProto, bits: int = 4, target: str = "onnxruntime") -> QuantizedGraph:
    found = in_blocks(load_target(target), 32, bits)
    return assign(planned(model, found), None, Method.of(found))


def again(plan: QuantizedGraph, graph: Graph) -> QuantizedGraph:
    return assign(build_plan(graph, plan.target), None, Method.of(plan.target))


def smoothed(plan: QuantizedGraph, count: int = 64, gains: list[Gain] | None = None) -> Graph:
    told: list[Gain] = [] if gains is None else gains
    samples = open_samples(rows(count), plan.graph)
    return smooth_plan(plan, samples, threads=1, report=told.append)


@pytest.mark.parametrize("front", FRONTS)
def test_the_function_stays_and_less_is_lost(front: str) -> None:
    plan, gains, other = plan_of(net(FRONTS[front])), list[Gain](), rows(100, seed=7)
    digest = plan.graph.hash
    graph = smoothed(plan, gains=gains)
    assert plan.graph.hash == digest
    # Both: what is in front of the second is a layer that the first has changed.
    assert [each.node for each in gains if each.kept] == ["up", "down"]
    wanted, found = (FloatModel(each, threads=1).run(other)["y"] for each in (plan.graph, graph))
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
    assert lost(again(plan, graph), other) < 0.8 * lost(plan, other)
    assert smoothed(plan).hash == graph.hash


@pytest.mark.parametrize("target", ["openvino", "ncnn"])
def test_scales_are_those_of_the_target(target: str) -> None:
    plan, other = plan_of(net(), target=target), rows(100, seed=7)
    assert lost(again(plan, smoothed(plan)), other) < 0.8 * lost(plan, other)


def test_wide_codes_and_one_sample_change_nothing() -> None:
    wide, plan = plan_of(net(), bits=8), plan_of(net())
    assert smoothed(wide) is wide.graph
    assert smoothed(plan, count=1) is plan.graph


def test_a_table_stays_that_of_its_layer() -> None:
    plan = plan_of(tied())
    ids = {"ids": np.random.default_rng(0).integers(0, WORDS, (32, 6))}
    assert smooth_plan(plan, open_samples(ids, plan.graph), threads=1) is plan.graph


def test_activations_are_kept_of_some_tensors_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(net())
    expected = smoothed(plan).hash
    monkeypatch.setattr(smooth_blocks, "_HELD", 1)
    assert smoothed(plan).hash == expected


def test_the_pass_stays_and_the_runtime_computes_it() -> None:
    made = intact.quantize(net(), rows(32), block=32, improve=["smooth", "rounding"])
    assert [each.improvement.name for each in made.improvements] == ["smooth", "rounding"]
    assert all(each.improvement.kept for each in made.improvements)
    compared = intact.verify(made, rows(8, seed=2)).float_layers
    assert len(compared) == 3
    assert not any(each.differs for each in compared)
