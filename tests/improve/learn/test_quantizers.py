"""Quantizers: what each way of learning learns, and what scales stay whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from intact.config.grid import Grid
from intact.engines.session import FloatModel
from intact.errors import IntactError, PlanError, UsageError
from intact.improve.learn.module import QuantizedModule
from intact.improve.learn.quantizers import Learning, Quantizer, quantizer_of
from intact.improve.learn.write_back import trained_plan
from intact.numerics.conversion import six_decimals
from intact.plan import QuantizedGraph
from tests.improve.learn.nets import every_layer, normed, tensors, trained
from tests.models import random_inputs, residual_net
from tests.plans import calibrated, planned


def quantizers(module: QuantizedModule) -> list[Quantizer]:
    return [each for each in module.quantizers.values() if isinstance(each, Quantizer)]


def scales(plan: QuantizedGraph) -> dict[str, np.ndarray]:
    found = {str(end): config.dominator.scale for end, config in plan.configs.items()}
    return {end: np.asarray(scale) for end, scale in found.items() if scale is not None}


@pytest.mark.parametrize("learning", Learning)
def test_each_way_of_learning_moves_what_it_says(learning: Learning) -> None:
    model = residual_net()
    module = QuantizedModule(calibrated(model), learning=learning)
    before = [each.params() for each in quantizers(module)]
    trained(module, model, steps=4)
    moved = [
        not np.array_equal(old.scale, new.params().scale)
        for old, new in zip(before, quantizers(module), strict=True)
    ]
    shifted = [
        not np.array_equal(old.zero_point, new.params().zero_point)
        for old, new in zip(before, quantizers(module), strict=True)
    ]
    learns = [each for each in quantizers(module) if each.size is not None]
    assert any(moved) == bool(learns) == (learning is not Learning.FIXED)
    has_shift = any(each.shift is not None for each in quantizers(module))
    assert has_shift == (learning is Learning.LSQ_PLUS)
    assert not any(shifted) or has_shift
    for each in quantizers(module):
        assert each.shift is None or not each.grid.symmetric
        zero = each.params().zero_point
        assert ((zero >= each.grid.quant_min) & (zero <= each.grid.quant_max)).all()


def test_zero_points_that_are_learned_are_written_back() -> None:
    model = residual_net()
    module = QuantizedModule(calibrated(model), learning="lsq+")
    with torch.no_grad():
        for each in quantizers(module):
            if each.shift is not None:
                each.shift.fill_(2.4)
    plan = trained_plan(module)
    moved = 0
    for end, config in module.plan.configs.items():
        offset, old = plan.configs[end].offset, config.offset
        if offset is not None and old is not None and not config.grid.symmetric:
            expected = np.clip(np.asarray(old) + 2, config.quant_min, config.quant_max)
            np.testing.assert_array_equal(offset, expected)
            moved += int(not np.array_equal(offset, old))
    assert moved
    again = QuantizedModule(plan).eval()
    assert torch.equal(again(*tensors(model)), module.eval()(*tensors(model)))


def mqbench(x: Tensor, scale: Tensor, zero: Tensor, grid: Grid) -> Tensor:
    """MQBench's learnable quantizer: LSQ, whose scale is the parameter."""
    shape = [1] * x.ndim
    if grid.axis is not None:
        shape[grid.axis] = -1
    count = x.numel() / scale.numel()
    factor = 1 / (count * grid.quant_max) ** 0.5
    own = ((scale - scale * factor).detach() + scale * factor).reshape(shape)
    steps = x / own + zero.reshape(shape)
    rounded = steps + (steps.round() - steps).detach()
    return (rounded.clamp(grid.quant_min, grid.quant_max) - zero.reshape(shape)) * own


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=2e-4),
    "momentum": partial(torch.optim.SGD, lr=1e-4, momentum=0.9, weight_decay=1e-4),
    "adam": partial(torch.optim.Adam, lr=1e-5),
}


