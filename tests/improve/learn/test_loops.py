"""What training loops expect of a module: copies, files, several processes, half precision."""

from __future__ import annotations

import copy
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from intact.improve.learn.batch_norm import Folding
from intact.improve.learn.instructions import Quantize
from intact.improve.learn.module import QuantizedModule
from intact.improve.learn.write_back import trained_plan
from intact.plan import quantization_points
from tests.improve.learn import processes
from tests.improve.learn.nets import every_layer, normed, one_layer, tensors, trained
from tests.models import ModelBuilder, residual_net
from tests.plans import calibrated


def pickled(module: QuantizedModule) -> QuantizedModule:
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    found = torch.load(buffer, weights_only=False)
    assert isinstance(found, QuantizedModule)
    return found


def loaded(module: QuantizedModule) -> QuantizedModule:
    """A fresh module with the state of another."""
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    fresh = QuantizedModule(module.plan, learning=module.learning, batch_norm=module.folding)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    fresh.train(module.training)
    return fresh


def same(left: QuantizedModule, right: QuantizedModule, model: onnx.ModelProto) -> bool:
    x = tensors(model, seed=9)
    found, expected = left(*x), right(*x)
    return bool(torch.equal(found, expected))


@pytest.mark.parametrize("way", [copy.deepcopy, pickled, loaded])
def test_copies_compute_the_same_and_go_on_training(
    way: Callable[[QuantizedModule], QuantizedModule],
) -> None:
    model = normed()
    plan = calibrated(model, "tflite")
    module = trained(QuantizedModule(plan, learning="lsq+", batch_norm="live"), model)
    module.eval().double()
    module(*tensors(model))  # with an engine, which copies do not share
    module.float().train()
    other = way(module)
    assert same(copy.deepcopy(module).eval(), copy.deepcopy(other).eval(), model)
    trained(other, model)
    assert not same(copy.deepcopy(module).eval(), copy.deepcopy(other).eval(), model)
    assert same(trained(module, model).eval(), other.eval(), model)
    assert same(module.double(), other.double(), model)


def test_a_file_holds_the_plan() -> None:
    plan = calibrated(every_layer(), "onnxruntime")
    other = pickled(QuantizedModule(plan)).plan
    assert other.target.name == plan.target.name
    assert other.decisions == plan.decisions
    for old, new in zip(quantization_points(plan), quantization_points(other), strict=True):
        assert old.end == new.end
        assert old.config.state is new.config.state
        np.testing.assert_array_equal(old.config.scale, new.config.scale)
        if old.is_constant:
            np.testing.assert_array_equal(old.constant_codes(), new.constant_codes())


def factors_of_halves(module: QuantizedModule) -> dict[str, float]:
    """By how much the gradients of half a batch are larger: LSQ divides those of scales of
    activations by the square root of the elements, of which there are half as many."""
    instructions = module.program.instructions
    steps = [each for each in instructions if isinstance(each, Quantize)]
    learned = {each.quantizer for each in steps if not each.is_constant}
    halved = tuple(f"quantizers.{key}." for key in learned)
    names = [name for name, _ in module.named_parameters()]
    return {name: 2**0.5 if name.startswith(halved) else 1.0 for name in names}


def test_gradients_of_halves_average_to_those_of_the_whole() -> None:
    """Those of scales of activations are scaled by the square root of a batch's elements."""
    model = residual_net()
    module = QuantizedModule(calibrated(model), learning="lsq+")
    (x,) = tensors(model, batch=8)
    whole, *halves = (
        torch.autograd.grad(processes.loss_of(module, part), [*module.parameters()])
        for part in (x, x[::2], x[1::2])
    )
    factors = factors_of_halves(module).values()
    for of_whole, factor, left, right in zip(whole, factors, *halves, strict=True):
        expected = of_whole * factor
        close = {"rtol": 1e-3, "atol": 1e-4 * float(expected.abs().max()) + 1e-8}
        torch.testing.assert_close((left + right) / 2, expected, **close)


