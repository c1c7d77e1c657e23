"""The written model is run, and its tensors compared with levels that NumPy computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import intact
from intact.config import QuantState, Rounding
from intact.errors import UsageError
from intact.formats.onnx_levels.run import verify_levels
from intact.formats.onnx_levels.write import LevelsModel, write_levels
from intact.graph.edit import Editor
from intact.plan import NoteKind, QuantizedGraph, quantization_points
from intact.plan.plan_file import load_plan, save_plan
from intact.search.strategy import Strategy
from intact.targets import Target
from tests.models import ModelBuilder, random_inputs
from tests.plans import calibrate, calibrated, config, own_target, planned

HEADER = """
format = 2
name = "mine"
formats = ["onnx_levels"]
[activation]
dtype = "{activation}"
bits = {bits}
symmetric = true
spacing = "exponential"
steps_per_octave = {steps}
[weight]
dtype = "int8"
bits = {bits}
symmetric = true
granularity = "per_channel"
spacing = "exponential"
steps_per_octave = {steps}
[arithmetic]
requantize = {{ kind = "float_once" }}
"""
RULES = """
[[op]]
ops = ["Conv", "Gemm"]
[[op]]
ops = ["MaxPool"]
scales = "output_follows_input"
[[op]]
ops = ["Add"]
activation = { spacing = "linear", dtype = "int8" }
[[fusion]]
pattern = [["Conv"], ["Relu"]]
"""


def target(folder: Path, *, bits: int = 8, steps: int = 16, activation: str = "int8") -> Target:
    header = HEADER.format(bits=bits, steps=steps, activation=activation)
    return own_target(folder, RULES, header=header)


def network(opset: int = 17) -> onnx.ModelProto:
    """Convolutions with and without Relu, codes that move, a sum in linear levels, an end."""
    b = ModelBuilder(opset)
    x = b.input("image", ["batch", 3, 8, 8])
    x = b.node("Conv", x, b.weight(6, 3, 3, 3), b.weight(6), name="first", pads=[1, 1, 1, 1])
    x = b.node("Relu", x)
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], name="pool")
    y = b.node("Conv", x, b.weight(6, 6, 1, 1), name="second")
    z = b.node("Add", x, y, name="sum")
    z = b.node("Flatten", z)
    b.node("Gemm", z, b.weight(96, 4), b.weight(4), name="last", out="scores")
    b.output("scores")
    return b.build()


def watched(exported: LevelsModel) -> Any:
    """The model with all its values as outputs."""
    editor = Editor(exported.model)
    known = {value.name for value in editor.model.graph.outputs}
    for node in editor.model.graph:
        editor.model.graph.outputs.extend(v for v in node.outputs if v.name not in known)
    proto = ir.to_proto(editor.finish())
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(proto.SerializeToString(), options)


def tensors(exported: LevelsModel, feeds: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    session = watched(exported)
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True)) | feeds


def quantized_from(exported: LevelsModel, name: str) -> str:
    """The name of the float tensor that a quantizer of the file reads."""
    producers = {value.name: node for node in exported.model.graph for value in node.outputs}
    node = producers[name]
    while node.op_type not in {"Sign", "Div"}:
        node = producers[first(node)]
    return first(node)


def first(node: ir.Node) -> str:
    (value, *_) = node.inputs
    assert value is not None
    return str(value.name)


def stored(exported: LevelsModel, name: str) -> npt.NDArray[Any]:
    tensor = exported.model.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()


@pytest.mark.parametrize(
    ("bits", "steps", "activation"),
    [(8, 16, "int8"), (4, 2, "int8"), (4, 1, "uint8"), (8, 16, "uint8")],
)
def test_each_tensor_is_on_the_levels_that_numpy_computes(
    tmp_path: Path, bits: int, steps: int, activation: str
) -> None:
    described = target(tmp_path, bits=bits, steps=steps, activation=activation)
    model = network()
    plan = calibrated(model, described)
    exported = write_levels(plan)
    found = tensors(exported, random_inputs(model, batch=8, seed=5))
    for end, name in exported.levels.items():
        config = plan.configs[end]
        wanted = config.fake_quantize(found[quantized_from(exported, name)])
        np.testing.assert_array_equal(found[name], wanted, err_msg=str(end))
        linear = config.steps_per_octave is None
        assert len(np.unique(found[name])) <= (256 if linear else 2**bits)
    spaced = {plan.configs[end].steps_per_octave for end in exported.levels}
    assert spaced == {steps, None}  # the sum has linear levels


def test_constants_are_stored_as_codes(tmp_path: Path) -> None:
    plan = calibrated(network(), target(tmp_path))
    exported = write_levels(plan)
    found = tensors(exported, random_inputs(network(), batch=1))
    weights = [p for p in quantization_points(plan) if p.is_constant]
    assert len(weights) == 3
    for point in weights:
        codes = stored(exported, f"{point.value.name}_codes")
        assert codes.dtype == np.int8
        np.testing.assert_array_equal(codes, point.constant_codes())
        levels = point.config.dequantize(point.constant_codes())
        assert any(a.shape == levels.shape and np.array_equal(a, levels) for a in found.values())


@pytest.mark.parametrize("opset", [11, 17, 26])
def test_every_level_is_that_of_the_simulation(tmp_path: Path, opset: int) -> None:
    model = network(opset)
    plan = calibrated(model, target(tmp_path, bits=5, steps=3))
    found = verify_levels(plan, write_levels(plan), [random_inputs(model, batch=16, seed=3)])
    assert len(found.simulation) == 9
    assert sum(layer.mismatches for layer in found.simulation) == 0
    assert found.outputs_sqnr_db["scores"] > 100


def test_a_wrong_table_is_found(tmp_path: Path) -> None:
    model = network()
    plan = calibrated(model, target(tmp_path))
    exported = write_levels(plan)
    table = exported.model.graph.initializers["levels_1"]
    table.const_value = ir.tensor(stored(exported, "levels_1") * np.float32(1.05))
    found = verify_levels(plan, exported, [random_inputs(model, batch=4, seed=3)])
    assert sum(layer.mismatches for layer in found.simulation) > 100


def test_biases_and_other_operators_stay_float(tmp_path: Path) -> None:
    """A bias has no integer of scale s_x * s_w where levels are no multiples of a scale."""
    plan = calibrated(network(), target(tmp_path))
    assert config(plan, "first.input[2]").state is QuantState.FP32


def test_four_bits_need_few_steps_an_octave(tmp_path: Path) -> None:
    model, feeds = network(), random_inputs(network(), batch=64, seed=4)
    expected = ort.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    errors = {}
    for steps in (16, 2):
        plan = calibrate(planned(model, target(tmp_path, bits=4, steps=steps)), feeds)
        scores = tensors(write_levels(plan), feeds)["scores"]
        errors[steps] = float(np.square(scores - expected).mean())
    assert errors[2] < errors[16] / 3


def test_methods_about_equal_steps_fall_back_and_others_do_not(tmp_path: Path) -> None:
    described, feeds = target(tmp_path, bits=4, steps=2), random_inputs(network(), batch=8)
    plan = calibrate(planned(network(), described), feeds, method="kl")
    told = [note.message for note in plan.notes if note.kind is NoteKind.CALIBRATION]
    assert any("kl is not defined for tensors with logarithmic levels" in each for each in told)
    widest = calibrate(planned(network(), described), feeds, method="minmax")
    end = "first.input[0]"
    assert config(plan, end).scale == config(widest, end).scale
    least = calibrate(planned(network(), described), feeds, method="mse", weights="mse")
    assert not any("not defined" in note.message for note in least.notes)
    values = feeds["image"]
    squares = [
        float(np.square(config(each, end).fake_quantize(values) - values).mean())
        for each in (least, widest)
    ]
    assert squares[0] <= squares[1]


def test_steps_are_in_the_plan_and_in_strategies(tmp_path: Path) -> None:
    plan = calibrated(network(), target(tmp_path, bits=4, steps=2))
    save_plan(plan, tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json", plan.graph)
    for end, expected in plan.configs.items():
        assert again.configs[end].grid == expected.grid
    assert same_scales(again, plan)
    made = Strategy.of(plan).plan(plan.graph, plan.target)
    assert same_scales(made, plan)


def same_scales(left: QuantizedGraph, right: QuantizedGraph) -> bool:
    return all(
        np.array_equal(np.asarray(left.configs[end].scale), np.asarray(each.scale))
        for end, each in right.configs.items()
        if each.scale is not None
    )


@pytest.mark.parametrize("rounding", list(Rounding))
def test_ties_are_rounded_as_the_target_says(tmp_path: Path, rounding: Rounding) -> None:
    header = HEADER.format(bits=8, steps=16, activation="int8")
    rules = f"""
