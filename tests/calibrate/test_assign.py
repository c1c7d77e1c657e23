from __future__ import annotations

import re
import shlex
from fractions import Fraction

import numpy as np
import onnx
import pytest

from intact.calibrate.assign import Method, assign, required_tensors
from intact.calibrate.collect import collect
from intact.calibrate.statistics import Statistics
from intact.config import QuantState, TensorQuantConfig
from intact.data.sources import open_samples
from intact.errors import CalibrationError
from intact.graph import Graph, normalize
from intact.plan import NoteKind, Overrides, QuantizedGraph, TensorEnd, build_plan
from intact.targets import Target, load_target
from tests.models import MODELS, ModelBuilder, random_inputs, residual_net

TARGETS = ("onnxruntime", "onnxruntime-avx2", "tensorrt", "integer-pow2")


def calibrated(
    graph: Graph, target: Target, method: str = "minmax", overrides: Overrides | None = None
) -> tuple[QuantizedGraph, Statistics]:
    plan = build_plan(graph, target, overrides)
    random = np.random.default_rng(2)
    data = {
        str(value.name): random.normal(
            size=(32, *[n if isinstance(n, int) else 2 for n in list(value.shape or ())[1:]])
        ).astype(np.float32)
        for value in graph.inputs
    }
    statistics = collect(graph, open_samples(data, graph), required_tensors(plan))
    return assign(plan, statistics, Method.of(target, method)), statistics


@pytest.mark.crossed
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_end_of_every_model_gets_a_usable_state(name: str, target: str) -> None:
    graph = normalize(MODELS[name].build(17))
    assert random_inputs(MODELS[name].build(17))
    plan, _ = calibrated(graph, load_target(target))
    for end, config in plan.configs.items():
        assert config.state not in (QuantState.INITIAL, QuantState.PASSIVE_INIT), end
        if config.params is not None:
            assert np.all(config.params.scale > 0)
            assert np.all(np.isfinite(config.params.scale))
            root = config.dominator
            assert np.all(config.params.zero_point >= root.quant_min)
            assert np.all(config.params.zero_point <= root.quant_max)
            if root.grid.power_of_two and not root.detail.get("fixed"):
                assert np.all(np.frexp(config.params.scale)[0] == 0.5)


def test_minmax_takes_the_exact_extremes() -> None:
    graph = normalize(residual_net())
    plan, statistics = calibrated(graph, load_target("onnxruntime"))
    config = plan.configs[TensorEnd.input(str(graph.nodes[0].name), 0)]
    seen = statistics["image"]
    assert config.params is not None
    assert config.params.scale == np.float32((seen.maximum - seen.minimum) / 255)


@pytest.mark.parametrize("constant", [1 / 6, 0.125, 0.1244, 3.0, -40.0])
@pytest.mark.parametrize("op_type", ["Mul", "Add"])
def test_a_power_of_two_clips_no_constant(op_type: str, constant: float) -> None:
    b = ModelBuilder()
    x = b.node(op_type, b.input("x", ("batch", 4)), b.scalar(constant))
    b.nodes.append(onnx.helper.make_node("Gemm", [x, b.weight(4, 2)], ["y"], "last"))
    b.output("y", ("batch", 2))
    graph = normalize(b.build())
    plan, _ = calibrated(graph, load_target("integer-pow2"))
    first = graph.nodes[0]
    scale = float(plan.input_config(first, 1).dominator.scale or 0)
    codes = round(abs(constant) / scale)
    assert codes <= 127
    if op_type == "Mul":  # its own scale: no step is wasted either
        assert codes >= 63


def test_the_plan_that_goes_in_is_not_changed() -> None:
    graph = normalize(residual_net())
    target = load_target("onnxruntime")
    plan = build_plan(graph, target)
    samples = open_samples({"image": np.ones((2, 3, 8, 8), np.float32)}, graph)
    statistics = collect(graph, samples, required_tensors(plan))
    assign(plan, statistics, Method.of(target))
    assert any(config.state is QuantState.INITIAL for config in plan.configs.values())


