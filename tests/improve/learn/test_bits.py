"""The codes of a module against those of the target's own arithmetic, for every target."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from intact.engines.integer.engine import IntegerEngine
from intact.engines.simulate import Simulator
from intact.graph import Graph
from intact.improve.learn.module import QuantizedModule
from intact.improve.learn.write_back import trained_plan
from intact.plan import QuantizedGraph, TensorEnd, load_plan, save_plan
from intact.plan.points import has_logarithmic_levels
from intact.plan.untie import is_requantized
from intact.program.lower import lower
from intact.targets import target_names
from tests.improve.learn.nets import every_layer, normed, tensors, trained
from tests.models import MODELS, ModelBuilder, random_inputs
from tests.plans import Arrays, calibrated

MODEL = every_layer()
SHARE, SHARE_OF_POOLS, SHARE_OF_TABLES = 0.06, 0.15, 0.3
"""Of the codes of a tensor, how many differ at most in float32: sums of multiples of a step lie on
ties now and then, and targets round with fixed-point multipliers; the mean of 4 or 6 pixels lies on
one often; and of 16 bits, a function by its table is not that of the floats."""
SHARE_OF_REQUANTIZED = 0.25
"""Codes that a join requantizes lie on ties of its step often."""


@cache
def plan_for(target: str) -> QuantizedGraph:
    return calibrated(MODEL, target)


AFFINE = [name for name in target_names() if not has_logarithmic_levels(plan_for(name))]
LOGARITHMIC = sorted({*target_names()} - {*AFFINE})


def engine_run(plan: QuantizedGraph, feeds: Arrays) -> tuple[dict[TensorEnd, Arrays], Arrays]:
    """The engine's numbers (codes less zero point, times the scale) by end, and its outputs."""
    program = lower(plan)
    found = {
        each.name: each
        for each in program.tensors()
        if each.end is not None and each.encoding is not None and not each.is_constant
    }
    run = IntegerEngine(program, threads=1).run(feeds, found)
    codes = {}
    for name, array in run.tensors.items():
        tensor = found[name]
        assert tensor.end is not None
        assert tensor.encoding is not None
        zero = np.asarray(tensor.encoding.zero_point, np.int64)
        codes[tensor.end] = {"codes": tensor.as_in_model(array).astype(np.int64) - int(zero)}
    return codes, dict(run.outputs)


def assert_same_codes(module: QuantizedModule, plan: QuantizedGraph, feeds: Arrays) -> None:
    """Every code, less its zero point, is the engine's; outputs are those of the codes."""
    module.eval().double()
    inputs = [torch.from_numpy(array) for array in feeds.values()]
    with torch.no_grad():
        own, outputs = module.codes(*inputs), module(*inputs)
    expected, _ = engine_run(plan, feeds)
    assert set(expected) == set(own)
    for end, codes in own.items():
        offset = plan.configs[end].offset
        zero = 0 if offset is None else int(np.asarray(offset))
        np.testing.assert_array_equal(codes.numpy() - zero, expected[end]["codes"], str(end))
    found = outputs if isinstance(outputs, tuple) else (outputs,)
    ends = {str(node.outputs[0].name): str(node.name) for node in plan.graph.nodes}
    for value, output in zip(plan.graph.outputs, found, strict=True):
        end = TensorEnd.output(ends[str(value.name)], 0)
        if end in own:
            scale = float(np.asarray(plan.configs[end].dominator.scale))
            numbers = expected[end]["codes"] * scale
            np.testing.assert_allclose(output.numpy(), numbers, rtol=1e-12)


@pytest.mark.parametrize("target", AFFINE)
def test_in_float64_every_code_is_the_engines(target: str) -> None:
    plan = plan_for(target)
    feeds = dict(random_inputs(MODEL, batch=4, seed=5))
    assert_same_codes(QuantizedModule(plan), plan, feeds)


@pytest.mark.parametrize("target", AFFINE)
def test_in_float64_every_code_is_the_engines_after_training_too(
    target: str, tmp_path: Path
) -> None:
    module = trained(QuantizedModule(plan_for(target), learning="lsq+"), MODEL)
    plan = trained_plan(module)
    plan.graph.save(tmp_path / "model.onnx")
    save_plan(plan, tmp_path / "plan.json")
    loaded = load_plan(tmp_path / "plan.json", Graph.load(tmp_path / "model.onnx"))
    weight = next(
        value for value in loaded.graph.values if str(value.name) in module.constants.keys
    )
    before = plan_for(target).graph.constant(plan_for(target).graph.value(str(weight.name)))
    after = loaded.graph.constant(weight)
    assert before is not None
    assert after is not None
    assert not np.array_equal(after, before)
    assert_same_codes(module, loaded, dict(random_inputs(MODEL, batch=4, seed=5)))


