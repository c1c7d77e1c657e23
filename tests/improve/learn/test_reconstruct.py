"""Block-wise reconstruction: where it helps, and where it must not act."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from intact.config import QuantState
from intact.data.sources import open_samples
from intact.errors import UsageError
from intact.formats.base.format import Deployed, Io
from intact.formats.registry import FORMATS
from intact.improve.learn import block_learning
from intact.improve.learn import reconstruct as reconstruction
from intact.improve.learn.reconstruct import OBSERVER, adaround, reconstruct
from intact.improve.learn.slices import Slices
from intact.improve.learn.streams import Source
from intact.improve.learn.work import Reconstruction, Work, divide_work
from intact.improve.refine.rounding import refine_rounding
from intact.plan import Overrides, QuantizedGraph, TensorEnd
from intact.plan.gains import Gain
from intact.plan.given_scales import GIVEN
from intact.plan.plan_file import plan_to_json
from tests.improve.learn.nets import every_layer, normed
from tests.improve.refine.test_rounding import net, smooth
from tests.models import MODELS, ModelBuilder, random_inputs
from tests.nets.nets import random_net
from tests.plans import calibrate, calibrated, lost, planned

Arrays = dict[str, npt.NDArray[Any]]
QUICK = Reconstruction(steps=60, batch=16, threads=1)


def plan_of(
    model: onnx.ModelProto, target: str = "onnxruntime", bits: int | None = 4
) -> QuantizedGraph:
    overrides = Overrides(weight_bits=bits, activation_bits=bits if bits is None else 4)
    return calibrate(planned(model, target, overrides), smooth(40, seed=1))


def learned(
    plan: QuantizedGraph, options: Reconstruction = QUICK, feeds: Arrays | None = None
) -> tuple[QuantizedGraph, list[Gain]]:
    gains: list[Gain] = []
    samples = open_samples(smooth(64, seed=1) if feeds is None else feeds, plan.graph)
    return reconstruct(plan, samples, options=options, report=gains.append), gains


def content(plan: QuantizedGraph) -> tuple[bytes, dict[str, bytes]]:
    return plan_to_json(plan), {str(end): codes.tobytes() for end, codes in plan.baked.items()}


def scales_of_activations(plan: QuantizedGraph) -> dict[TensorEnd, bytes]:
    baked = {QuantState.BAKED, QuantState.PASSIVE_BAKED, QuantState.PASSIVE}
    return {
        end: config.scale.tobytes()
        for end, config in plan.configs.items()
        if config.scale is not None and end.slot == 0 and config.state not in baked
    }


def test_less_is_lost_on_other_samples() -> None:
    plan = plan_of(net())
    better, gains = learned(plan)
    other = smooth(60, seed=7)
    assert lost(better, other) < 0.85 * lost(plan, other)
    assert any(gain.kept and gain.after > gain.before for gain in gains)
    assert better.baked
    assert not plan.baked
    assert better.graph is plan.graph
    assert any(config.observer == OBSERVER for config in better.configs.values())


def test_it_goes_on_from_integers_of_another_pass() -> None:
    plan = plan_of(net())
    rounded = refine_rounding(plan, open_samples(smooth(64, seed=1), plan.graph), threads=1)
    better, gains = learned(rounded)
    other = smooth(60, seed=7)
    assert gains
    assert lost(better, other) < 1.02 * lost(rounded, other)
    assert rounded.baked.keys() <= better.baked.keys()
    for end in rounded.baked:
        assert better.configs[end].state is rounded.configs[end].state


def test_the_same_samples_give_the_same_bytes_for_any_number_of_threads() -> None:
    plan = plan_of(net())
    first = content(learned(plan)[0])
    before = torch.get_num_threads()
    torch.set_num_threads(3 - min(before, 2))
    try:
        assert content(learned(plan)[0]) == first
    finally:
        torch.set_num_threads(before)


def test_adaround_changes_the_rounding_alone() -> None:
    plan = plan_of(net())
    gains: list[Gain] = []
    samples = open_samples(smooth(64, seed=1), plan.graph)
    better = adaround(plan, samples, options=QUICK, report=gains.append)
    assert {gain.node for gain in gains if gain.kept}
    assert scales_of_activations(better) == scales_of_activations(plan)
    for end, codes in better.baked.items():
        if end.slot != 1:
            continue
        config = better.configs[end]
        value = plan.graph.node(end.node).inputs[1]
        weight = plan.graph.constant(value)
        assert weight is not None
        off = np.abs(config.dequantize(codes) - np.clip(weight, *_ends(better, end)))
        shape = [1] * weight.ndim
        shape[config.granularity.axis or 0] = -1
        assert (off <= 1.001 * np.asarray(config.scale).reshape(shape)).all()


def _ends(plan: QuantizedGraph, end: TensorEnd) -> tuple[Any, Any]:
    config = plan.configs[end]
    shape = [1] * plan.baked[end].ndim
    shape[config.granularity.axis or 0] = -1
    scale = np.asarray(config.scale).reshape(shape)
    return config.quant_min * scale, config.quant_max * scale


class _InterruptedError(Exception):
    pass


def test_an_interrupted_run_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    plan = plan_of(net())
    options = Reconstruction(steps=40, batch=16, threads=1, layers=1, folder=tmp_path)
    wanted, gains = learned(plan, Reconstruction(steps=40, batch=16, threads=1, layers=1))
    assert len(gains) > 2
    seen: list[Gain] = []

    def interrupt(gain: Gain) -> None:
        seen.append(gain)
        if len(seen) == 3:
            raise _InterruptedError

    samples = open_samples(smooth(64, seed=1), plan.graph)
    with pytest.raises(_InterruptedError):
        reconstruct(plan, samples, options=options, report=interrupt)
    steps: list[int] = []
    found, again = learned(plan, options)
    assert content(found) == content(wanted)
    assert again == gains
    finished, _ = learned(plan, options)
    assert content(finished) == content(wanted)
    assert not steps
    with pytest.raises(UsageError, match="other options"):
        learned(plan, Reconstruction(steps=41, batch=16, threads=1, layers=1, folder=tmp_path))


def test_numbers_that_are_not_finite_roll_a_block_back(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(net())
    monkeypatch.setattr(block_learning, "ROUNDING_RATE", math.nan)
    same, gains = learned(plan)
    assert gains
    assert all(math.isnan(gain.after) and not gain.kept for gain in gains)
    assert not same.baked
    assert {note.node for note in same.notes} >= {gain.node for gain in gains}
    assert scales_of_activations(same) == scales_of_activations(plan)


@pytest.mark.parametrize(
    "target", ["onnxruntime", "tflite", "openvino", "ncnn", "tengine", "integer-pow2", "tvm"]
)
def test_what_is_written_computes_what_is_planned(target: str) -> None:
    plan = plan_of(net(), target, bits=None)
    better, _ = learned(plan)
    name = better.target.formats[0]
    row = FORMATS[name]
    assert row.runtime is not None
    deployed = Deployed(better, row.writer.write(better, Io.INT8), threads=1)
    found = row.runtime.verify(deployed, [smooth(8, seed=2)])
    assert found.layers
    assert sum(each.mismatches for each in found.layers) <= (target == "integer-pow2") * 200
    assert lost(better, smooth(60, seed=7)) <= 1.1 * lost(plan, smooth(60, seed=7))
    if target == "integer-pow2":
        scales = [c.scale for c in better.configs.values() if c.scale is not None]
        assert all((np.log2(each) % 1 == 0).all() for each in scales)


def joined() -> onnx.ModelProto:
    """A Concat and a MaxPool, whose operands share a scale where the target wants that."""
    b = ModelBuilder(seed=5)
    x = b.input("image", ["batch", 3, 8, 8])
    x = b.node("Relu", b.conv(x, 3, 6))
    sides = [b.node("Relu", b.conv(x, 6, 4)) for _ in range(2)]
    x = b.node("MaxPool", b.node("Concat", *sides, axis=1), kernel_shape=[2, 2], strides=[2, 2])
    b.node("Flatten", b.node("GlobalAveragePool", b.conv(x, 8, 4)), out="y")
    b.output("y", ["batch", 4])
    return b.build()


@pytest.mark.parametrize("target", ["tflite", "onnxruntime"])
def test_tied_scales_stay_tied(target: str) -> None:
    plan = plan_of(joined(), target, bits=None)
    better, _ = learned(plan, Reconstruction(steps=40, batch=16, threads=1, layers=1))
    groups: dict[int, set[TensorEnd]] = {}
    for end, config in plan.configs.items():
        groups.setdefault(id(config.dominator), set()).add(end)
    for ends in groups.values():
        assert len({id(better.configs[end].dominator) for end in ends}) == 1


def test_given_scales_stay() -> None:
    plan = plan_of(net())
    ends = [end for end, c in plan.configs.items() if c.dominator is c and c.scale is not None]
    for end in ends:
        plan.configs[end].observer = GIVEN
    better, _ = learned(plan)
    assert scales_of_activations(better) == scales_of_activations(plan)
    assert not any(end.slot == 1 for end in better.baked)


def test_one_sample_changes_nothing() -> None:
    plan = plan_of(net())
    same, gains = learned(plan, feeds=smooth(1))
    assert same is plan
    assert not gains


def test_two_constant_images_do_no_harm() -> None:
    plan = plan_of(net())
    learned(plan, feeds={"image": np.zeros((2, 3, 8, 8), np.float32)})


def test_dead_channels_and_shared_weights_do_no_harm() -> None:
    b = ModelBuilder(seed=3)
    x = b.input("image", ["batch", 3, 8, 8])
    shared = b.weight(4, 4, 1, 1)
    dead = b.constant(np.zeros((4, 3, 3, 3), np.float32))
    x = b.node("Add", b.conv(x, 3, 4), b.node("Conv", x, dead, pads=[1] * 4))
    for _ in range(2):
        x = b.node("Relu", b.node("Conv", x, shared))
    b.node("Flatten", b.node("GlobalAveragePool", x), out="y")
    b.output("y", ["batch", 4])
    plan = plan_of(b.build())
    better, _ = learned(plan)
    assert lost(better, smooth(60, seed=7)) <= 1.1 * lost(plan, smooth(60, seed=7))


def test_nodes_that_torch_does_not_know_are_passed_through() -> None:
    b = ModelBuilder(seed=3)
    x = b.input("image", ["batch", 3, 8, 8])
    x = b.node("Relu", b.conv(x, 3, 4))
    always = b.node("Greater", b.node("ReduceMax", x, keepdims=0), b.constant(np.float32(-1)))
    outputs = [helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)]
    bodies = [
        helper.make_graph([helper.make_node(op, [x], ["inner"])], op, [], outputs)
        for op in ("Identity", "Neg")
    ]
    x = b.node("If", always, then_branch=bodies[0], else_branch=bodies[1])
    x = b.conv(x, 4, 4)
    b.node("Flatten", b.node("GlobalAveragePool", x), out="y")
    b.output("y", ["batch", 4])
    plan = plan_of(b.build())
    better, gains = learned(plan)
    assert gains
    assert lost(better, smooth(60, seed=7)) <= 1.1 * lost(plan, smooth(60, seed=7))


def test_sequences_through_a_recurrent_layer() -> None:
    """Its axis of samples is the second: batches of others' samples cannot be made of it."""
    b = ModelBuilder(seed=3)
    x = b.input("image", ["batch", 3, 8, 8])
    x = b.node("Reshape", x, b.constant(np.array([0, 8, 24])))
    x = b.node("Transpose", x, perm=[1, 0, 2])
    x = b.node("MatMul", x, b.weight(24, 6))
    x = b.node("LSTM", x, b.weight(1, 20, 6), b.weight(1, 20, 5), hidden_size=5)
    x = b.node("MatMul", x, b.weight(5, 4))
    b.node("ReduceMean", x, axes=[0, 1], keepdims=0, out="y")
    b.output("y", ["batch", 4])
    plan = plan_of(b.build())
    _, gains = learned(plan)
    assert gains