def test_two_processes_average_their_gradients(tmp_path: Path) -> None:
    """As one process on the joined batch; the scales' too, each by its elements."""
    model = residual_net()
    module = QuantizedModule(calibrated(model), learning="lsq+")
    (x,) = tensors(model, batch=8)
    torch.save(module, tmp_path / "module.pt")
    torch.save(x, tmp_path / "x.pt")
    path = os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(processes.__file__)]
    running = [
        subprocess.Popen([*command, str(k), str(tmp_path)], env=environment) for k in range(2)
    ]
    processes.loss_of(module, x).backward()
    assert [each.wait(timeout=300) for each in running] == [0, 0]
    grads = [torch.load(tmp_path / f"grads{k}.pt") for k in range(2)]
    factors = factors_of_halves(module)
    for name, parameter in module.named_parameters():
        assert torch.equal(grads[0][name], grads[1][name])
        assert parameter.grad is not None
        expected = parameter.grad * factors[name]
        close = {"rtol": 1e-3, "atol": 1e-4 * float(expected.abs().max()) + 1e-8}
        torch.testing.assert_close(grads[0][name], expected, **close)
    states = [torch.load(tmp_path / f"state{k}.pt") for k in range(2)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_data_parallel_passes_through() -> None:
    model = normed()
    module = QuantizedModule(calibrated(model))
    assert torch.equal(nn.DataParallel(module)(*tensors(model)), module(*tensors(model)))


@pytest.mark.parametrize("folding", Folding)
def test_it_trains_in_autocast(folding: Folding) -> None:
    model = normed()
    module = QuantizedModule(calibrated(model), batch_norm=folding).train()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = module(*tensors(model, batch=8)).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert all(p.dtype is torch.float32 for p in module.parameters())


def statistics(module: QuantizedModule) -> dict[str, torch.Tensor]:
    return {name: b for name, b in module.state_dict().items() if "running" in name}


@pytest.mark.parametrize("segments", [2, 4, 1000])
@pytest.mark.parametrize("folding", Folding)
def test_gradient_checkpointing_changes_nothing(folding: Folding, segments: int) -> None:
    """Not even where the running statistics, which the backward pass needs, have moved since."""
    model = normed()
    modules = [QuantizedModule(calibrated(model), batch_norm=folding).train() for _ in range(2)]
    modules[1].segments = segments
    x = tensors(model, batch=8)
    losses = [module(*x).square().mean() for module in modules]
    for module in modules:  # two passes before the backward pass: gradients are accumulated
        module(*[2 * each for each in x])
    for loss in losses:
        loss.backward()
    assert torch.equal(*losses)
    for mine, theirs in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-6, atol=1e-8)
    for name, running in statistics(modules[0]).items():
        assert torch.equal(running, statistics(modules[1])[name])


def test_gradient_checkpointing_keeps_less() -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 4, 16, 16])
    for _ in range(12):
        x = b.node("Relu", b.conv(x, 4, 4))
    b.output(x)
    module = QuantizedModule(calibrated(b.build()))
    sizes = []
    for segments in (1, 4):
        module.segments = segments
        kept = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            kept += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            module(*tensors(b.build()))
        sizes.append(kept)
    assert sizes[1] < 0.5 * sizes[0]


def test_every_parameter_gets_a_gradient() -> None:
    """What has none would stop DistributedDataParallel."""
    for model in (every_layer(), normed(), residual_net()):
        for target in ("onnxruntime", "tflite", "tensorrt", "ncnn"):
            module = QuantizedModule(calibrated(model, target), learning="lsq+")
            found = module(*tensors(model))
            found = found if isinstance(found, tuple) else (found,)
            sum(each.square().sum() for each in found).backward()
            missing = [name for name, p in module.named_parameters() if p.grad is None]
            assert not missing, (target, missing)


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_and_slopes_are_trained(op: str, gates: int) -> None:
    b = ModelBuilder()
    x = b.input("x", [5, "batch", 6])
    constants = [
        b.weight(1, gates * 4, 6, name="w"),
        b.weight(1, gates * 4, 4, name="r"),
        b.weight(1, gates * 8, name="b"),
    ]
    states = b.node(op, x, *constants, hidden_size=4)
    b.node("PRelu", states, b.weight(4, name="slope"), out="y")
    b.output("y")
    model = b.build()
    module = QuantizedModule(calibrated(model))
    before = module.float_state_dict()
    assert set(before) == {"w", "r", "b", "slope"}
    before = {name: tensor.clone() for name, tensor in before.items()}
    module(torch.randn(5, 3, 6)).square().mean().backward()
    torch.optim.SGD(module.weight_parameters(), lr=0.1).step()
    written = trained_plan(module).graph
    for name, tensor in before.items():
        array = written.constant(written.value(name))
        assert array is not None
        assert not np.array_equal(array, tensor.numpy()), name


def test_weights_have_the_names_of_the_model() -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 3, 4, 4])
    weight, bias = b.weight(4, 3, 1, 1, name="block.0.weight"), b.weight(4, name="block.0.bias")
    b.node("Conv", x, weight, bias, out="y")
    b.output("y")
    module = QuantizedModule(calibrated(b.build()))
    found = module.float_state_dict()
    assert set(found) == {"block.0.weight", "block.0.bias"}
    layer = nn.Conv2d(3, 4, 1)
    names = {name.removeprefix("block.0."): tensor for name, tensor in found.items()}
    layer.load_state_dict(names)
    module.eval().enable_quantizers(False)
    torch.testing.assert_close(layer(*tensors(b.build())), module(*tensors(b.build())))
    assert all(not tensor.requires_grad for tensor in found.values())


def test_parameters_are_in_two_groups() -> None:
    module = QuantizedModule(calibrated(one_layer("Conv")), batch_norm="live")
    groups = [*module.scale_parameters(), *module.weight_parameters()]
    assert {id(p) for p in groups} == {id(p) for p in module.parameters()}
    assert len(groups) == len({id(p) for p in groups})
    assert trained_plan(module).target.name == "onnxruntime"
