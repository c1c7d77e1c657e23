"""Second-order rounding of layers: where it helps, and where it must not act."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from intact.calibrate.scales.bias import rescale_bias
from intact.config import QuantState
from intact.data.sources import open_samples
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.formats.base.format import Deployed, Io
from intact.formats.registry import FORMATS
from intact.graph import normalize
from intact.improve.layers import Layer
from intact.improve.refine.moments import Moments, unfold_inputs
from intact.improve.refine.rounding import OBSERVER, refine_rounding
from intact.plan import Overrides, QuantizedGraph, TensorEnd
from intact.plan.gains import Gain
from intact.plan.given_scales import GIVEN
from tests.models import ModelBuilder, run_model
from tests.plans import calibrate, config, lost, planned

Arrays = dict[str, npt.NDArray[Any]]
LAYERS = ("wide", "depthwise", "grouped", "dense")


def net() -> onnx.ModelProto:
    """A convolution, a depthwise and a grouped one, and a dense layer with factors."""
    b = ModelBuilder(seed=3)
    x = b.input("image", ["batch", 3, 8, 8])
    x = b.node("Conv", x, b.weight(8, 3, 3, 3), b.weight(8), name="wide", pads=[1, 1, 1, 1])
    x = b.node("Relu", x)
    x = b.node("Conv", x, b.weight(8, 1, 3, 3), b.weight(8), name="depthwise", group=8)
    x = b.node("Relu", x)
    x = b.node("Conv", x, b.weight(6, 4, 1, 1), b.weight(6), name="grouped", group=2)
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    weights = (b.weight(5, 6), b.weight(5))
    b.node("Gemm", x, *weights, name="dense", transB=1, alpha=0.5, beta=2.0, out="y")
    b.output("y", ["batch", 5])
    return b.build()


def smooth(count: int, seed: int = 0) -> Arrays:
    """Images whose neighbouring pixels resemble each other, as those of cameras do."""
    random = np.random.default_rng(seed)
    coarse = random.normal(size=(count, 3, 3, 3)).repeat(3, axis=2).repeat(3, axis=3)
    fine = 0.1 * random.normal(size=(count, 3, 8, 8))
    return {"image": (coarse[:, :, :8, :8] + fine).astype(np.float32)}


def plan_of(
    model: onnx.ModelProto, target: str = "onnxruntime", bits: int | None = 4
) -> QuantizedGraph:
    return calibrate(planned(model, target, Overrides(weight_bits=bits)), smooth(40, seed=1))


def refined(plan: QuantizedGraph, feeds: Arrays | None = None) -> QuantizedGraph:
    return refine_rounding(plan, open_samples(feeds or smooth(40, seed=1), plan.graph), threads=1)


def test_less_is_lost_on_other_samples() -> None:
    plan = plan_of(net())
    better = refined(plan)
    other = smooth(60, seed=7)
    assert lost(better, other) < 0.5 * lost(plan, other)
    for name in LAYERS:
        end = TensorEnd.input(name, 1)
        assert better.configs[end].state is QuantState.BAKED
        assert better.configs[end].observer == OBSERVER
        assert np.abs(better.baked[end]).max() <= 7
        assert better.configs[TensorEnd.input(name, 2)].state is QuantState.PASSIVE_BAKED
    assert not plan.baked
    assert better.graph is plan.graph


def test_the_same_samples_give_the_same_integers() -> None:
    plan = plan_of(net())
    first, second = refined(plan), refined(plan)
    assert first.baked.keys() == second.baked.keys()
    assert all(np.array_equal(codes, second.baked[end]) for end, codes in first.baked.items())


def test_means_of_results_stay() -> None:
    """The bias makes good what rounding does to the mean of each channel."""
    feeds = smooth(40, seed=1)
    plan = plan_of(net(), bits=3)
    better = refined(plan)
    wanted = FloatModel(plan.graph, threads=1).run(feeds)["y"].mean(axis=0)
    before, after = (
        Simulator(each, threads=1).run(feeds)[0]["y"].mean(axis=0) for each in (plan, better)
    )
    assert np.abs(after - wanted).max() < 0.3 * np.abs(before - wanted).max()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "target", ["onnxruntime", "tflite", "openvino", "ncnn", "tengine", "integer-pow2", "tvm"]
)
def test_what_is_written_computes_what_is_planned(target: str) -> None:
    plan = plan_of(net(), target, bits=None)
    better = refined(plan)
    assert better.baked
    name = better.target.formats[0]
    row = FORMATS[name]
    assert row.runtime is not None
    deployed = Deployed(better, row.writer.write(better, Io.INT8), threads=1)
    found = row.runtime.verify(deployed, [smooth(8, seed=2)])
    assert found.layers
    assert sum(each.mismatches for each in found.layers) <= (target == "integer-pow2") * 200
    assert lost(better, smooth(60, seed=7)) <= 1.05 * lost(plan, smooth(60, seed=7))


@pytest.mark.parametrize("target", ["tflite", "integer-pow2"])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_transposed_convolutions_lose_less(target: str, group: int) -> None:
    b = ModelBuilder(seed=3)
    x = b.input("image", ["batch", 3, 8, 8])
    x = b.node("Relu", b.node("Conv", x, b.weight(4, 3, 3, 3), b.weight(4), name="wide"))
    weights = (b.weight(4, 4 // group, 3, 3), b.weight(4))
    b.node("ConvTranspose", x, *weights, name="up", group=group, strides=[2, 2], out="y")
    b.output("y", ["batch", 4, 13, 13])
    plan = plan_of(b.build(), target)
    better, other = refined(plan), smooth(60, seed=7)
    if plan.is_quantized(plan.graph.nodes[-1]):
        assert TensorEnd.input("up", 1) in better.baked
    assert lost(better, other) < lost(plan, other)


def test_each_layer_reports_what_it_gained() -> None:
    plan, gains = plan_of(net()), list[Gain]()
    samples = open_samples(smooth(40, seed=1), plan.graph)
    better = refine_rounding(plan, samples, threads=1, report=gains.append)
    assert [gain.node for gain in gains] == list(LAYERS)
    for gain in gains:
        assert gain.kept == (gain.after > gain.before)
        assert gain.kept == (TensorEnd.input(gain.node, 1) in better.baked)


def test_what_layers_read_in_common_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    b = ModelBuilder(seed=3)
    x = b.input("x", ["batch", 16])
    parts = [b.node("MatMul", x, b.weight(16, 8), name=name) for name in ("query", "key", "value")]
    b.node("Concat", *parts, axis=1, out="y")
    b.output("y", ["batch", 24])
    random = np.random.default_rng(0)
    mixed = random.normal(size=(400, 4)) @ random.normal(size=(4, 16))
    feeds = {"x": (mixed + 0.1 * random.normal(size=(400, 16))).astype(np.float32)}
    plan = calibrate(planned(b.build(), "onnxruntime", Overrides(weight_bits=4)), feeds)
    counted, count = list[Layer](), Moments.of

    def counting(layer: Layer, batches: Sequence[tuple[Any, Any]], **options: bool) -> Moments:
        counted.append(layer)
        return count(layer, batches, **options)

    monkeypatch.setattr(Moments, "of", counting)
    better = refined(plan, feeds)
    assert len(counted) == 2  # one half and the other
    assert len(better.baked) == 3


def test_both_neighbours_of_a_power_of_two_are_tried() -> None:
    """A scale of the plan that is twice or half of the best one is mended."""
    plan = plan_of(net(), "integer-pow2")
    best = config(refined(plan), "wide.input[1]").scale
    assert best is not None
    for factor in (0.5, 2.0):
        other = plan.copy()
        config(other, "wide.input[1]").set_params(best * np.float32(factor))
        rescale_bias(other, other.graph.nodes[0])
        assert config(refined(other), "wide.input[1]").scale == best


def test_given_and_single_samples_change_nothing() -> None:
    plan = plan_of(net())
    config(plan, "wide.input[1]").observer = GIVEN
    better = refined(plan)
    assert TensorEnd.input("wide", 1) not in better.baked
    assert TensorEnd.input("dense", 1) in better.baked
    assert not refined(plan, smooth(1)).baked


def test_samples_whose_squares_overflow_or_are_zero_change_nothing() -> None:
    plan = plan_of(net())
    for number in (1e30, -1e30, 0.0):
        feeds = {"image": np.full((20, 3, 8, 8), number, np.float32)}
        assert TensorEnd.input("wide", 1) not in refined(plan, feeds).baked


def test_dead_channels_are_rounded_to_zero() -> None:
    model = net()
    weight = next(each for each in model.graph.initializer if list(each.dims) == [8, 3, 3, 3])
    array = onnx.numpy_helper.to_array(weight).copy()
    array[2] = 0
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    better = refined(plan_of(model))
    assert not better.baked[TensorEnd.input("wide", 1)][2].any()


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strides": {"strides": [2, 1]},
    "dilations": {"dilations": [2, 1]},
    "pads": {"pads": [0, 1, 2, 1]},
    "groups": {"group": 2},
    "depthwise": {"group": 4},
    "same": {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    "same_lower": {"auto_pad": "SAME_LOWER"},
    "valid": {"auto_pad": "VALID"},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_windows_times_weights_are_the_convolution(name: str) -> None:
    attributes = CONVOLUTIONS[name]
    b = ModelBuilder()
    x = b.input("image", [2, 4, 7, 6])
    b.node("Conv", x, b.weight(8, 4 // attributes.get("group", 1), 3, 2), out="y", **attributes)
    b.output("y", ["n", "c", "h", "w"])
    _assert_is_convolution(b.build(), (2, 4, 7, 6))


TRANSPOSED: dict[str, dict[str, Any]] = {
    "plain": {},
    "strides": {"strides": [2, 3]},
    "dilations": {"dilations": [2, 1], "strides": [2, 1]},
    "pads": {"pads": [0, 1, 2, 1], "strides": [2, 2]},
    "cut": {"pads": [3, 2, 3, 2]},
    "groups": {"group": 2, "output_padding": [1, 0], "strides": [2, 2]},
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_windows_times_weights_are_the_transposed_convolution(name: str) -> None:
    b = ModelBuilder()
    x = b.input("image", [2, 4, 7, 6])
    b.node("ConvTranspose", x, b.weight(4, 3, 3, 2), out="y", **TRANSPOSED[name])
    b.output("y", ["n", "c", "h", "w"])
    _assert_is_convolution(b.build(), (2, 4, 7, 6))


@pytest.mark.parametrize("rank", [1, 3])
def test_windows_of_rows_and_volumes(rank: int) -> None:
    b = ModelBuilder()
    shape = (2, 4, *[6] * rank)
    x = b.input("x", [*shape])
    b.node("Conv", x, b.weight(6, 2, *[3] * rank), out="y", group=2, strides=[2] * rank)
    b.output("y", ["n", "c", *"hwd"[:rank]])
    _assert_is_convolution(b.build(), shape)


def _assert_is_convolution(model: onnx.ModelProto, shape: tuple[int, ...]) -> None:
    graph = normalize(model)
    (node,) = graph.nodes
    layer = Layer.of(graph, node)
    assert layer is not None
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    (wanted,) = run_model(model, {str(graph.inputs[0].name): x}).values()
    wide = layer.view(layer.weight)
    product = wide.reshape(*wide.shape[:2], -1) @ unfold_inputs(layer, x)
    channels = wanted.swapaxes(0, 1).reshape(product.shape)
    np.testing.assert_allclose(product, channels, rtol=1e-4, atol=1e-4)


def test_moments_of_parts_add_up() -> None:
    graph = normalize(net())
    layer = Layer.of(graph, graph.nodes[0])
    assert layer is not None
    x, z = smooth(12, seed=1)["image"], smooth(12, seed=2)["image"]
    whole = Moments.of(layer, [(x, z)])
    parts = Moments.of(layer, [(x[:5], z[:5])]) + Moments.of(layer, [(x[5:], z[5:])])
    for mine, other in zip(vars(whole).values(), vars(parts).values(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-3)
    xx, _, _ = whole.means(centred=True)
    rows = unfold_inputs(layer, x)[0].astype(np.float64)
    np.testing.assert_allclose(xx[0], np.cov(rows, bias=True), rtol=1e-3, atol=1e-4)