[[op]]
ops = ["Add"]
activation = {{ spacing = "linear", dtype = "int8", rounding = "{rounding}" }}
"""
    b = ModelBuilder(17)
    b.node(
        "Add", *(b.input(name, ["batch", 8]) for name in ("left", "right")), out="sum", name="sum"
    )
    b.output("sum")
    ties = np.concatenate([np.arange(-126.5, 127.0), [-127.0, 127.0, 0.49999997, -0.49999997]])
    left = np.resize(ties, (33, 8)).astype(np.float32) * np.float32(0.25)
    feeds = {"left": left, "right": left[::-1].copy()}
    plan = calibrate(
        planned(b.build(), own_target(tmp_path, rules, header=header)), feeds, method="minmax"
    )
    assert config(plan, "sum.input[0]").scale == np.float32(0.25)
    exported = write_levels(plan)
    found = tensors(exported, feeds)
    for end, name in exported.levels.items():
        wanted = plan.configs[end].fake_quantize(found[quantized_from(exported, name)])
        np.testing.assert_array_equal(found[name], wanted, err_msg=str(end))


def test_a_result_is_written_evaluated_verified_and_read(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "model.onnx")
    inputs = random_inputs(network(), batch=32, seed=1)
    feeds = inputs | {"labels": np.zeros(32, np.int64)}
    described = target(tmp_path)
    result = intact.quantize(
        tmp_path / "model.onnx", inputs, target=described, output=tmp_path / "out"
    )
    assert (tmp_path / "out" / "model.levels.onnx").is_file()
    found = intact.evaluate(tmp_path / "out", feeds)
    assert found.runtime == "simulation for mine"
    assert found.sqnr_db > 15
    verified = intact.verify(tmp_path / "out", inputs)
    assert sum(layer.mismatches for layer in verified.simulation) == 0
    assert verified.samples == 32
    run = intact.execute(tmp_path / "out", inputs, executor="simulate")
    direct = ort.InferenceSession(tmp_path / "out" / "model.levels.onnx").run(None, inputs)[0]
    np.testing.assert_allclose(run.outputs["scores"], direct, rtol=1e-5, atol=1e-6)
    with pytest.raises(intact.IntactError, match=r"logarithmic levels.*simulate"):
        intact.execute(tmp_path / "out", inputs)
    again = intact.quantize(tmp_path / "model.onnx", inputs, target=described)
    again.save(tmp_path / "again")
    both = [(tmp_path / name / "model.levels.onnx").read_bytes() for name in ("out", "again")]
    assert both[0] == both[1]
    assert result.sizes()[1] == len(both[0])


@pytest.mark.parametrize("name", ["onnx_qdq", "tflite", "c", "openvino", "ncnn", "encodings"])
def test_other_formats_are_refused_before_samples_are_read(tmp_path: Path, name: str) -> None:
    onnx.save(network(), tmp_path / "model.onnx")

    def no_samples() -> Iterator[dict[str, npt.NDArray[Any]]]:
        raise AssertionError("samples were read")
        yield {}

    with pytest.raises(UsageError) as raised:
        intact.quantize(
            tmp_path / "model.onnx", no_samples(), target=target(tmp_path), formats=[name]
        )
    assert str(raised.value) == (
        "target mine has logarithmic levels (spacing = 'exponential'), which format "
        f"{name} cannot hold; use formats onnx_levels, or a target with linear levels"
    )


def test_linear_targets_are_written_too() -> None:
    """Asymmetric codes, ends on the graph's edge, and a clip of the target's own range."""
    model = network()
    plan = calibrated(model, "onnxruntime")
    exported = write_levels(plan)
    found = verify_levels(plan, exported, [random_inputs(model, batch=8, seed=2)])
    assert sum(layer.mismatches for layer in found.simulation) == 0
    values = tensors(exported, random_inputs(model, batch=8, seed=2))
    for end, name in exported.levels.items():
        wanted = plan.configs[end].fake_quantize(values[quantized_from(exported, name)])
        np.testing.assert_array_equal(values[name], wanted, err_msg=str(end))