def test_methods_differ_from_minmax_where_they_must() -> None:
    graph = normalize(residual_net())
    target = load_target("onnxruntime")
    scales = {}
    for method in ("minmax", "average", "percentile", "kl", "mse", "aciq"):
        plan, _ = calibrated(graph, target, method)
        relu = next(str(n.name) for n in graph.nodes if n.op_type == "Relu")
        scales[method] = float(plan.configs[TensorEnd.output(relu)].scale or 0)
    # ACIQ's clip may lie beyond the extremes at 8 bits, where it takes them.
    assert scales["aciq"] <= scales["minmax"]
    assert all(scales[name] < scales["minmax"] for name in scales if name not in {"minmax", "aciq"})


def test_a_method_that_is_not_defined_falls_back_and_says_so() -> None:
    plan, _ = calibrated(normalize(residual_net()), load_target("onnxruntime"), "kl")
    notes = [note for note in plan.notes if note.kind is NoteKind.CALIBRATION]
    assert len(notes) == 1
    assert "kl is not defined" in str(notes[0])
    symmetric, _ = calibrated(normalize(residual_net()), load_target("tensorrt"), "kl")
    assert not [note for note in symmetric.notes if note.kind is NoteKind.CALIBRATION]


def test_an_unknown_method_offers_the_nearest() -> None:
    with pytest.raises(CalibrationError, match="did you mean 'percentile'"):
        Method.of(load_target("onnxruntime"), "percentil")


def test_statistics_of_another_model_are_refused() -> None:
    graph = normalize(residual_net())
    target = load_target("onnxruntime")
    with pytest.raises(CalibrationError, match="another model"):
        assign(build_plan(graph, target), Statistics("x"), Method.of(target))


def tiny_weights(scale: float, bias: float) -> Graph:
    b = ModelBuilder()
    x = b.input("image", ["batch", 2, 4, 4])
    weight = np.full((3, 2, 1, 1), scale, np.float32)
    weight[2] = 1.0
    y = b.node("Conv", x, b.constant(weight), b.constant(np.full(3, bias, np.float32)))
    b.node("Conv", y, b.weight(2, 3, 1, 1), out="y")
    b.output("y")
    return normalize(b.build())


def first_conv(plan: QuantizedGraph) -> tuple[TensorQuantConfig, TensorQuantConfig]:
    node = str(plan.graph.nodes[0].name)
    return plan.configs[TensorEnd.input(node, 1)], plan.configs[TensorEnd.input(node, 2)]


def test_an_overflowing_bias_gets_room_and_a_note() -> None:
    plan, _ = calibrated(tiny_weights(1e-12, 5.0), load_target("onnxruntime"))
    weight, bias = first_conv(plan)
    assert [note.kind for note in plan.notes] == [NoteKind.BIAS_OVERFLOW]
    assert "the int32 bias would overflow in 2 channel(s)" in str(plan.notes[0])
    assert "adds 0.0 dB to the noise of its weights" in plan.notes[0].message
    assert not plan.notes[0].remedy  # nothing is lost: those weights are far smaller than others
    codes = bias.quantize(np.full(3, 5.0))
    assert np.all(np.abs(codes) <= 2**30 + 64)
    assert np.all(np.abs(bias.dequantize(codes) - 5.0) <= np.asarray(bias.scale) / 2 + 1e-6)
    assert float(weight.scale[2]) == pytest.approx(1 / 127)  # type: ignore[index]


def test_what_room_for_a_bias_costs_is_said_with_a_remedy() -> None:
    graph = tiny_weights(0.9, 2e7)  # weights of all channels are of one size
    plan, _ = calibrated(graph, load_target("onnxruntime"))
    note = plan.notes[0]
    (added,) = map(float, re.findall(r"adds (\d+\.\d) dB", note.message))
    weight, _ = first_conv(plan)
    assert weight.scale is not None
    plain = np.array([0.9, 0.9, 1.0]) / 127
    powers = [np.minimum(np.square(each) / 12, [0.81, 0.81, 1.0]) for each in (weight.scale, plain)]
    assert added == pytest.approx(10 * np.log10(powers[0].sum() / powers[1].sum()), abs=0.06)
    assert added > 1
    assert "keep it float" in note.remedy


def test_the_type_of_an_overflowing_bias_is_the_targets() -> None:
    plan, _ = calibrated(tiny_weights(1e-12, 1e9), load_target("tflite-16x8"))
    assert "the int64 bias would overflow in 3 channel(s)" in str(plan.notes[0])