@pytest.mark.parametrize("target", AFFINE)
def test_in_float32_few_codes_differ_and_by_one_step(target: str) -> None:
    plan = plan_for(target)
    module = QuantizedModule(plan).eval()
    wide = {str(end) for end, config in plan.configs.items() if config.bits > 8}
    for end, found in module.differing_codes(*tensors(MODEL, batch=8)).items():
        share = SHARE_OF_POOLS if "AveragePool" in str(end) else SHARE
        share = SHARE_OF_TABLES if str(end) in wide else share
        share = SHARE_OF_REQUANTIZED if is_requantized(plan.configs[end]) else share
        assert found.largest <= 1, end
        assert found.codes <= max(1, share * found.elements), end
    assert module.arithmetic == "auto"


@pytest.mark.parametrize("target", LOGARITHMIC)
def test_logarithmic_levels_are_those_of_the_simulation(target: str) -> None:
    plan = plan_for(target)
    feeds = dict(random_inputs(MODEL, batch=4, seed=5))
    expected, _ = Simulator(plan, threads=1).run(feeds)
    for module in (QuantizedModule(plan).eval(), QuantizedModule(plan).eval().double()):
        found = module(*(torch.from_numpy(array) for array in feeds.values()))
        for value, output in zip(plan.graph.outputs, found, strict=True):
            right = expected[str(value.name)]
            close = np.isclose(output.detach().numpy(), right, rtol=1e-5, atol=1e-6)
            assert close.mean() >= 0.9  # a level is 4 % off its neighbour, and sums may tie


@pytest.mark.parametrize("name", ["detector", "transformer", "clutter", "sequence", "transposed"])
@pytest.mark.parametrize("target", ["onnxruntime", "tflite", "integer-pow2"])
def test_other_models_have_the_engines_codes(name: str, target: str) -> None:
    model = MODELS[name].build(17)
    plan = calibrated(model, target)
    assert_same_codes(QuantizedModule(plan), plan, dict(random_inputs(model, batch=2, seed=5)))


def test_a_net_without_weights_has_exact_codes_too() -> None:
    """No parameter tells its dtype."""
    b = ModelBuilder()
    x = b.input("image", ["batch", 2, 6, 6])
    b.node("AveragePool", x, kernel_shape=[2, 2], out="y")
    b.output("y")
    model = b.build()
    plan = calibrated(model, "tflite")
    feeds = dict(random_inputs(model, batch=8, seed=5))
    assert_same_codes(QuantizedModule(plan, learning="fixed"), plan, feeds)
    module = QuantizedModule(plan, learning="fixed").eval().double()
    module.arithmetic = "target"
    right = module(torch.from_numpy(feeds["image"]))
    module.arithmetic = "auto"
    assert torch.equal(module(torch.from_numpy(feeds["image"])), right)


def test_changes_of_any_kind_are_seen() -> None:
    """Also those that PyTorch does not count, by way of ``data``."""
    module = QuantizedModule(calibrated(normed(), "tflite")).eval().double()
    x = tensors(normed())
    before = module(*x)
    for parameter in module.weight_parameters():
        parameter.data.mul_(0.5)
    after = module(*x)
    assert not torch.equal(before, after)
    assert torch.equal(after, QuantizedModule(trained_plan(module)).eval().double()(*x))


def test_target_arithmetic_trains_with_the_gradient_of_the_quantizers() -> None:
    plan = plan_for("tflite")
    module, other = QuantizedModule(plan), QuantizedModule(plan)
    module.arithmetic = "target"
    x = tensors(MODEL)
    for each in (module, other):
        sum(output.square().sum() for output in each(*x)).backward()
    with torch.no_grad():
        exact = QuantizedModule(plan).eval().double()(*x)
        for found, right in zip(module(*x), exact, strict=True):
            torch.testing.assert_close(found.double(), right, rtol=1e-6, atol=1e-7)
    for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.isfinite(mine.grad).all()
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0.5, atol=0.1)
