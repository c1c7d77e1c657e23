"""The layer that is named costs most, by one measurement; where none does, a set is offered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from intact import api
from intact.analyze.diagnose import diagnosis
from intact.analyze.diagnose.diagnosis import decibels_of, first_runs
from intact.analyze.diagnose.findings import Finding
from intact.analyze.layer_costs import LayerCost, LayerCosts, layer_costs
from intact.data.sources import open_samples
from intact.results.result import Result
from tests.models import ModelBuilder

LAYERS = 6


def chain(seed: int) -> onnx.ModelProto:
    """Convolutions that follow each other, each with a Relu."""
    b = ModelBuilder(seed=seed)
    x = b.input("image", ["N", 8, 8, 8])
    for at in range(LAYERS):
        x = b.node("Conv", x, b.weight(8, 8, 3, 3, name=f"w{at}"), name=f"conv{at}", pads=[1] * 4)
        x = b.node("Relu", x, name=f"relu{at}", out=f"r{at}" if at < LAYERS - 1 else "y")
    b.output(x, ["N", 8, 8, 8])
    return b.build()


def quantized(folder: Path, seed: int, **given: Any) -> Result:
    onnx.save(chain(seed), folder / "model.onnx")
    random = np.random.default_rng(seed)
    for name in ("calib", "test"):
        images = random.normal(size=(128, 8, 8, 8)).astype(np.float32)
        np.savez(folder / f"{name}.npz", image=images)
    paths = folder / "model.onnx", folder / "calib.npz"
    options = {"output": folder / "out", "preset": "fast", "threads": 1, **given}
    return api.quantize(*paths, **options)


def diagnosed(folder: Path) -> tuple[tuple[Finding, ...], str, float]:
    """Return the findings, the layer that the table has first, and the decibels shown."""
    found = api.diagnose(folder / "out", folder / "test.npz", threads=1)
    assert found.errors is not None
    alone = {each.name: each.alone for each in found.errors.layers if each.alone is not None}
    assert found.errors.outputs[0].error.sqnr_db == pytest.approx(found.decibels["y"], abs=0.01)
    assert found.errors.samples == found.samples
    return found.findings, min(alone, key=lambda name: alone[name]), found.decibels["y"]


@pytest.mark.parametrize("seed", range(2))
def test_a_narrow_layer_at_any_place_is_named_by_all(seed: int, tmp_path: Path) -> None:
    place = int(np.random.default_rng(10 + seed).integers(LAYERS))
    result = quantized(tmp_path, seed, bits={f"conv{place}.weight": 2})
    assert result.loss is not None
    assert result.loss.node == result.findings[0].node == f"conv{place}"
    (first, *_), in_table, decibels = diagnosed(tmp_path)
    assert (first.cause, first.node, in_table) == ("rounding", f"conv{place}", f"conv{place}")
    assert f"'conv{place}' (Conv, 2-bit weight) makes" in first.evidence
    assert f"--bits conv{place}.weight=8" in first.remedy
    assert first.gain is not None
    quantized(tmp_path, seed)
    assert diagnosed(tmp_path)[2] - decibels > first.gain - 1  # the method is chosen anew there


def test_narrow_layers_are_named_though_an_output_has_over_20_db(tmp_path: Path) -> None:
    narrow = {f"conv{at}.weight": 5 for at in (1, 4)}
    quantized(tmp_path, 0, bits=narrow)
    (first, *_), _, decibels = diagnosed(tmp_path)
    assert 20 < decibels < 30
    assert (first.cause, first.node) in {("rounding", "conv1"), ("rounding", "conv4")}
    assert "2 layers with weights of fewer than 8 bits, which most have" in first.evidence
    assert all(f"{name}=8" in first.remedy for name in narrow)
    assert first.gain is not None
    assert first.gain > 3
    quantized(tmp_path, 0, weight_bits=5)  # alike ones: no fault of some
    assert not any("which most have" in each.evidence for each in diagnosed(tmp_path)[0])


def test_the_gain_over_rounded_weights_is_over_what_rounding_left(tmp_path: Path) -> None:
    """Without the pass narrow weights lose much more: that would be no gain of the command."""
    narrow = {f"conv{at}.weight": 2 for at in (1, 4)}
    quantized(tmp_path, 0, bits=narrow, preset="balanced")
    (first, *_), _, decibels = diagnosed(tmp_path)
    assert all(f"{name}=8" in first.remedy for name in narrow)
    quantized(tmp_path, 0)
    assert first.gain == pytest.approx(diagnosed(tmp_path)[2] - decibels, abs=1.5)


def test_where_all_layers_cost_a_set_is_offered_and_said(tmp_path: Path) -> None:
    quantized(tmp_path, 0, weight_bits=2)
    (first, *_), in_table, _ = diagnosed(tmp_path)
    assert first.node == in_table
    assert "no single one makes half" in first.evidence
    assert first.gain is not None
    assert first.gain > 10  # what all of them cost, and not what the first does


def test_costs_are_ranked_by_the_output_that_loses() -> None:
    def layer(name: str, **noise: float) -> LayerCost:
        return LayerCost(name, "Conv", f"{name}.out", (name,), noise, {})

    layers = layer("a", y=1.0, z=9.0), layer("b", y=6.0, z=0.0), layer("c", y=3.0, z=1.0)
    costs = LayerCosts(8, (*layers, *(layer(f"d{n}", y=0.0, z=0.0) for n in range(3))))
    assert [each.name for each in costs.ranked("y")] == ["b", "c", "a"]
    assert [each.name for each in costs.ranked("z")] == ["a", "c"]
    assert costs.share(layers[1], "y") == pytest.approx(0.6)
    assert [len(each) for each in costs.sets("y")] == [1, 2, 3]
    lost = LayerCosts(8, (layer("a", y=np.inf), layer("b", y=1.0)))
    assert lost.share(lost.layers[0], "y") > 0.9


def test_more_layers_than_are_measured_leave_out_the_quietest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("intact.analyze.layer_costs.MOST_LAYERS", 2)
    plan = quantized(tmp_path, 1, bits={"conv3.weight": 2}).plan
    samples = open_samples(tmp_path / "test.npz", plan.graph)
    found = layer_costs(plan, first_runs(plan, samples), threads=1)
    assert len(found.layers) == 2
    assert found.ranked("y")[0].name == "conv3"


def test_narrow_weights_are_named_where_only_wider_ones_regain_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where scales that were chosen for their sake cost more than they do.
    monkeypatch.setattr(diagnosis, "narrower_than_most", lambda *_: [])
    healthy = quantized(tmp_path, 0)
    level = min(
        decibels_of(healthy.plan, open_samples(tmp_path / "test.npz", healthy.plan.graph)).values()
    )
    quantized(tmp_path, 0, bits={"conv2.weight": 6})
    (first, *_), _, decibels = diagnosed(tmp_path)
    assert (first.cause, first.node, "conv2.weight=8" in first.remedy) == (
        "rounding",
        "conv2",
        True,
    )
    assert first.gain == pytest.approx(level - decibels, abs=1)
    quantized(tmp_path, 0, bits={"conv2.weight": 7})  # well as it is
    assert diagnosed(tmp_path)[0] == ()
