"""ONNX with FakeQuantize: what stands in it, what it refuses, and that OpenVINO runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.engines.cpu import detect_cpu
from intact.engines.simulate import Simulator
from intact.errors import ExportError, PlanError
from intact.formats.openvino.dialect import DOMAIN, quantizer, unsupported_reason
from intact.formats.openvino.write import OpenVinoModel, write_openvino
from intact.plan import Overrides, QuantizedGraph, quantization_points
from intact.targets import Target, load_target
from tests.models import MODELS, ModelBuilder, random_inputs, residual_net
from tests.plans import Arrays, calibrated, config, conv, image, own_target, planned

OPS = '[[op]]\nops = ["Conv", "Relu", "Gemm"]\n'
HEADER = """
format = 2
name = "mine"
formats = ["openvino"]
[activation]
dtype = "int8"
symmetric = true
[weight]
dtype = "int8"
symmetric = true
granularity = "per_channel"
[bias]
dtype = "float32"
[arithmetic]
requantize = { kind = "float_once" }
"""


HERE = "openvino-avx2" if detect_cpu().saturates_pairs else "openvino"
"""The target whose sums do not saturate on this processor, so that float32 simulates them."""


def bytes_of(model: ir.Model) -> bytes:
    return bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def quantizers(exported: OpenVinoModel) -> list[ir.Node]:
    return [node for node in exported.model.graph if node.domain == DOMAIN]


def numbers(value: ir.Value | None) -> np.ndarray:
    assert value is not None
    assert value.const_value is not None
    return value.const_value.numpy()


def run_openvino(exported: OpenVinoModel, feeds: Arrays) -> list[Any]:
    openvino = pytest.importorskip("openvino")
    core = openvino.Core()
    model = core.read_model(bytes_of(exported.model))
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return list(compiled(feeds).values())


def one_conv(
    target: Target | str, *, weight_bits: int | None = None, activation_bits: int | None = None
) -> QuantizedGraph:
    b = ModelBuilder()
    conv(b, b.node("Relu", conv(b, image(b), "one"), out="r"), "two")
    b.output("two_out")
    overrides = Overrides(weight_bits=weight_bits, activation_bits=activation_bits)
    return calibrated(b.build(), target, overrides)


def test_the_form_of_the_document() -> None:
    exported = write_openvino(one_conv("openvino"))
    onnx.checker.check_model(ir.to_proto(exported.model))
    assert exported.model.opset_imports[DOMAIN] == 1
    assert {node.op_type for node in quantizers(exported)} == {"FakeQuantize"}
    for node in quantizers(exported):
        assert list(node.attributes) == ["levels"]
        _, low, high, out_low, out_high = node.inputs
        assert (low, high) == (out_low, out_high)
        assert numbers(low).dtype == np.float32
    made: set[str | None] = {value.name for value in exported.model.graph.inputs}
    made |= set(exported.model.graph.initializers)
    for each in exported.model.graph:  # sorted
        assert {value.name for value in each.inputs if value is not None} <= made
        made |= {value.name for value in each.outputs}
    used = {value.name for node in exported.model.graph for value in node.inputs if value}
    assert set(exported.model.graph.initializers) <= used


def test_ranges_are_those_of_the_plan() -> None:
    plan = one_conv("openvino")
    exported = write_openvino(plan)
    by_output = {str(node.outputs[0].name): node for node in quantizers(exported)}
    points = [point for point in quantization_points(plan) if not point.is_constant]
    assert {point.end for point in points} == set(exported.codes)
    for point in points:
        node, grid = by_output[exported.codes[point.end]], point.config
        assert grid.scale is not None
        low, high = (numbers(node.inputs[slot]) for slot in (1, 2))
        assert node.attributes["levels"].as_int() == 256
        assert (low.shape, high.shape) == ((), ())
        assert low == np.float32(grid.quant_min * np.float64(grid.scale))
        assert high == np.float32(grid.quant_max * np.float64(grid.scale))
    unsigned = by_output[exported.codes[next(p.end for p in points if p.end.node == "Relu_r")]]
    assert numbers(unsigned.inputs[1]) == 0


@pytest.mark.parametrize(
    ("bits", "levels", "lowest", "highest"),
    [(8, 256, -127, 127), (7, 256, -63, 63), (4, 256, -7, 7)],
)
def test_weights_are_clamped_to_their_range_and_stored_as_8_bits(
    bits: int, levels: int, lowest: int, highest: int
) -> None:
    plan = one_conv("openvino", weight_bits=bits)
    exported = write_openvino(plan)
    grid = config(plan, "one.input[1]")
    node = next(n for n in quantizers(exported) if str(n.inputs[0].name).endswith("_on_grid"))  # type: ignore[union-attr]
    weight, low, high = (numbers(node.inputs[slot]) for slot in (0, 1, 2))
    assert node.attributes["levels"].as_int() == levels
    assert low.shape == high.shape == (4, 1, 1, 1)
    assert grid.scale is not None
    scale = np.asarray(grid.scale, np.float64).reshape(4, 1, 1, 1)
    np.testing.assert_array_equal(low, (-128 * scale).astype(np.float32))
    np.testing.assert_array_equal(high, (127 * scale).astype(np.float32))
    codes = weight / scale
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-4)
    assert (np.rint(codes).min(), np.rint(codes).max()) == (lowest, highest)


def test_a_symmetric_range_without_its_lowest_code_has_255_levels(tmp_path: Path) -> None:
    header = HEADER.replace("[bias]", "quant_min = -127\n[bias]").replace(
        "[weight]\ndtype", "[weight]\nquant_max = 127\ndtype"
    )
    exported = write_openvino(one_conv(own_target(tmp_path, OPS, header=header)))
    levels = {
        str(node.inputs[0].name): node.attributes["levels"].as_int()  # type: ignore[union-attr]
        for node in quantizers(exported)
    }
    assert {count for name, count in levels.items() if name.endswith("_on_grid")} == {255}


def test_only_the_residual_of_an_add_is_quantized() -> None:
    exported = write_openvino(calibrated(residual_net(17), "openvino"))
    add = next(node for node in exported.model.graph if node.op_type == "Add")
    makers = sorted(value.producer().op_type for value in add.inputs)  # type: ignore[union-attr]
    assert makers == ["Conv", "FakeQuantize"]


def test_biases_are_floats_and_integer_ones_are_the_floats_they_stand_for() -> None:
    plan = calibrated(residual_net(17), "onnxruntime")
    exported = write_openvino(plan)
    gemm = next(node for node in plan.graph.nodes if node.op_type == "Gemm")
    end = config(plan, f"{gemm.name}.input[2]")
    twin = next(node for node in exported.model.graph if node.op_type == "Gemm")
    bias = gemm.inputs[2]
    assert bias is not None
    assert bias.const_value is not None
    wanted = end.fake_quantize(bias.const_value.numpy().astype(np.float64))
    np.testing.assert_array_equal(numbers(twin.inputs[2]), wanted.astype(np.float32))
    assert any("bias" in note.message for note in exported.notes)


def test_what_fake_quantize_cannot_express_is_listed(tmp_path: Path) -> None:
    header = HEADER.replace("[weight]\n", "[weight]\nspacing = 'exponential'\n")
    plan = one_conv(own_target(tmp_path, OPS, header=header))
    with pytest.raises(ExportError, match="logarithmic levels") as caught:
        write_openvino(plan)
    assert "one.input[1]" in str(caught.value)
    assert "two.input[1]" in str(caught.value)


def test_a_range_beyond_float32_is_refused() -> None:
    plan = one_conv("openvino").copy()
    end = config(plan, "one.input[0]").dominator
    end.set_params(3e38, 0)
    with pytest.raises(ExportError, match="a range beyond float32"):
        write_openvino(plan)


@pytest.mark.parametrize(("step", "noted"), [(1e-39, True), (2e-38, False)])
def test_steps_that_openvino_takes_for_0_are_noted(step: float, noted: bool) -> None:
    plan = one_conv("openvino").copy()
    config(plan, "one.input[0]").dominator.set_params(np.float32(step), 0)
    notes = [note.message for note in write_openvino(plan).notes]
    assert any("one.input[0]" in note and "denormal" in note for note in notes) == noted


def test_a_plan_without_scales_is_refused() -> None:
    with pytest.raises(PlanError, match="no scale yet"):
        write_openvino(planned(residual_net(17), "openvino"))


@pytest.mark.parametrize(
    ("overrides", "noted"),
    [
        ({}, False),
        ({"weight_bits": 7}, False),
        ({"activation_bits": 4}, False),
        ({"activation_bits": 7}, True),
        ({"activation_bits": 16}, True),
        ({"weight_bits": 16}, True),
    ],
)
def test_what_runs_in_float_is_noted_and_nothing_else(
    overrides: dict[str, int], noted: bool
) -> None:
    plan = one_conv("openvino", **overrides)
    exported = write_openvino(plan)
    assert any("in float" in note.message for note in exported.notes) == noted
    openvino = pytest.importorskip("openvino")
    core = openvino.Core()
    model = core.read_model(bytes_of(exported.model))
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = set()
    for operation in compiled.get_runtime_model().get_ordered_ops():
        info = operation.get_rt_info()
        if info["layerType"].astype(str) == "Convolution":
            found.add(info["runtimePrecision"].astype(str))
    assert ("f32" in found) == noted


def test_writing_twice_gives_the_same_bytes_and_leaves_the_plan_alone() -> None:
    plan = calibrated(MODELS["transformer"].build(17), "openvino")
    before = bytes_of(plan.graph.model)
    assert bytes_of(write_openvino(plan).model) == bytes_of(write_openvino(plan).model)
    assert bytes_of(plan.graph.model) == before


# 1e-12 / 1e-12 stands in it, which OpenVINO's moving of scales makes 0.
_RUN = sorted(set(MODELS) - {"clutter"})


@pytest.mark.parametrize("name", _RUN)
def test_openvino_computes_nearly_what_the_simulator_does(name: str) -> None:
    model = MODELS[name].build(max(17, MODELS[name].since))
    plan, feeds = calibrated(model, HERE), dict(random_inputs(model, batch=3, seed=7))
    found = run_openvino(write_openvino(plan), feeds)
    expected, _ = Simulator(plan).run(feeds)
    for ours, theirs in zip(expected.values(), found, strict=True):
        assert theirs.shape == ours.shape
        largest = float(np.abs(ours).max(initial=0)) or 1.0
        assert float(np.abs(theirs - ours).max(initial=0)) <= 0.02 * largest


def test_asymmetric_activations(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'format = 2\nname = "mine"\nextends = "openvino"\n'
        '[activation]\ndtype = "uint8"\nquant_min = 0\nquant_max = 255\nsymmetric = false\n'
        "[unsigned]\nafter = []\nthrough = []\n",
        encoding="utf-8",
    )
    plan = calibrated(residual_net(17), load_target(path))
    exported, feeds = write_openvino(plan), dict(random_inputs(residual_net(17), batch=3, seed=7))
    lows = [numbers(node.inputs[1]) for node in quantizers(exported)]
    highs = [numbers(node.inputs[2]) for node in quantizers(exported)]
    ratios = [(-low / high).max() for low, high in zip(lows, highs, strict=True)]
    assert any(0.1 < ratio < 0.99 for ratio in ratios)
    ours = next(iter(Simulator(plan).run(feeds)[0].values()))
    theirs = run_openvino(exported, feeds)[0]
    assert np.abs(ours - theirs).max() <= 0.02 * np.abs(ours).max()


@pytest.mark.parametrize("batch", [1, 5])
def test_a_dynamic_batch_stays_dynamic(batch: int) -> None:
    model = residual_net(17)
    exported = write_openvino(calibrated(model, "openvino"))
    feeds = dict(random_inputs(model, batch=batch, seed=3))
    assert run_openvino(exported, feeds)[0].shape == (batch, 5)


def test_a_constant_that_is_added_is_no_weight(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'format = 2\nname = "mine"\nextends = "openvino"\n'
        '[activation]\ndtype = "uint8"\nquant_min = 0\nquant_max = 255\nsymmetric = false\n'
        "[unsigned]\nafter = []\nthrough = []\n",
        encoding="utf-8",
    )
    b = ModelBuilder()
    x = b.node("Relu", conv(b, image(b), "one"))
    x = b.node("Add", x, b.constant(np.linspace(0, 1, 4).astype(np.float32).reshape(4, 1, 1)))
    conv(b, x, "two")
    b.output("two_out")
    plan = calibrated(b.build(), load_target(path))
    assert any(p.is_constant and p.end.node.startswith("Add") for p in quantization_points(plan))
    assert write_openvino(plan).notes == []


@pytest.mark.parametrize("runtime", [False, True])
def test_weights_of_7_bits_without_a_sign_are_stored_as_8(tmp_path: Path, runtime: bool) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'format = 2\nname = "mine"\nextends = "openvino"\n'
        '[weight]\ndtype = "uint8"\nbits = 7\nquant_min = 0\nquant_max = 127\nsymmetric = false\n'
        '[[op]]\nops = ["Conv", "Relu"]\n',
        encoding="utf-8",
    )
    plan = one_conv(load_target(path))
    grid, exported = config(plan, "one.input[1]"), write_openvino(plan)
    assert (grid.quant_min, grid.quant_max) == (0, 127)
    assert grid.params is not None
    scale, zero = (np.asarray(e, np.float64).reshape(4, 1, 1, 1) for e in grid.params)
    assert zero.any()
    if runtime:
        feeds = {"image": np.random.default_rng(0).normal(size=(2, 4, 8, 8)).astype(np.float32)}
        ours = next(iter(Simulator(plan).run(feeds)[0].values()))
        assert np.abs(run_openvino(exported, feeds)[0] - ours).max() <= 0.02 * np.abs(ours).max()
        return
    node = next(n for n in quantizers(exported) if str(n.inputs[0].name).endswith("_on_grid"))  # type: ignore[union-attr]
    weight, low, high = (numbers(node.inputs[slot]) for slot in (0, 1, 2))
    assert node.attributes["levels"].as_int() == 256
    np.testing.assert_array_equal(low, ((0 - zero) * scale).astype(np.float32))
    np.testing.assert_array_equal(high, ((255 - zero) * scale).astype(np.float32))
    codes = np.rint(weight / scale + zero)
    assert (codes.min(), codes.max()) == (0, 127)


def test_a_quantized_output_that_is_read_inside_too() -> None:
    b = ModelBuilder()
    left, right = conv(b, image(b), "one"), conv(b, b.input("other", ["batch", 4, 8, 8]), "two")
    b.node("Add", left, right, out="sum", name="add")
    conv(b, b.node("Relu", "sum"), "last")
    b.output("sum")
    b.output("last_out")
    plan, feeds = calibrated(b.build(), HERE), dict(random_inputs(b.build(), batch=2))
    exported = write_openvino(plan)
    producer = exported.model.graph.outputs[0].producer()
    assert exported.model.graph.outputs[0].name == "sum"
    assert producer is not None
    assert producer.op_type == "FakeQuantize"
    relu = next(node for node in exported.model.graph if node.op_type == "Relu")
    assert relu.inputs[0] is exported.model.graph.outputs[0]
    for ours, theirs in zip(
        Simulator(plan).run(feeds)[0].values(), run_openvino(exported, feeds), strict=True
    ):
        assert np.abs(ours - theirs).max() <= 0.02 * np.abs(ours).max()


def test_one_weight_on_two_grids_is_stored_twice() -> None:
    b = ModelBuilder()
    w = b.weight(4, 4, 1, 1, name="w")
    x = b.node("Conv", image(b), w, name="fine")
    b.node("Conv", b.node("Relu", x), w, name="coarse", out="y")
    b.output("y")
    plan = calibrated(b.build(), HERE, Overrides(bits={"coarse": 4}))
    exported, feeds = write_openvino(plan), dict(random_inputs(b.build(), batch=2))
    stored = [n.inputs[1].producer().inputs[0] for n in exported.model.graph if n.op_type == "Conv"]  # type: ignore[union-attr]
    assert len({str(value.name) for value in stored if value is not None}) == 2
    ours = next(iter(Simulator(plan).run(feeds)[0].values()))
    assert np.abs(run_openvino(exported, feeds)[0] - ours).max() <= 0.02 * np.abs(ours).max()


def test_what_only_tools_note_is_left_out() -> None:
    plan = one_conv("openvino")
    for node in plan.graph.nodes:
        node.doc_string = "line 5"
        node.metadata_props["namespace"] = "mine"
    for value in (*plan.graph.inputs, *plan.graph.model.graph.initializers.values()):
        value.metadata_props["namespace"] = "mine"
    content = bytes_of(write_openvino(plan).model)
    assert b"line 5" not in content
    assert b"namespace" not in content


def test_large_constants_are_computed_when_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = one_conv("openvino")
    expected = write_openvino(plan).model
    monkeypatch.setattr("intact.graph.files.tensors.COMPUTED_AT_ONCE", 0)
    found = write_openvino(plan).model

    def lazy(model: ir.Model) -> list[bool]:
        constants = model.graph.initializers.items()
        return [isinstance(v.const_value, ir.LazyTensor) for k, v in constants if "on_grid" in k]

    assert (lazy(expected), lazy(found)) == ([False, False], [True, True])
    assert bytes_of(found) == bytes_of(expected)


@pytest.mark.parametrize(("low", "reason"), [(-3.41e38, "a range beyond float32"), (-3e38, None)])
def test_an_end_beyond_float32(low: float, reason: str | None) -> None:
    plan = one_conv("openvino").copy()
    end = config(plan, "one.input[0]").dominator
    end.set_params(low / -128, 0)
    point = next(p for p in quantization_points(plan) if str(p.end) == "one.input[0]")
    assert (unsupported_reason(point) is None) is (reason is None)
    assert np.isfinite(quantizer(point).high)


def test_scales_along_an_axis_of_an_unknown_rank_are_refused() -> None:
    plan = one_conv("openvino").copy()
    point = next(p for p in quantization_points(plan) if str(p.end) == "one.input[1]")
    assert unsupported_reason(point) is None
    point.value.shape = None
    assert unsupported_reason(point) == "one scale a channel of a tensor of unknown rank"


def test_a_reader_with_its_own_grid_reads_the_quantized_output() -> None:
    b = ModelBuilder()
    b.node("Relu", conv(b, image(b), "one"), out="r")
    conv(b, "r", "coarse")
    conv(b, "r", "fine")
    b.output("coarse_out")
    b.output("fine_out")
    plan = calibrated(b.build(), "openvino", Overrides(bits={"coarse.input": 4}))
    nodes = {str(node.name): node for node in write_openvino(plan).model.graph}
    coarse, fine = (nodes[name].inputs[0].producer() for name in ("coarse", "fine"))  # type: ignore[union-attr]
    assert coarse is not None
    assert fine is not None
    assert [each.attributes["levels"].as_int() for each in (coarse, fine)] == [16, 256]
    assert coarse.inputs[0] is fine.outputs[0]