def any_net(name: str) -> onnx.ModelProto:
    if name.isdigit():
        return random_net(int(name)).model()
    if name in MODELS:
        return MODELS[name].build(max(17, MODELS[name].since))
    return {"every_layer": every_layer, "normed": normed}[name]()


@pytest.mark.parametrize("name", [*MODELS, "every_layer", "normed", "0", "9", "11"])
@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_every_net_goes_through(name: str, target: str) -> None:
    """With biases as integers and as floats, and constants that some of the blocks read."""
    model = any_net(name)
    plan = calibrated(model, target)
    feeds = random_inputs(model, batch=6, seed=3)
    few = Reconstruction(steps=2, batch=3, threads=1)
    for learn in (adaround, reconstruct):
        found = learn(plan, open_samples(feeds, plan.graph), options=few)
        assert found.configs.keys() == plan.configs.keys()


def test_dear_blocks_get_smaller_batches_and_then_fewer_steps() -> None:
    options = Reconstruction(steps=1000, batch=32, work=3 * 32 * 1000 * 100.0)
    cheap, none, dear, dearest = divide_work([10.0, 0.0, 80.0, 8000.0], options)
    assert (cheap.steps, cheap.batch) == (1000, 32)
    assert none.steps == 0
    assert dear.batch < 32
    assert dear.steps >= 900
    assert dearest.batch == 8
    assert dearest.steps == 100