def test_a_bias_that_no_weight_scale_makes_room_for_is_refused() -> None:
    graph = tiny_weights(1e-3, 1e30)
    plan = build_plan(graph, load_target("onnxruntime"))
    data = {"image": np.full((4, 2, 4, 4), 1e-30, np.float32)}
    statistics = collect(graph, open_samples(data, graph), required_tensors(plan))
    with pytest.raises(CalibrationError, match="bias is too large") as refused:
        assign(plan, statistics, Method.of(plan.target, "minmax"))
    assert str(graph.nodes[0].name) in str(refused.value)


def test_remedies_can_be_pasted_whatever_nodes_are_called() -> None:
    b = ModelBuilder()
    limit = b.constant(np.full(4, -np.inf, np.float32))
    x = b.node("Max", b.input("x", ["batch", 4]), b.scalar(0.5), name="first")
    x = b.node("Mul", x, limit, name="model/mul; it's")
    b.nodes.append(onnx.helper.make_node("Gemm", [x, b.weight(4, 2)], ["y"], "last"))
    b.output("y")
    graph = normalize(b.build())
    with pytest.raises(CalibrationError, match="no finite value was observed") as refused:
        calibrated(graph, load_target("integer-pow2"))
    words = shlex.split(refused.value.with_flags.split("or ")[-1])
    assert words == ["--keep-float", "model/mul; it's"]


@pytest.mark.parametrize("size", [1e-3, 1e12])
def test_a_bias_for_each_row_of_a_product(size: float) -> None:
    """The largest of a column decides whether it fits."""
    b = ModelBuilder()
    x = b.input("x", [3, 6])
    bias = np.full((3, 4), size, np.float32) * np.array([[1], [0], [-1]], np.float32)
    b.node("Gemm", x, b.constant(np.full((6, 4), 1e-3, np.float32)), b.constant(bias), out="y")
    b.output("y")
    graph = normalize(b.build())
    plan = build_plan(graph, load_target("onnxruntime"))
    data = {"x": np.random.default_rng(2).normal(size=(33, 6)).astype(np.float32)}
    samples = open_samples(data, graph)
    statistics = collect(graph, samples, required_tensors(plan))
    plan = assign(plan, statistics, Method.of(plan.target, "minmax"))
    config = plan.input_config(plan.graph.nodes[0], 2)
    found = config.dequantize(config.quantize(bias.astype(np.float64)))
    assert np.all(np.abs(found - bias) <= np.asarray(config.scale) / 2 + 1e-6 * size)


def test_an_ordinary_bias_is_the_product_of_the_scales() -> None:
    plan, _ = calibrated(tiny_weights(0.5, 0.25), load_target("onnxruntime"))
    weight, bias = first_conv(plan)
    node = str(plan.graph.nodes[0].name)
    data = plan.configs[TensorEnd.input(node, 0)]
    assert bias.state is QuantState.PASSIVE
    assert not plan.notes
    expected = np.asarray(weight.scale) * np.asarray(data.scale)
    assert np.array_equal(np.asarray(bias.scale), expected.astype(np.float32))
    exact = Fraction(0.25) / Fraction(float(expected[0]))
    assert abs(int(bias.quantize(np.full(3, 0.25))[0]) - exact) <= Fraction(1, 2)


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0])
def test_constant_and_dead_tensors_get_a_defined_scale(value: float) -> None:
    b = ModelBuilder()
    x = b.input("image", ["batch", 2, 4, 4])
    weight = np.zeros((3, 2, 1, 1), np.float32)
    bias = np.full(3, value, np.float32)
    y = b.node("Conv", x, b.constant(weight), b.constant(bias))
    b.node("Conv", y, b.weight(2, 3, 1, 1), out="y")
    b.output("y")
    plan, _ = calibrated(normalize(b.build()), load_target("onnxruntime"), "mse")
    for config in plan.configs.values():
        if config.params is not None:
            assert np.all(config.params.scale > 0)
    output = plan.configs[TensorEnd.output(str(plan.graph.nodes[0].name))]
    assert output.fake_quantize(np.array([value], np.float32))[0] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_weight_bits_set_the_range_of_weights(bits: int) -> None:
    overrides = Overrides(weight_bits=bits)
    plan, _ = calibrated(tiny_weights(0.5, 0.25), load_target("onnxruntime"), overrides=overrides)
    weight, _ = first_conv(plan)
    assert (weight.bits, weight.quant_max) == (bits, 2 ** (bits - 1) - 1)
    assert weight.fake_quantize(np.full((3, 2, 1, 1), 0.5, np.float32))[0, 0, 0, 0] == 0.5
