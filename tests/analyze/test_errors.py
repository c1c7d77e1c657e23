"""Layer errors, against both models run by themselves."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from intact.analyze import LayerError, quant_loss
from intact.numerics.metrics import cosine, mse, sqnr_db
from intact.program.lower import lower
from intact.run.float import FloatModel
from intact.run.integer import IntegerEngine
from intact.run.simulate import Simulator
from intact.samples.opening import open_samples
from tests.models import MODELS, depthwise_net, random_inputs, residual_net
from tests.plans import calibrated

RUNNABLE = [name for name in MODELS if name not in ("odd_names", "clutter")]


@pytest.mark.parametrize("integers", [False, True])
def test_the_last_layer_by_hand(integers: bool) -> None:
    model = residual_net()
    plan = calibrated(model, "tengine")
    feeds = random_inputs(model, batch=23, seed=4)  # two whole batches and a padded one
    loss = quant_loss(plan, open_samples(feeds, plan.graph), integers=integers, threads=1)
    assert (loss.samples, loss.executor) == (23, "integer" if integers else "simulate")
    wanted = FloatModel(plan.graph, threads=1).run(feeds)["logits"]
    if integers:
        found = IntegerEngine(lower(plan)).run(feeds).outputs["logits"]
    else:
        found = Simulator(plan, threads=1).run(feeds)[0]["logits"]
    last = loss.layers[-1]
    assert (last.op_type, last.tensor) == ("Gemm", "logits")
    assert last.cosine == pytest.approx(cosine(wanted, found), abs=1e-7)
    assert last.mse == pytest.approx(mse(wanted, found), rel=1e-4)
    assert last.sqnr_db == pytest.approx(sqnr_db(wanted, found), abs=1e-3)
    by_channel = [cosine(a, b) for a, b in zip(wanted.T, found.T, strict=True)]
    np.testing.assert_allclose(last.channel_cosines, by_channel, atol=1e-7)
    assert last.mean_cosine == pytest.approx(np.mean(by_channel), abs=1e-7)
    assert last.worst_channel is not None
    assert last.worst_channel[0] == int(np.argmin(by_channel))
    assert last.worst_channel[1] == pytest.approx(min(by_channel), abs=1e-7)


def test_channels_for_layers_with_weights_only() -> None:
    model = depthwise_net()
    plan = calibrated(model, "tengine")
    loss = quant_loss(plan, open_samples(random_inputs(model, batch=6), plan.graph))
    kinds = {layer.op_type: layer for layer in loss.layers}
    assert len(kinds["Gemm"].channel_cosines) == 3
    convs = [layer for layer in loss.layers if layer.op_type == "Conv"]
    assert [len(layer.channel_cosines) for layer in convs] == [8, 8, 4]
    # A convolution's result is that behind the Clip that is fused to it.
    clips = [str(n.outputs[0].name) for n in plan.graph.nodes if n.op_type == "Clip"]
    assert [layer.tensor for layer in convs[:2]] == clips
    mean = next(layer for layer in loss.layers if "Average" in layer.op_type)
    assert mean.channel_cosines == ()
    assert mean.worst_channel is None
    assert mean.mean_cosine == mean.cosine
    assert not any(layer.op_type == "Reshape" for layer in loss.layers)  # it moves codes


@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize("target", ["tengine", "tensorrt"])
@pytest.mark.parametrize("name", RUNNABLE)
def test_every_model(name: str, target: str, integers: bool) -> None:
    model = MODELS[name].build(17)
    plan = calibrated(model, target)
    data = open_samples(random_inputs(model, batch=4, seed=1), plan.graph)
    loss = quant_loss(plan, data, integers=integers, threads=1)
    known = {str(value.name) for value in plan.graph.values}
    for layer in loss.layers:
        assert layer.tensor in known
        assert -1.0 <= layer.cosine <= 1.0
        assert layer.mse >= 0.0
    json.dumps(loss.to_json(), allow_nan=False)


def test_at_most_so_many() -> None:
    model = residual_net()
    plan = calibrated(model, "tengine")
    feeds = random_inputs(model, batch=70, seed=4)
    assert quant_loss(plan, open_samples(feeds, plan.graph)).samples == 50
    first = quant_loss(plan, open_samples(feeds, plan.graph), most=7)
    few = {name: array[:7] for name, array in feeds.items()}
    assert first == quant_loss(plan, open_samples(few, plan.graph))
    assert quant_loss(plan, open_samples(feeds, plan.graph, limit=3)).samples == 3


def test_numbers_that_json_lacks() -> None:
    layer = LayerError("n", "Conv", "t", 1.0, (1.0, math.nan), math.inf, 0.0)
    made = layer.to_json()
    assert made["sqnr_db"] is None
    assert made["channel_cosines"] == [1.0, None]
    assert made["mean_cosine"] is None
