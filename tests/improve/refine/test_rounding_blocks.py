"""Second-order rounding of weights in blocks, whose layers compute in float."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import intact
from intact.calibrate.assign import assign
from intact.calibrate.method import Method
from intact.calibrate.outputs import FloatRuns
from intact.config import QuantState
from intact.data.sources import open_samples
from intact.errors import UsageError
from intact.improve.layers import Layer
from intact.improve.refine.moments import Moments
from intact.improve.refine.rounding import OBSERVER, refine_rounding
from intact.improve.refine.rounding_blocks import SharedInput
from intact.improve.refine.walk import Shelf, Walk
from intact.numerics.metrics import decibels
from intact.plan import Overrides, QuantizedGraph, TensorEnd
from intact.plan.gains import Gain
from intact.targets import in_blocks, load_target
from tests.block_nets import WIDTH, WORDS, decoder, dense_net
from tests.models import ModelBuilder
from tests.plans import lost, planned
from tests.texts import DECODER, saved, tiny_decoder

Arrays = dict[str, npt.NDArray[np.float32]]
LAYERS = ("first", "second", "third")


def mixed(count: int, seed: int) -> Arrays:
    """Inputs that depend on each other, as those of layers do: 12 numbers, mixed, and noise."""
    mix = np.random.default_rng(5).normal(size=(12, 100))
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 12)) @ mix + 0.1 * random.normal(size=(count, 100))
    return {"x": (x / 3).astype(np.float32)}


def plan_of(
    model: onnx.ModelProto,
    size: int = 32,
    bits: int = 4,
    *,
    zero_points: bool = False,
    keep_float: tuple[str, ...] = (),
) -> QuantizedGraph:
    target = in_blocks(load_target("onnxruntime"), size, bits, zero_points=zero_points)
    plan = planned(model, target, Overrides(keep_float=keep_float))
    return assign(plan, None, Method.of(target))


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize(("size", "bits"), [(16, 4), (32, 4), (32, 2)])
def test_less_is_lost_on_other_samples(size: int, bits: int, zero_points: bool) -> None:
    plan, fitted = plan_of(dense_net(), size, bits, zero_points=zero_points), mixed(400, 1)
    samples = open_samples(fitted, plan.graph)
    gains: list[Gain] = []
    better = refine_rounding(plan, samples, threads=1, report=gains.append)
    other = mixed(200, 7)
    assert lost(better, other) < 0.6 * lost(plan, other)
    assert [each.node for each in gains if each.kept] == list(LAYERS)
    for name in LAYERS:
        end = TensorEnd.input(name, 1)
        own, codes = better.configs[end], better.baked[end]
        assert (own.state, own.observer) == (QuantState.BAKED, OBSERVER)
        assert own.quant_min <= codes.min() < codes.max() <= own.quant_max
        scale = np.asarray(own.scale)
        assert np.array_equal(scale, scale.astype(np.float16))
    assert not plan.baked
    again = refine_rounding(plan, samples, threads=1)
    assert again.baked.keys() == better.baked.keys()
    assert all(np.array_equal(codes, again.baked[end]) for end, codes in better.baked.items())


@pytest.mark.parametrize("memory", [0, 50_000])
def test_activations_beyond_the_memory_wait_on_disk(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(dense_net())
    samples = open_samples(mixed(64, 1), plan.graph)
    expected = refine_rounding(plan, samples, threads=1)
    held, kept = [0], [0]
    put, drop = Shelf.put, Shelf.drop

    def putting(shelf: Shelf, array: npt.NDArray[Any]) -> npt.NDArray[Any] | Path:
        found = put(shelf, array)
        kept[0] += 0 if isinstance(found, Path) else found.nbytes
        held.append(kept[0])
        return found

    def dropping(shelf: Shelf, array: npt.NDArray[Any] | Path) -> None:
        kept[0] -= 0 if isinstance(array, Path) else array.nbytes
        drop(shelf, array)

    monkeypatch.setattr(Shelf, "put", putting)
    monkeypatch.setattr(Shelf, "drop", dropping)
    found = refine_rounding(plan, replace(samples, memory=memory), threads=1)
    assert max(held) <= memory
    assert found.baked.keys() == expected.baked.keys()
    assert all(np.array_equal(codes, found.baked[end]) for end, codes in expected.baked.items())


def test_the_preset_rounds_and_the_runtime_computes_it() -> None:
    made = intact.quantize(dense_net(), mixed(64, 1), block=32, preset="balanced")
    (rounding,) = made.improvements
    assert rounding.improvement.name == "rounding"
    assert rounding.improvement.kept
    assert all(point in made.plan.baked for point in (TensorEnd.input(n, 1) for n in LAYERS))
    compared = intact.verify(made, mixed(8, 2)).float_layers
    assert len(compared) == len(LAYERS)
    assert not any(each.differs for each in compared)


@pytest.mark.parametrize("zero_points", [False, True])
def test_a_table_that_is_looked_up_gets_its_scales_before_the_layers(zero_points: bool) -> None:
    b = ModelBuilder()
    table = b.random.normal(0, 1, (WORDS, 40)).astype(np.float32)  # the last block is ragged
    ids = b.input("ids", ["batch", "length"], onnx.TensorProto.INT64)
    b.node("Gather", b.constant(table), ids, out="words", name="words")
    b.node("MatMul", "words", b.weight(40, 16), out="y", name="layer")
    b.output("y")
    plan = plan_of(b.build(), zero_points=zero_points)
    given = {"ids": np.random.default_rng(0).integers(0, WORDS, (64, 9))}
    gains: list[Gain] = []
    better = refine_rounding(plan, open_samples(given, plan.graph), threads=1, report=gains.append)
    end = TensorEnd.input("words", 0)
    own = better.configs[end]
    assert [each.node for each in gains] == ["words", "layer"]
    nearest = plan.configs[end].dequantize(plan.configs[end].quantize(table))
    errors = [
        np.square(each - table).sum() for each in (own.dequantize(own.quantize(table)), nearest)
    ]
    assert errors[0] < 0.95 * errors[1]
    assert gains[0].after - gains[0].before == pytest.approx(-decibels(*errors), abs=1e-3)
    scale = np.asarray(own.scale)
    assert np.array_equal(scale, scale.astype(np.float16))
    assert own.observer == OBSERVER


def test_of_all_samples_less_is_damped_than_of_those_that_are_fitted() -> None:
    graph = planned(dense_net(), in_blocks(load_target("onnxruntime"), 32, 4)).graph
    layer = Layer.of(graph, graph.node("first"))
    assert layer is not None
    fitted, checked = (
        Moments.of(layer, [(each["x"], each["x"])], of_float=False)
        for each in (mixed(30, 1), mixed(90, 2))
    )
    shared = SharedInput(fitted, checked)
    some, whole = (shared.prepared(1.0, of_all=each) for each in (False, True))
    assert some is not None
    assert whole is not None
    for fit, seen, damping in (
        (some, shared.fit, 1.0),
        (whole, shared.fit + shared.held_out, 30 / 120),
    ):
        moments = seen.of_quantized()[1][0]
        ridge = damping * np.trace(moments) / len(moments) * np.eye(len(moments))
        np.testing.assert_allclose(fit.moments, moments + ridge)


@pytest.mark.parametrize("beside", [0.0, 10.0])
def test_a_table_and_the_layer_that_multiplies_with_it_are_one(beside: float) -> None:
    """Both are rounded for the products, where what is looked up does not lose more by that."""

    def feeds(count: int, seed: int) -> dict[str, npt.NDArray[Any]]:
        ids = np.random.default_rng(seed).integers(0, WORDS, (count, 9))
        x = mixed(count * 9, seed)["x"][:, :WIDTH].reshape(count, 9, WIDTH)
        return {"ids": ids, "x": x} if beside else {"ids": ids}

    plan = plan_of(decoder(beside=beside))
    better = refine_rounding(plan, open_samples(feeds(64, 0), plan.graph), threads=1)
    layer, head, table = (
        TensorEnd.input(*each) for each in (("layer", 1), ("head", 1), ("words", 0))
    )
    assert set(better.baked) == ({head, table} if beside else {layer})
    runs = FloatRuns(plan.graph, [(feeds(16, 1), 16)], threads=1)
    assert runs.simulated(better).mean > runs.simulated(plan).mean + 0.5
    if beside:
        assert np.array_equal(better.baked[table], better.baked[head].T)
        scales = [np.asarray(better.configs[end].scale) for end in (table, head)]
        assert np.array_equal(scales[0], scales[1].T)
        assert not plan.baked


def test_nodes_between_products_run_together_and_compute_the_same(tmp_path: Path) -> None:
    """Attention of a decoder is one session, and what only it reads is never kept."""
    plan = plan_of(onnx.load(saved(tiny_decoder(), tmp_path)))
    ids = np.random.default_rng(0).integers(0, DECODER.vocabulary, (2, 6))
    samples = open_samples([fed(plan, row[None]) for row in ids], plan.graph)
    stops = []
    for together in (False, True):
        walk = Walk(plan, samples, most=2, threads=1, together=together)
        stops.append({str(stop.node.name): [stop.in_float[0], stop.quantized[0]] for stop in walk})
    apart, found = stops
    products = {f"/model/layers.1/self_attn/{each}_proj/MatMul" for each in "qkvo"}
    assert products < found.keys() < apart.keys()
    assert len(found) < len(apart) / 3
    for name, models in found.items():
        for one, other in zip(models, apart[name], strict=True):
            for value, array in one.items():
                np.testing.assert_allclose(array, other[value], rtol=1e-4, atol=1e-5)


def fed(plan: QuantizedGraph, ids: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
    """Inputs of a decoder whose caches are empty."""
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    given["position_ids"] = np.arange(ids.shape[1])[None]
    empty = np.zeros((1, DECODER.key_heads, 0, DECODER.head), np.float32)
    return {str(value.name): given.get(str(value.name), empty) for value in plan.graph.inputs}


def test_without_data_the_preset_asks_for_some() -> None:
    with pytest.raises(UsageError, match="rounding needs samples"):
        intact.quantize(dense_net(), block=32, preset="balanced")
