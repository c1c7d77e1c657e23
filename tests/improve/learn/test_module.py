"""The module as a whole: the numbers of the simulation, the plan it came from, its inputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto

from intact.config import QuantState
from intact.engines.simulate import Simulator
from intact.errors import DataError, ExportError, IntactError
from intact.improve.learn.module import QuantizedModule
from intact.improve.learn.write_back import trained_plan
from intact.plan import Overrides, QuantizedGraph, quantization_points
from intact.targets import load_target, target_names
from tests.improve.learn.nets import every_layer, normed, tensors
from tests.models import MODELS, ModelBuilder, control_flow, random_inputs, residual_net
from tests.nets.nets import random_net
from tests.plans import Arrays, calibrated

SEEDS = [seed for seed in range(40) if random_net(seed).model().graph.node]
SHARE = 0.02
"""Of an output's elements that may lie on the other side of a tie, by the order of float sums."""


def differing(plan: QuantizedGraph, feeds: Arrays) -> float:
    """The largest share of an output's elements that are not the simulation's."""
    expected, _ = Simulator(plan, threads=1).run(feeds)
    module = QuantizedModule(plan).eval()
    with torch.no_grad():
        found = module(**{name: torch.from_numpy(array) for name, array in feeds.items()})
    found = found if isinstance(found, tuple) else (found,)
    worst = 0.0
    for value, output in zip(plan.graph.outputs, found, strict=True):
        right = expected[str(value.name)]
        assert output.shape == right.shape
        size = np.abs(right).max(initial=1e-6)
        close = np.isclose(output.numpy(), right, rtol=1e-4, atol=1e-5 * size)
        worst = max(worst, 1.0 - float(close.mean()) if close.size else 0.0)
    return worst


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", SEEDS[:30])
def test_random_nets_compute_what_the_simulation_computes(seed: int) -> None:
    net, names = random_net(seed), target_names()
    for target in (names[seed % len(names)], names[(7 * seed + 3) % len(names)]):
        try:
            plan = calibrated(net.model(), target)
        except IntactError:
            continue
        assert differing(plan, net.samples(3, seed=2)) <= SHARE, target


@pytest.mark.parametrize("bits", [4, 7])
def test_narrow_ranges_are_kept(bits: int) -> None:
    model = residual_net()
    plan = calibrated(model, "tensorrt", Overrides(weight_bits=bits))
    module = QuantizedModule(plan).eval()
    with module.observing() as codes:
        module(*tensors(model))
    for point in quantization_points(plan):
        if point.is_constant and point.config.bits == bits:
            found = codes[point.end]
            assert int(found.abs().max()) <= 2 ** (bits - 1) - 1
            np.testing.assert_array_equal(found.numpy(), point.constant_codes())
    assert differing(plan, dict(random_inputs(model))) <= SHARE


def test_avx2_weights_have_seven_bits() -> None:
    model = residual_net()
    plan = calibrated(model, "onnxruntime-avx2")
    module = QuantizedModule(plan).eval()
    with module.observing() as codes:
        module(*tensors(model))
    narrow = [p for p in quantization_points(plan) if p.is_constant and p.config.quant_max == 63]
    assert narrow
    for point in narrow:
        assert int(codes[point.end].abs().max()) <= 64


@pytest.mark.sampled(8)
@pytest.mark.parametrize("target", target_names())
def test_written_back_untrained_it_is_the_plan_bit_for_bit(target: str) -> None:
    for model in (every_layer(), normed()):
        plan = calibrated(model, target)
        for learning in ("lsq+", "fixed"):
            again = trained_plan(QuantizedModule(plan, learning=learning))
            assert_same_plan(plan, again)


def assert_same_plan(plan: QuantizedGraph, again: QuantizedGraph) -> None:
    """Same scales, zero points and codes of constants."""
    assert plan.configs.keys() == again.configs.keys()
    for end, config in plan.configs.items():
        for left, right in (
            (config.scale, again.configs[end].scale),
            (config.offset, again.configs[end].offset),
            (config.state, again.configs[end].state),
        ):
            np.testing.assert_array_equal(left, right, str(end))
    for old, new in zip(quantization_points(plan), quantization_points(again), strict=True):
        assert old.end == new.end
        if old.is_constant:
            np.testing.assert_array_equal(old.constant_codes(), new.constant_codes(), str(old.end))
    for value in plan.graph.values:
        before = plan.graph.constant(value)
        if before is not None:
            after = again.graph.constant(again.graph.value(str(value.name)))
            np.testing.assert_array_equal(before, after)


def test_ends_that_share_a_scale_share_a_quantizer() -> None:
    for target in ("integer-pow2", "onnxruntime", "ncnn", "tflite"):
        plan = calibrated(every_layer(), target)
        module = QuantizedModule(plan)
        roots = {id(p.config.dominator) for p in quantization_points(plan)}
        follows = {
            id(p.config.dominator)
            for p in quantization_points(plan)
            if p.config.state is QuantState.PASSIVE
        }
        assert len(roots - follows) <= len(module.quantizers) <= len(roots)
    plan = calibrated(every_layer(), "tflite")
    joined = next(node for node in plan.graph.nodes if node.op_type == "Concat")
    assert len({id(plan.input_config(joined, slot).dominator) for slot in range(2)}) == 1


