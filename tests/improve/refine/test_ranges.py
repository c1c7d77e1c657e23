"""Ranges of activations by output error: where they help, and where they must not act."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from intact.config import QuantState
from intact.data.sources import open_samples
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.formats.base.format import Deployed, Io
from intact.formats.registry import FORMATS
from intact.improve.refine.ranges import OBSERVER, refine_ranges
from intact.improve.refine.rounding import refine_rounding
from intact.numerics.metrics import sqnr_db
from intact.plan import Overrides, QuantizedGraph, TensorEnd
from intact.plan.gains import Gain
from intact.plan.given_scales import GIVEN
from tests.models import ModelBuilder
from tests.plans import calibrate, config, planned

Arrays = dict[str, npt.NDArray[Any]]


def net() -> onnx.ModelProto:
    """Convolutions with a shortcut, two tensors side by side, and a dense layer."""
    b = ModelBuilder(seed=3)
    x = b.input("image", ["batch", 3, 6, 6])
    x = b.node("Conv", x, b.weight(8, 3, 3, 3), b.weight(8), name="first", pads=[1, 1, 1, 1])
    x = b.node("Relu", x, out="trunk")
    y = b.node("Conv", x, b.weight(8, 8, 1, 1), b.weight(8), name="second", out="branch")
    x = b.node("Add", x, y, name="add", out="sum")
    z = b.node("Conv", x, b.weight(4, 8, 1, 1), b.weight(4), name="third", out="beside")
    x = b.node("Concat", x, z, name="join", axis=1, out="joined")
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    b.node("Gemm", x, b.weight(5, 12), b.weight(5), name="dense", transB=1, out="y")
    b.output("y", ["batch", 5])
    return b.build()


def tailed(count: int, seed: int = 0) -> Arrays:
    """Images with a few values that are many times as large as the others."""
    random = np.random.default_rng(seed)
    return {"image": random.standard_t(3, size=(count, 3, 6, 6)).astype(np.float32)}


def plan_of(target: str = "onnxruntime", bits: int | None = 4) -> QuantizedGraph:
    plan = planned(net(), target, Overrides(activation_bits=bits))
    return calibrate(plan, tailed(60, seed=1))


def refined(
    plan: QuantizedGraph, feeds: Arrays | None = None, gains: list[Gain] | None = None
) -> QuantizedGraph:
    told: list[Gain] = [] if gains is None else gains
    samples = open_samples(feeds or tailed(60, seed=1), plan.graph)
    return refine_ranges(plan, samples, threads=1, report=told.append)


def decibels(plan: QuantizedGraph, feeds: Arrays) -> float:
    wanted = FloatModel(plan.graph, threads=1).run(feeds)["y"]
    return sqnr_db(wanted, Simulator(plan, threads=1).run(feeds)[0]["y"])


def scales(plan: QuantizedGraph) -> dict[str, tuple[bytes, bytes]]:
    return {
        str(end): (each.scale.tobytes(), each.offset.tobytes())
        for end, each in plan.configs.items()
        if each.scale is not None and each.offset is not None
    }


def test_less_is_lost_on_other_samples() -> None:
    plan, gains = plan_of(), list[Gain]()
    before = scales(plan)
    better = refined(plan, gains=gains)
    other = tailed(200, seed=7)
    assert decibels(better, other) > decibels(plan, other) + 2
    assert config(better, "first.input[0]").observer == OBSERVER
    assert scales(plan) == before
    assert {gain.node for gain in gains} >= {"dense"}
    assert all(gain.after > gain.before for gain in gains if gain.kept)


def test_ranges_do_not_depend_on_how_weights_are_rounded() -> None:
    found = []
    for bits in (2, 8):
        plan = planned(net(), "onnxruntime", Overrides(activation_bits=4, weight_bits=bits))
        better = refined(calibrate(plan, tailed(60, seed=1)))
        ranges = {
            end: each for end, each in scales(better).items() if "trunk" in end or "input[0]" in end
        }
        assert ranges != {end: scales(plan_of())[end] for end in ranges}
        found.append(ranges)
    assert found[0] == found[1]


def test_the_same_samples_give_the_same_scales() -> None:
    plan = plan_of()
    assert scales(refined(plan)) == scales(refined(plan))


def test_biases_follow() -> None:
    better = refined(plan_of())
    for name in ("first", "second", "third", "dense"):
        data, weight, bias = (config(better, f"{name}.input[{k}]") for k in range(3))
        assert data.scale is not None
        assert weight.scale is not None
        np.testing.assert_array_equal(bias.scale, data.scale * weight.scale)


def test_the_best_of_all_candidates_is_found() -> None:
    """By brute force over a fine grid of ranges of one tensor."""
    b = ModelBuilder(seed=3)
    x = b.input("image", ["batch", 3, 6, 6])
    b.node("Conv", x, b.weight(4, 3, 3, 3), b.weight(4), name="only", out="y")
    b.output("y", ["batch", 4, 4, 4])
    feeds = tailed(60, seed=1)
    target = "integer-pow2"
    plan = calibrate(planned(b.build(), target, Overrides(activation_bits=4)), feeds)
    found = float(config(refined(plan, feeds), "only.input[0]").scale or 0)
    own = config(plan, "only.input[0]")
    losses = {}
    for factor in (0.25, 0.5, 1.0, 2.0):
        scale = float(own.scale or 0) * factor
        trial = plan.copy()
        config(trial, "only.input[0]").set_params(scale)
        # The result's own range is decided elsewhere: only what is in front of it is compared.
        array = config(trial, "only.input[0]").fake_quantize(feeds["image"])
        weight = config(trial, "only.input[1]")
        assert weight.scale is not None
        wanted, got = (
            FloatModel(plan.graph, threads=1).run({"image": each})["y"]
            for each in (feeds["image"], array)
        )
        losses[scale] = float(np.square(wanted - got).sum())
    assert found == min(losses, key=losses.__getitem__)


def test_powers_of_two_stay_powers_of_two() -> None:
    plan = plan_of("integer-pow2")
    better, other = refined(plan), tailed(200, seed=7)
    assert scales(better) != scales(plan)
    for each in better.configs.values():
        if each.scale is not None:
            assert (np.frexp(each.scale)[0] == 0.5).all()
    assert decibels(better, other) > decibels(plan, other) + 2


def test_tensors_of_one_scale_keep_one() -> None:
    better = refined(plan_of("integer-pow2"))
    ends = [config(better, f"join.{end}") for end in ("input[0]", "input[1]", "output[0]")]
    assert len({id(end.dominator) for end in ends}) == 1


@pytest.mark.parametrize("target", ["onnxruntime", "tengine"])
def test_what_is_written_computes_what_is_planned(target: str) -> None:
    plan = plan_of(target, bits=None)
    better = refined(plan)
    row = FORMATS[better.target.formats[0]]
    assert row.runtime is not None
    deployed = Deployed(better, row.writer.write(better, Io.INT8), threads=1)
    found = row.runtime.verify(deployed, [tailed(4)])
    assert found.layers
    assert not sum(each.mismatches for each in found.layers)
    assert decibels(better, tailed(200, seed=7)) > decibels(plan, tailed(200, seed=7)) - 0.5


def test_given_scales_stay() -> None:
    plan = plan_of()
    config(plan, "first.input[0]").dominator.observer = GIVEN
    assert scales(refined(plan))["first.input[0]"] == scales(plan)["first.input[0]"]


def test_scales_of_baked_biases_stay() -> None:
    plan = refine_rounding(plan_of(), open_samples(tailed(60, seed=1), plan_of().graph), threads=1)
    baked = [end for end, c in plan.configs.items() if c.state is QuantState.PASSIVE_BAKED]
    assert TensorEnd.input("first", 2) in baked
    better = refined(plan)
    for end in baked:
        data = str(TensorEnd.input(end.node, 0))
        assert scales(better)[data] == scales(plan)[data]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_samples_do_no_harm(count: int) -> None:
    plan = plan_of()
    better = refined(plan, tailed(count, seed=1))
    assert count > 1 or scales(better) == scales(plan)


def test_zeros_and_infinite_values_change_nothing() -> None:
    plan = plan_of()
    for number in (0.0, 3e38):
        feeds = {"image": np.full((20, 3, 6, 6), number, np.float32)}
        assert scales(refined(plan, feeds))["dense.input[0]"] == scales(plan)["dense.input[0]"]