@pytest.mark.crossed
@pytest.mark.parametrize("target", ["tensorrt", "onnxruntime", "tflite", "tengine-u8"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_scales_go_the_way_of_those_of_mqbench(target: str, optimizer: str) -> None:
    """With scales by channel and by tensor, signed and unsigned, whatever the optimizer."""
    plan = calibrated(residual_net(), target)
    node = next(node for node in plan.graph.nodes if node.op_type == "Conv")
    configs = [plan.input_config(node, slot).dominator for slot in (0, 1)]
    own = [quantizer_of(c, Learning.LSQ, in_logarithms=False, decimal6=False) for c in configs]
    weight = plan.graph.constant(node.inputs[1])
    assert weight is not None
    weights = [nn.Parameter(torch.from_numpy(weight.copy())) for _ in range(2)]
    theirs = [nn.Parameter(each.base.clone()) for each in own]
    sizes = [each.size for each in own if each.size is not None]
    sides = [
        OPTIMIZERS[optimizer]([weights[0], *sizes]),
        OPTIMIZERS[optimizer]([weights[1], *theirs]),
    ]
    random = torch.Generator().manual_seed(3)
    moved = 0.0
    for _ in range(8):
        x = torch.randn(6, 3, 8, 8, generator=random)
        wanted = torch.randn(6, 8, 6, 6, generator=random)
        ours = own[0](x), own[1](weights[0], torch.float32)
        other = [
            mqbench(value, scale, quantizer.zero, quantizer.grid)
            for value, scale, quantizer in zip((x, weights[1]), theirs, own, strict=True)
        ]
        for side, (data, kernel) in zip(sides, (ours, other), strict=True):
            side.zero_grad()
            nn.functional.mse_loss(nn.functional.conv2d(data, kernel), wanted).backward()
            side.step()
        for quantizer, scale in zip(own, theirs, strict=True):
            way, base = (scale - quantizer.base).detach(), quantizer.base
            off = float((quantizer.scale() - scale).detach().abs().max())
            assert off < 0.02 * way.abs().max() + 1e-6 * base.max()
            moved = max(moved, float((way / base).abs().max()))
    assert moved > 1e-4


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt", "integer-pow2"])
def test_parameters_are_the_scales_or_logarithms_of_powers_of_two(target: str) -> None:
    plan = calibrated(residual_net(), target)
    for each in quantizers(QuantizedModule(plan)):
        assert each.size is not None
        assert each.in_logarithms == each.grid.power_of_two == (target == "integer-pow2")
        assert torch.equal(each.size, each.base * (0 if each.in_logarithms else 1))
        assert torch.equal(each.scale(), each.base)


def test_a_scale_that_passes_zero_turns_around() -> None:
    config = next(c for c in calibrated(residual_net()).configs.values() if c.scale is not None)
    quantizer = quantizer_of(config.dominator, Learning.LSQ, in_logarithms=False, decimal6=False)
    assert quantizer.size is not None
    quantizer.size.data.neg_()
    assert torch.equal(quantizer.scale(), quantizer.base)
    quantizer.size.data.zero_()
    quantizer.scale().sum().backward()
    assert (quantizer.scale() > 0).all()
    assert quantizer.size.grad is not None
    assert (quantizer.size.grad == 1).all()


def test_pact_learns_from_clipped_values_only() -> None:
    model = residual_net()
    plan = calibrated(model, "tensorrt")
    config = next(c for c in plan.configs.values() if c.scale is not None and c.grid.axis is None)
    scale = float(np.asarray(config.scale))
    for inside, learns in ((True, False), (False, True)):
        quantizer = quantizer_of(config, Learning.PACT, in_logarithms=False, decimal6=False)
        value = torch.tensor([0.3 if inside else 1000.0]) * scale
        quantizer(value).sum().backward()
        assert quantizer.size is not None
        assert quantizer.size.grad is not None
        assert bool(quantizer.size.grad.abs().sum() > 0) == learns


@pytest.mark.parametrize("target", ["integer-pow2", "vta"])
def test_powers_of_two_stay_such(target: str) -> None:
    model = residual_net()
    module = QuantizedModule(calibrated(model, target))
    optimizer = torch.optim.SGD(module.scale_parameters(), lr=1.0)
    with torch.no_grad():
        for k, parameter in enumerate(module.scale_parameters()):
            parameter.add_(0.7 - 0.4 * (k % 5))
    module(*tensors(model)).square().sum().backward()
    optimizer.step()
    plan = trained_plan(module)
    for end, config in plan.configs.items():
        if config.dominator.scale is not None and config.dominator.grid.power_of_two:
            mantissas, _ = np.frexp(np.asarray(config.dominator.scale))
            assert (mantissas == 0.5).all(), end
    moved = [k for k, scale in scales(plan).items() if (scale != scales(module.plan)[k]).any()]
    assert moved


@pytest.mark.parametrize("target", ["onnxruntime", "integer-pow2", "tengine-tool"])
@pytest.mark.parametrize("amount", [-1e6, 1e6])
def test_scales_stay_positive_whatever_happens(target: str, amount: float) -> None:
    model = residual_net()
    module = QuantizedModule(calibrated(model, target))
    optimizer = torch.optim.SGD(module.scale_parameters(), lr=1e6)
    module(*tensors(model)).square().sum().backward()
    optimizer.step()
    for moved in (0.0, amount):
        for each in quantizers(module):
            if each.size is not None:
                each.size.data.add_(moved)
            scale = each.params().scale
            assert (np.isfinite(scale) & (scale > 0)).all()
            if each.grid.power_of_two:
                assert (np.frexp(scale)[0] == 0.5).all()


def test_scales_of_six_decimals_stay_such() -> None:
    model = residual_net()
    module = trained(QuantizedModule(calibrated(model, "tengine-tool")), model)
    plan, texts = trained_plan(module), 0
    for key, each in module.quantizers.items():
        assert isinstance(each, Quantizer)
        if each._decimal6:
            scale = each.params().scale
            np.testing.assert_array_equal(scale, six_decimals(scale), key)
            texts += 1
    assert texts > 3
    assert plan.target.name == "tengine-tool"


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_converted_modules_keep_their_quantizers(kind: torch.dtype) -> None:
    model = every_layer()
    module = QuantizedModule(calibrated(model)).eval()
    right = module(*tensors(model))
    before = [(p.data_ptr(), p.clone()) for p in module.quantizers.state_dict().values()]
    module.to(kind)
    after = module.quantizers.state_dict().values()
    assert all(each.dtype is torch.float32 for each in after)
    assert all(torch.equal(old, new) for (_, old), new in zip(before, after, strict=True))
    assert all(each.dtype is kind for each in module.constants.learned().values())
    for found, expected in zip(module(*tensors(model)), right, strict=True):
        assert torch.isfinite(found).all()
        assert (found.float() - expected).abs().max() < 0.2 * expected.abs().max()
    module.train()
    sum(each.float().square().sum() for each in module(*tensors(model))).backward()
    assert all(p.grad is not None and p.grad.dtype is p.dtype for p in module.parameters())


@pytest.mark.parametrize("target", ["onnxruntime", "nnie"])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_switched_off_it_is_the_float_model(target: str, kind: torch.dtype) -> None:
    model = every_layer()
    plan = calibrated(model, target)
    module = QuantizedModule(plan).eval().to(kind)
    expected = FloatModel(plan.graph, threads=1).run(random_inputs(model, batch=4, seed=5))
    module.enable_quantizers(False)
    for value, found in zip(plan.graph.outputs, module(*tensors(model)), strict=True):
        right = torch.from_numpy(expected[str(value.name)]).to(kind)
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
    module.enable_quantizers()
    found, _ = module(*tensors(model))
    assert not np.allclose(found.detach().numpy(), expected["embedding"], rtol=1e-4, atol=1e-5)


def test_names_are_checked() -> None:
    plan = calibrated(residual_net())
    with pytest.raises(UsageError, match="'lqs' is no way to learn scales") as caught:
        QuantizedModule(plan, learning="lqs")
    assert "lsq" in str(caught.value)
    with pytest.raises(UsageError, match="'life' is no strategy"):
        QuantizedModule(plan, batch_norm="life")
    module = QuantizedModule(plan).eval()
    module.arithmetic = "exact"
    with pytest.raises(UsageError, match="arithmetic 'exact'"):
        module(*tensors(residual_net()))
    with pytest.raises(PlanError):
        QuantizedModule(planned(residual_net()))


def test_a_scale_that_is_not_finite_is_not_written() -> None:
    module = QuantizedModule(calibrated(normed()))
    module.scale_parameters()[0].data.fill_(float("nan"))
    with pytest.raises(IntactError, match=r"scale of .* is not finite after training"):
        trained_plan(module)
    module = QuantizedModule(calibrated(normed()))
    module.weight_parameters()[0].data.fill_(float("inf"))
    with pytest.raises(IntactError, match="is not finite after training"):
        trained_plan(module)
