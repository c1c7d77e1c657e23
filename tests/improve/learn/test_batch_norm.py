"""BatchNormalizations that are kept: as PyTorch has them in training, as the plan in evaluation."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor
from torch.nn import functional

from intact.errors import UsageError
from intact.improve.learn.batch_norm import FoldedNorm, Folding
from intact.improve.learn.module import QuantizedModule
from intact.improve.learn.training import parameter_groups
from intact.improve.learn.write_back import trained_plan
from tests.improve.learn.nets import normed, one_layer, tensors, trained
from tests.models import ModelBuilder
from tests.plans import calibrated

OPERATORS = ("Conv", "ConvTranspose", "Gemm")
KEPT = [each for each in Folding if each is not Folding.FOLDED]
LIVE = [each for each in KEPT if each is not Folding.FROZEN]


def the_norm(module: QuantizedModule) -> FoldedNorm:
    (norm,) = module.norms.values()
    assert isinstance(norm, FoldedNorm)
    return norm


def given(model: onnx.ModelProto) -> list[Tensor]:
    """Weight, bias, gamma, beta, mean and variance of `one_layer`, to be trained."""
    arrays = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    layer, norm = model.graph.node
    names = [*layer.input[1:3], *norm.input[1:5]]
    found = [torch.tensor(arrays[name]) for name in names]
    return [each.requires_grad_(k < 4) for k, each in enumerate(found)]


def reference(op: str, x: Tensor, parts: Sequence[Tensor], *, training: bool) -> Tensor:
    """The layer with its normalization in plain PyTorch; running statistics change in place."""
    weight, bias, gamma, beta, mean, variance = parts
    match op:
        case "Conv":
            result = functional.conv2d(x, weight, bias)
        case "ConvTranspose":
            result = functional.conv_transpose2d(x, weight, bias)
        case _:
            result = x @ weight + bias
    return functional.batch_norm(result, mean, variance, gamma, beta, training, 0.1, 1e-3)


@pytest.mark.crossed
@pytest.mark.parametrize("folding", LIVE)
@pytest.mark.parametrize("op", OPERATORS)
def test_without_quantizers_training_is_that_of_pytorch(op: str, folding: Folding) -> None:
    model = one_layer(op)
    module = QuantizedModule(calibrated(model), batch_norm=folding).train()
    module.enable_quantizers(False)
    parts = given(model)
    (x,) = tensors(model, batch=8)
    weights = torch.linspace(-1, 1, 4).reshape(1, 4, *[1] * (x.ndim - 2))
    found, right = module(x), reference(op, x, parts, training=True)
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
    for result in (found, right):
        (result.square() * weights).mean().backward()
    norm, (weight, bias) = the_norm(module), module.constants.parameters()
    for mine, theirs in zip(
        (weight, norm.weight, norm.bias), (*parts[:1], *parts[2:]), strict=False
    ):
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    assert bias.grad is None or bias.grad.abs().max() < 1e-5  # the normalization takes it out
    torch.testing.assert_close(norm.running_mean, parts[4], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.running_var, parts[5], rtol=1e-4, atol=1e-5)
    module.eval()
    right = reference(op, x, parts, training=False)
    torch.testing.assert_close(module(x), right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("folding", KEPT)
def test_in_evaluation_it_is_the_folded_plan(folding: Folding) -> None:
    model = normed()
    plan = calibrated(model, "tflite")
    kept, folded = QuantizedModule(plan, batch_norm=folding), QuantizedModule(plan)
    assert len(kept.norms) == 3  # that of the ConvTranspose with groups stays folded
    kept.eval()
    folded.eval()
    x, step = tensors(model, batch=8), float(np.asarray(next(iter(plan.configs.values())).scale))
    assert (kept(*x) - folded(*x)).abs().max() < 3 * step
    kept.enable_quantizers(False)
    folded.enable_quantizers(False)
    torch.testing.assert_close(kept(*x), folded(*x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("folding", KEPT)
def test_what_was_trained_is_written_back_folded(folding: Folding) -> None:
    model = normed()
    module = trained(QuantizedModule(calibrated(model, "tflite"), batch_norm=folding), model)
    plan = trained_plan(module)
    again = QuantizedModule(plan).eval().double()
    assert torch.equal(again(*tensors(model)), module.eval().double()(*tensors(model)))
    for node, key in module._normed.items():
        norm, stored = module.norms[key], plan.graph.batch_norms[node]
        assert isinstance(norm, FoldedNorm)
        np.testing.assert_allclose(stored.gamma, norm.weight.detach().numpy(), rtol=1e-6)
        np.testing.assert_allclose(stored.variance, norm.running_var.numpy(), rtol=1e-5)


def test_written_back_untrained_it_is_the_plan() -> None:
    model = normed()
    plan = calibrated(model)
    for folding in KEPT:
        found = trained_plan(QuantizedModule(plan, batch_norm=folding)).graph
        for value in plan.graph.values:
            before = plan.graph.constant(value)
            if before is not None and before.dtype.kind == "f":
                after = np.asarray(found.constant(found.value(str(value.name))))
                np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


def test_frozen_ones_leave_the_running_statistics_alone() -> None:
    model = one_layer("Conv")
    module = QuantizedModule(calibrated(model), batch_norm="frozen")
    before = copy.deepcopy(the_norm(module).state_dict())
    trained(module, model)
    after = the_norm(module).state_dict()
    assert torch.equal(before["running_mean"], after["running_mean"])
    assert torch.equal(before["running_var"], after["running_var"])
    assert not torch.equal(before["weight"], after["weight"])
    module.freeze_batch_norms(False)
    assert the_norm(module).frozen


@pytest.mark.parametrize("segments", [1, 3])
def test_freezing_stops_the_statistics_at_once(segments: int) -> None:
    """Also those that the second pass of gradient checkpointing sees."""
    model = one_layer("Conv")
    module = QuantizedModule(calibrated(model), batch_norm="live").train()
    module.segments = segments
    x = tensors(model)
    module(*x).sum().backward()
    module.freeze_batch_norms()
    before = the_norm(module).running_mean.clone()
    module(*x)
    assert torch.equal(the_norm(module).running_mean, before)
    module.freeze_batch_norms(False)
    module(*x)
    assert not torch.equal(the_norm(module).running_mean, before)


def test_a_batch_of_one_is_refused_and_leaves_nothing_behind() -> None:
    model = one_layer("Gemm")
    module = QuantizedModule(calibrated(model), batch_norm="live").train()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(UsageError, match="a batch of one"):
        module(*tensors(model, batch=1))
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])
    module.freeze_batch_norms()
    assert module(*tensors(model, batch=1)).shape == (1, 4)


GAMMAS = np.array([[1.0, 0.0, -0.5, 2.0], [1.0, 1e-12, -0.5, 2.0], [1e-38] * 4], np.float32)


@pytest.mark.crossed
@pytest.mark.parametrize("folding", LIVE)
@pytest.mark.parametrize("gamma", GAMMAS, ids=["zero", "tiny", "denormal"])
def test_channels_without_gamma_stay_what_they_are(
    gamma: npt.NDArray[np.float32], folding: Folding
) -> None:
    model = one_layer("Conv", gamma)
    plan = calibrated(model)
    module = QuantizedModule(plan, batch_norm=folding, learning="fixed").train()
    module.enable_quantizers(False)
    (x,), parts = tensors(model, batch=8), given(model)
    right = reference("Conv", x, parts, training=True)
    torch.testing.assert_close(module(x), right, rtol=1e-4, atol=1e-5)
    trained(module, model)
    assert torch.isfinite(module(x)).all()
    again = QuantizedModule(trained_plan(module)).eval()
    again.enable_quantizers(False)
    torch.testing.assert_close(again(x), module.eval()(x), rtol=1e-4, atol=1e-4)


def test_half_precision_sums_no_statistics() -> None:
    model = one_layer("Conv")
    module = QuantizedModule(calibrated(model), batch_norm="batch").train()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.isfinite(module(*tensors(model, batch=8))).all()
    assert the_norm(module).running_var.dtype is torch.float32
    norm = the_norm(module)
    found = norm.statistics()
    wide, values = torch.ones(4, 3, 3, 3), torch.randn(8, 4, 5, 5).bfloat16()
    norm.fold(wide, torch.zeros(4), lambda *_: values, found)
    assert found.seen is not None
    torch.testing.assert_close(found.seen[0], values.float().mean((0, 2, 3)))


@pytest.mark.parametrize("name", ["pop", "a.b", "items", "type"])
def test_layers_may_have_the_names_of_methods(name: str) -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 3, 4, 4])
    for layer in (name, name.replace(".", "/") + "+"):
        x = b.node("Conv", x, b.weight(3, 3, 1, 1), b.weight(3), name=layer.replace("+", ""))
        x = b.node("Relu", b.batch_norm(x, 3))
        if "." not in name:
            break
    b.output(x)
    module = QuantizedModule(calibrated(b.build()), batch_norm="live")
    assert len(module.norms) == len(module._normed) == (2 if "." in name else 1)
    assert torch.isfinite(trained(module, b.build())(*tensors(b.build()))).all()


def test_the_learning_rate_of_a_weight_is_that_of_what_is_quantized() -> None:
    """A kept normalization multiplies a step of the weight."""
    model = one_layer("Conv", np.full(4, 100, np.float32))
    plan = calibrated(model)
    module = QuantizedModule(plan, batch_norm="frozen").train()
    (group,) = [g for g in parameter_groups(module, 1.0) if g["params"][0].ndim == 4]
    ratio = the_norm(module).parameters_now().ratio
    step = float(np.mean(np.asarray(plan.input_config(plan.graph.nodes[0], 1).scale)))
    assert group["lr"] * np.abs(ratio).mean() == pytest.approx(step, rel=1e-4)
