"""Scales of weights by the best cosine of a layer's result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from intact.analyze.errors import quant_loss
from intact.config import QuantState
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.graph import is_constant
from intact.improve.refine.walk import Walk
from intact.improve.refine.weight_scales import ZOOMS, refine_weight_scales
from intact.plan import QuantizedGraph, quantization_points
from intact.plan.given_scales import GIVEN
from tests.models import MODELS, ModelBuilder, random_inputs
from tests.plans import calibrated, config

RUNNABLE = [name for name in MODELS if name not in ("odd_names", "clutter")]


def outlier_net() -> onnx.ModelProto:
    """Layers with one large weight in each channel, so that clipping it can pay."""
    b = ModelBuilder(seed=1)
    x = b.input("image", ["batch", 4, 6, 6])
    for k in range(3):
        weight = b.random.normal(size=(6, 4 if k == 0 else 6, 3, 3)) * 0.01
        weight[:, 0, 0, 0] = 0.4
        bias = b.constant(b.random.normal(size=6).astype(np.float32) * 0.1)
        x = b.node("Conv", x, b.constant(weight.astype(np.float32)), bias, name=f"conv{k}")
        x = b.node("Relu", x, name=f"relu{k}")
        x = b.node("Pad", x, b.ints(0, 0, 1, 1, 0, 0, 1, 1))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    b.node("Gemm", x, b.weight(5, 6), b.weight(5), name="dense", out="y", transB=1)
    b.output("y", ["batch", 5])
    return b.build()


def samples(model: onnx.ModelProto, plan: QuantizedGraph, batch: int = 12) -> Samples:
    return open_samples(random_inputs(model, batch=batch, seed=1), plan.graph)


def scale_of(plan: QuantizedGraph, end: str) -> npt.NDArray[np.float32]:
    scale = config(plan, end).scale
    assert scale is not None
    return scale


def weight_scales(plan: QuantizedGraph) -> dict[str, npt.NDArray[np.float32]]:
    return {
        str(p.end): np.asarray(p.config.scale)
        for p in quantization_points(plan)
        if p.is_constant and p.config.bits <= 8
    }


@pytest.mark.parametrize("target", ["tengine", "onnxruntime", "tengine-u8"])
def test_the_first_layer_gets_no_worse_in_any_channel(target: str) -> None:
    model = outlier_net()
    plan = calibrated(model, target)
    data = samples(model, plan)
    refined = refine_weight_scales(plan, data)
    before, after = (quant_loss(each, data).layers for each in (plan, refined))
    assert [layer.tensor for layer in before] == [layer.tensor for layer in after]
    channels = zip(before[0].channel_cosines, after[0].channel_cosines, strict=True)
    if config(plan, "conv0.input[1]").granularity.axis is not None:
        assert all(new >= old - 1e-9 for old, new in channels)
    assert after[0].cosine >= before[0].cosine - 1e-6


def test_every_scale_is_a_zoom_of_what_it_was() -> None:
    model = outlier_net()
    plan = calibrated(model, "tengine")
    kept = {name: scale.copy() for name, scale in weight_scales(plan).items()}
    refined = refine_weight_scales(plan, samples(model, plan))
    assert all(np.array_equal(kept[n], s) for n, s in weight_scales(plan).items())
    zooms = np.array(ZOOMS)
    changed = 0
    for name, scale in weight_scales(refined).items():
        ratios = np.atleast_1d(scale / kept[name])
        assert np.abs(ratios[:, None] - zooms).min(axis=1).max() < 1e-5
        changed += int(np.sum(np.abs(ratios - 1) > 1e-3))
    assert changed
    assert sorted(ZOOMS)[:2] == pytest.approx([0.0065, 0.1365])
    assert ZOOMS[0] == 1.0
    assert max(ZOOMS) == pytest.approx(1.3 / 200 * 181)


def test_biases_follow() -> None:
    model = outlier_net()
    refined = refine_weight_scales(plan := calibrated(model, "tengine"), samples(model, plan))
    for name in ("conv0", "conv1", "conv2", "dense"):
        x, w, bias = (scale_of(refined, f"{name}.input[{slot}]") for slot in range(3))
        assert config(refined, f"{name}.input[2]").state is QuantState.PASSIVE
        assert np.array_equal(bias, w * x)


def test_what_came_from_outside_stays() -> None:
    model = outlier_net()
    plan = calibrated(model, "tengine")
    config(plan, "conv1.input[1]").observer = GIVEN
    refined = refine_weight_scales(plan, samples(model, plan))
    same = [
        np.array_equal(scale, weight_scales(refined)[name])
        for name, scale in weight_scales(plan).items()
        if name.startswith("conv1")
    ]
    assert same == [True]


def test_powers_of_two_stay_such() -> None:
    model = outlier_net()
    plan = calibrated(model, "integer-pow2")
    refined = refine_weight_scales(plan, samples(model, plan))
    for scale in weight_scales(refined).values():
        assert (np.frexp(scale)[0] == 0.5).all()


@pytest.mark.crossed
@pytest.mark.parametrize("target", ["tengine", "onnxruntime"])
@pytest.mark.parametrize("name", RUNNABLE)
def test_the_walk_gives_what_both_models_compute(name: str, target: str) -> None:
    model = MODELS[name].build(17)
    plan = calibrated(model, target)
    feeds = random_inputs(model, batch=3, seed=2)
    walk = Walk(plan, open_samples(feeds, plan.graph), most=3, threads=1)
    shown = {value: str(value.name) for value in plan.graph.outputs}
    floats: dict[str, npt.NDArray[np.float32]] = {}
    for stop in walk:
        outputs = [value for value in stop.node.outputs if value.name]
        for value, parts in zip(outputs, zip(*stop.results, strict=True), strict=True):
            if value in shown and parts[0].ndim:
                floats[shown[value]] = np.concatenate(parts)
    wanted = FloatModel(plan.graph, threads=1).run(feeds)
    for key, array in floats.items():
        np.testing.assert_allclose(array, wanted[key], rtol=1e-4, atol=1e-5)


def test_the_walk_quantizes_as_the_simulator_does() -> None:
    model = outlier_net()
    plan = calibrated(model, "tengine")
    feeds = random_inputs(model, batch=5, seed=2)
    simulator = Simulator(plan, threads=1)
    simulated = simulator.run(feeds, list(simulator.points))[1]
    by_value = {str(simulator.points[end].value.name): array for end, array in simulated.items()}
    compared = 0
    for stop in Walk(plan, open_samples(feeds, plan.graph), most=5, threads=1):
        for value in stop.quantized[0]:
            expected = by_value.get(str(value.name))
            if expected is not None:
                parts = [arrays[value] for arrays in stop.quantized]
                array = parts[0] if is_constant(value) else np.concatenate(parts)
                step = float(scale_of(plan, "conv0.input[0]"))
                assert np.mean(np.abs(array - expected) > 1e-6 * step) < 0.01
                compared += 1
    assert compared > 5


def test_only_so_many_samples_are_read() -> None:
    model = outlier_net()
    plan = calibrated(model, "tengine")
    data = samples(model, plan, batch=12)
    few = refine_weight_scales(plan, data, most=4)
    same = refine_weight_scales(plan, samples(model, plan, batch=12), most=4)
    for name, scale in weight_scales(few).items():
        assert np.array_equal(scale, weight_scales(same)[name])


def test_a_model_of_a_fixed_batch(tmp_path: Path) -> None:
    b = ModelBuilder()
    b.node("Conv", b.input("image", [2, 3, 4, 4]), b.weight(4, 3, 3, 3), name="c", out="y")
    b.output("y")
    model = b.build()
    feeds = {"image": np.random.default_rng(0).normal(size=(4, 3, 4, 4)).astype(np.float32)}
    plan = calibrated(model, "tengine")
    refined = refine_weight_scales(plan, open_samples(feeds, plan.graph))
    assert scale_of(refined, "c.input[1]").shape == (4,)


def test_the_walk_goes_on_with_what_was_changed() -> None:
    model = outlier_net()
    data = samples(model, calibrated(model, "tengine"), batch=4)

    def seen(zoom: float) -> list[npt.NDArray[np.float32]]:
        plan, found = calibrated(model, "tengine"), []
        for stop in Walk(plan, data, most=4, threads=1):
            if stop.node.name == "conv0":
                weight = config(plan, "conv0.input[1]")
                assert weight.params is not None
                weight.set_params(weight.params.scale * np.float32(zoom), weight.params.zero_point)
            if stop.node.name == "relu0":
                found += [array for arrays in stop.quantized for array in arrays.values()]
        return found

    for same, other in zip(seen(1.0), seen(0.1), strict=True):
        assert not np.array_equal(same, other)