def test_small_steps_run_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that wait for each other take ten times as long on a busy machine."""
    plan = plan_of(net())
    for least, threads in ((reconstruction._SMALL_STEP, 1), (0.0, 2)):
        monkeypatch.setattr(reconstruction, "_SMALL_STEP", least)
        seen: list[int] = []
        samples = open_samples(smooth(64, seed=1), plan.graph)
        options = Reconstruction(steps=2, batch=16, threads=2)
        adaround(
            plan,
            samples,
            options=options,
            report=lambda _, seen=seen: seen.append(torch.get_num_threads()),  # type: ignore[misc]
        )
        assert set(seen) == {threads}


def test_few_weights_of_large_images_take_little_work() -> None:
    """The work follows from the weights: no more for images of four times the size."""
    taken = []
    for size in (32, 64):
        b = ModelBuilder(seed=3)
        x = b.node("Relu", b.conv(b.input("image", ["batch", 3, size, size]), 3, 4))
        b.node("Relu", b.conv(x, 4, 4), out="y")
        b.output("y", ["batch", 4, size, size])
        images = np.random.default_rng(0).normal(size=(4, 3, size, size)).astype(np.float32)
        plan = calibrate(planned(b.build()), {"image": images})
        source = Source.of(open_samples({"image": images}, plan.graph), 4, 32)
        slices = Slices(plan, {}, torch.device("cpu"))
        work = Work.of(
            slices, source.fit, frozenset({"Conv_conv_3", "Conv_conv_7"}), Reconstruction()
        )
        each = [pace.steps * pace.batch * size**2 for pace in work.paces if pace.steps]
        assert len(each) == 1
        taken.append(sum(each))
    assert taken[1] < 1.5 * taken[0]


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match="drop=1"):
        Reconstruction(drop=1.0)
    with pytest.raises(UsageError, match="steps=0"):
        Reconstruction(steps=0)