def test_what_stays_float_is_not_quantized() -> None:
    model = residual_net()
    names = [str(n.name) for n in calibrated(model).graph.nodes if n.op_type == "Gemm"]
    plan = calibrated(model, overrides=Overrides(keep_float=("Gemm",)))
    module = QuantizedModule(plan).eval()
    with module.observing() as codes:
        output = module(*tensors(model))
    assert not [end for end in codes if end.node in names]
    assert len(np.unique(output.detach().numpy())) == output.numel()
    assert differing(plan, dict(random_inputs(model))) <= SHARE


def test_codes_in_float32_are_those_of_the_quantizers() -> None:
    model = every_layer()
    plan = calibrated(model)
    module = QuantizedModule(plan).eval()
    for end, codes in module.codes(*tensors(model)).items():
        config = plan.configs[end]
        assert codes.dtype is torch.int64
        assert int(codes.min()) >= config.quant_min
        assert int(codes.max()) <= config.quant_max


def test_inputs_are_checked() -> None:
    module = QuantizedModule(calibrated(residual_net())).eval()
    x = tensors(residual_net())[0]
    assert torch.equal(module(x), module(image=x))
    with pytest.raises(DataError, match="2 inputs are given, the model has 1: image"):
        module(x, x)
    with pytest.raises(DataError, match="'image' is given twice"):
        module(x, image=x)
    with pytest.raises(DataError, match="'picture' is no input of the model"):
        module(picture=x)
    with pytest.raises(DataError, match="input 'image' is missing"):
        module()
    assert torch.equal(module(x.double()), module(x))


def test_several_inputs_and_outputs() -> None:
    model = MODELS["sequence"].build(17)
    plan = calibrated(model)
    module = QuantizedModule(plan).eval()
    feeds = {n: torch.from_numpy(a) for n, a in random_inputs(model).items()}
    by_name, by_order = module(**feeds), module(*feeds.values())
    assert len(by_name) == len(plan.graph.outputs) == 2
    assert all(torch.equal(a, b) for a, b in zip(by_name, by_order, strict=True))


def test_outputs_that_are_inputs_constants_or_the_same_tensor() -> None:
    model = MODELS["shared_ports"].build(17)
    plan = calibrated(model)
    feeds = dict(random_inputs(model))
    assert differing(plan, feeds) <= SHARE
    module = QuantizedModule(plan)
    module.segments = 3
    found = module(*(torch.from_numpy(array) for array in feeds.values()))
    assert len(found) == len(plan.graph.outputs)


def test_all_operators_that_cannot_be_trained_are_named() -> None:
    model = control_flow()
    with pytest.raises(ExportError, match="If"):
        QuantizedModule(calibrated(model))


def test_integers_pass_through() -> None:
    b = ModelBuilder()
    ids = b.input("ids", ["batch", 3], TensorProto.INT64)
    table = b.weight(7, 4)
    x = b.node("Relu", b.node("MatMul", b.node("Gather", table, ids), b.weight(4, 5)))
    b.node("ArgMax", x, out="best", axis=2, keepdims=0)
    b.output("best", dtype=TensorProto.INT64)
    b.output(x)
    model: onnx.ModelProto = b.build()
    from tests.plans import calibrate, planned

    feeds: Arrays = {"ids": np.arange(12, dtype=np.int64).reshape(4, 3) % 7}
    plan = calibrate(planned(model), feeds)
    assert differing(plan, feeds) <= SHARE
    best, _ = QuantizedModule(plan)(torch.from_numpy(feeds["ids"]))
    assert best.dtype is torch.int64


def test_the_first_tensor_that_is_not_finite_is_named() -> None:
    model = residual_net()
    module = QuantizedModule(calibrated(model))
    (x,) = tensors(model)
    assert module.first_not_finite(x) == ""
    bad = x.clone()
    bad[0, 0, 0, 0] = float("nan")
    assert module.first_not_finite(bad) == "image"
    name = next(iter(module.constants.learned()))
    with torch.no_grad():
        module.constants[name][0] = float("inf")
    assert module.first_not_finite(x) == name


def test_names_with_points_and_slashes_do_not_collide() -> None:
    """PyTorch takes no points in names: ``a.b`` and ``a/b`` would be one."""
    b = ModelBuilder()
    x = b.input("x", ["batch", 3, 4, 4])
    for layer, size in (("a.b", 1.0), ("a/b", 50.0)):
        weight = b.constant(np.full((3, 3, 1, 1), size, np.float32), f"w.{layer}")
        x = b.node("Conv", x, weight, name=layer)
    b.output(x)
    model = b.build()
    plan = calibrated(model, load_target("tensorrt"))
    module = QuantizedModule(plan)
    assert len(module.constants.learned()) == 2
    assert differing(plan, dict(random_inputs(model))) <= SHARE
    assert_same_plan(plan, trained_plan(module))
