"""What is written for TensorRT, against files written by hand from its documents."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

import intact
from intact import demo
from intact.engines.simulate import Simulator
from intact.errors import PlanError, TargetError
from intact.formats.base.format import Io
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.onnx_qdq.write import write_qdq
from intact.formats.registry import FORMATS
from intact.formats.tensorrt.write import (
    CACHE_FILE,
    MODEL_FILE,
    RANGES_FILE,
    TensorRtModel,
    calibration_cache,
    clip_ranges,
    version_number,
)
from intact.graph import constant_array
from intact.plan import QuantizedGraph, quantization_points
from intact.results.result import Result
from intact.targets import load_target
from tests.formats.tensorrt.networks import SCALES, planned_with, residual
from tests.models import MODELS, ModelBuilder, random_inputs
from tests.plans import calibrated

CACHE = """\
TRT-8601-EntropyCalibration2
image: 3f000000
relu1: 3e800000
relu2: 3f800000
conv3: 40000000
pool: 40000000
"""

RANGES = """\
{
    "tensorrt": {
        "blob_range": {
            "image": 63.5,
            "relu1": 31.75,
            "relu2": 127.0,
            "conv3": 254.0,
            "pool": 254.0
        }
    }
}
"""

NODES = """\
image_first_quantized = QuantizeLinear(image, image_scale, image_zero_point)
image_first_dequantized = DequantizeLinear(image_first_quantized, image_scale, image_zero_point)
w1_quantized = QuantizeLinear(w1_on_grid, w1_scale, w1_zero_point), axis 0
w1_dequantized = DequantizeLinear(w1_quantized, w1_scale, w1_zero_point), axis 0
conv1 = Conv(image_first_dequantized, w1_dequantized, b1)
relu1 = Relu(conv1)
relu1_quantized = QuantizeLinear(relu1, relu1_scale, relu1_zero_point)
relu1_dequantized = DequantizeLinear(relu1_quantized, relu1_scale, relu1_zero_point)
w2_quantized = QuantizeLinear(w2_on_grid, w2_scale, w2_zero_point), axis 0
w2_dequantized = DequantizeLinear(w2_quantized, w2_scale, w2_zero_point), axis 0
conv2 = Conv(relu1_dequantized, w2_dequantized, b2)
sum = Add(conv2, relu1_dequantized)
relu2 = Relu(sum)
relu2_quantized = QuantizeLinear(relu2, relu2_scale, relu2_zero_point)
relu2_dequantized = DequantizeLinear(relu2_quantized, relu2_scale, relu2_zero_point)
w3_quantized = QuantizeLinear(w3_on_grid, w3_scale, w3_zero_point), axis 0
w3_dequantized = DequantizeLinear(w3_quantized, w3_scale, w3_zero_point), axis 0
conv3 = Conv(relu2_dequantized, w3_dequantized, b3)
conv3_quantized = QuantizeLinear(conv3, conv3_scale, conv3_zero_point)
conv3_dequantized = DequantizeLinear(conv3_quantized, conv3_scale, conv3_zero_point)
pool = MaxPool(conv3_dequantized)
pool_quantized = QuantizeLinear(pool, conv3_scale, conv3_zero_point)
pool_dequantized = DequantizeLinear(pool_quantized, conv3_scale, conv3_zero_point)
w4_quantized = QuantizeLinear(w4_on_grid, w4_scale, w4_zero_point), axis 0
w4_dequantized = DequantizeLinear(w4_quantized, w4_scale, w4_zero_point), axis 0
y = Conv(pool_dequantized, w4_dequantized, b4)
"""


def written(plan: QuantizedGraph) -> TensorRtModel:
    exported = FORMATS["tensorrt"].writer.write(plan, Io.INT8)
    assert isinstance(exported, TensorRtModel)
    return exported


def listing(model: ir.Model) -> str:
    lines = []
    for node in model.graph:
        inputs = ", ".join(str(value.name) for value in node.inputs if value is not None)
        axis = f", axis {node.attributes.get_int('axis')}" if "axis" in node.attributes else ""
        lines.append(f"{node.outputs[0].name} = {node.op_type}({inputs}){axis}\n")
    return "".join(lines)


def constant(model: ir.Model, name: str) -> np.ndarray:
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()


def test_the_files_are_those_that_the_documents_give() -> None:
    exported = written(planned_with(SCALES, residual()))
    assert exported.tables[CACHE_FILE].decode() == CACHE
    assert exported.tables[RANGES_FILE].decode() == RANGES
    assert listing(exported.model) == NODES
    assert exported.notes == ()


def test_the_constants_are_floats_on_their_grid_and_zero_points_of_int8() -> None:
    model = written(planned_with(SCALES, residual())).model
    weight, scale = constant(model, "w1_on_grid"), constant(model, "w1_scale")
    assert weight.dtype == scale.dtype == np.float32
    assert weight.ravel().tolist() == [127, -3, 63.5, 1.5]
    assert scale.tolist() == [1, 0.5]
    assert constant(model, "b1").tolist() == np.array([0.1, -0.2], np.float32).tolist()
    for name in ("w1_zero_point", "image_zero_point"):
        zero = constant(model, name)
        assert zero.dtype == np.int8
        assert not zero.any()
    assert constant(model, "image_scale").shape == ()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_computes_what_its_plan_says(name: str) -> None:
    source = MODELS[name].build(17)
    plan = calibrated(source, "tensorrt")
    exported, feeds = written(plan), dict(random_inputs(source, batch=3, seed=7))
    onnx.checker.check_model(ir.to_proto(exported.model), full_check=True)
    found, _ = QdqRuntime(exported.model, threads=1, fuse=False).run(feeds)
    wanted, _ = Simulator(plan, threads=1).run(feeds)
    for output, array in wanted.items():
        np.testing.assert_array_equal(found[output], array)


@pytest.mark.parametrize("name", ["residual", "depthwise", "transposed", "transformer"])
def test_the_runtime_makes_the_plans_integers_of_float_weights(name: str) -> None:
    plan = calibrated(MODELS[name].build(17), "tensorrt")
    model = written(plan).model
    weights = [point for point in quantization_points(plan) if point.is_constant]
    assert weights
    for point in weights:
        floats = constant(model, f"{point.value.name}_on_grid")
        (use,) = model.graph.initializers[f"{point.value.name}_on_grid"].uses()
        scale = constant_array(use.node.inputs[1])
        assert scale is not None
        shape = [-1 if k == point.config.granularity.axis else 1 for k in range(floats.ndim)]
        codes = np.round(floats / scale.reshape(shape if scale.ndim else []))
        np.testing.assert_array_equal(codes, point.constant_codes())


@given(st.floats(2.0**-120, 2.0**120, width=32), st.integers(-128, 127))
def test_a_float_on_the_grid_has_its_integer(scale: float, code: int) -> None:
    on_grid = np.float32(code) * np.float32(scale)
    assert np.round(on_grid / np.float32(scale)) == code
    assert np.round(on_grid * (np.float32(1) / np.float32(scale))) == code  # how TensorRT has it


def test_equal_plans_give_equal_bytes() -> None:
    first, second = (written(calibrated(residual(), "tensorrt")) for _ in range(2))
    assert first.tables == second.tables
    protos = (ir.to_proto(each.model).SerializeToString() for each in (first, second))
    assert len(set(protos)) == 1


@pytest.mark.parametrize(
    ("version", "number"),
    [("7.2.2", 7202), ("8.5.10", 8510), ("9.3.0", 9300), ("10.3.0", 100300), ("10.15.1", 101501)],
)
def test_the_number_of_a_release(version: str, number: int) -> None:
    assert version_number(version) == number
    assert calibration_cache({}, version) == f"TRT-{number}-EntropyCalibration2\n".encode()


def test_the_release_is_a_field_of_the_target(tmp_path: Path) -> None:
    path = tmp_path / "ten.toml"
    head = 'extends = "tensorrt"\nname = "ten"\n'
    path.write_text(head + 'runtime_version = "10.3.0"\n')
    exported = written(calibrated(residual(), load_target(path)))
    assert exported.tables[CACHE_FILE].startswith(b"TRT-100300-EntropyCalibration2\n")
    path.write_text(head + 'runtime_version = ""\n')
    unnamed = written(calibrated(residual(), load_target(path)))
    assert unnamed.tables[CACHE_FILE].startswith(b"TRT-8601-")
    path.write_text(head + 'runtime_version = "8.6"\n')
    with pytest.raises(TargetError, match=r"runtime_version is '8\.6'; write three numbers"):
        load_target(path)


def test_scales_are_written_to_the_last_bit() -> None:
    scales = {"a": np.float32(0.1), "b: c": np.float32(1e-38), "d": np.nextafter(np.float32(1), 2)}
    lines = calibration_cache(scales).decode().splitlines()[1:]
    for line, (name, scale) in zip(lines, scales.items(), strict=True):
        read, digits = line.rsplit(": ", 1)
        assert read == name
        assert struct.unpack(">f", bytes.fromhex(digits))[0] == scale
    ranges = json.loads(clip_ranges(scales))["tensorrt"]["blob_range"]
    assert {name: np.float32(amax / 127) for name, amax in ranges.items()} == scales


def two_readers(name: str = "x") -> onnx.ModelProto:
    b = ModelBuilder()
    x = b.input(name, ["batch", 4])
    for output in ("a", "b"):
        b.node("Gemm", x, b.weight(4, 4), out=output, name=f"to_{output}")
        b.output(output)
    return b.build()


@pytest.mark.parametrize("line_break", ["\n", "\r"])
def test_a_tensor_that_the_tables_cannot_name_is_told(line_break: str) -> None:
    exported = written(calibrated(two_readers(f"line{line_break}break"), "tensorrt"))
    (note,) = exported.notes
    assert str(note) == (
        "model.tensorrt.cache and model_clip_ranges.json lack 1 tensor(s) that have several "
        f"scales, or a line break in the name (first: {f'line{line_break}break'!r}); "
        "model.tensorrt.onnx has them"
    )
    assert exported.tables[CACHE_FILE] == b"TRT-8601-EntropyCalibration2\n"


@pytest.mark.parametrize("rounded", ["Gemm", "MatMul"])
def test_a_tensor_with_several_scales_is_told(rounded: str, tmp_path: Path) -> None:
    path = tmp_path / "mixed.toml"
    path.write_text(
        f'extends = "tensorrt"\nname = "mixed"\n[[op]]\nops = ["{rounded}"]\nfloat_output = true\n'
        "activation = { power_of_two = true }\n"
    )
    b = ModelBuilder()
    x = b.input("x", ["batch", 4])
    b.node("Gemm", x, b.weight(4, 4), out="a")
    b.node("MatMul", x, b.weight(4, 4), out="b")
    b.output("a")
    b.output("b")
    exported = written(calibrated(b.build(), load_target(path)))
    (note,) = exported.notes
    assert "lack 1 tensor(s) that have several scales" in str(note)
    assert "(first: 'x')" in str(note)
    assert exported.tables[CACHE_FILE].count(b"\n") == 1
    assert json.loads(exported.tables[RANGES_FILE]) == {"tensorrt": {"blob_range": {}}}


@pytest.mark.parametrize(
    ("opset", "told"),
    [(17, ""), (18, "TensorRT 9.2"), (19, "9.2"), (21, "10.15"), (26, "no TensorRT")],
)
def test_opsets_that_few_releases_read_are_told(opset: int, told: str) -> None:
    plan = calibrated(MODELS["residual"].build(opset), "tensorrt")
    texts = [str(note) for note in written(plan).notes]
    assert len(texts) == bool(told)
    assert all(told in text for text in texts)


def test_large_constants_are_computed_when_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = calibrated(residual(), "tensorrt")
    at_once = ir.to_proto(written(plan).model)
    monkeypatch.setattr("intact.graph.files.tensors.COMPUTED_AT_ONCE", 0)
    later = written(plan).model
    assert isinstance(later.graph.initializers["w1_on_grid"].const_value, ir.LazyTensor)
    assert ir.to_proto(later).SerializeToString() == at_once.SerializeToString()


def test_integers_stay_the_weights_of_the_other_format() -> None:
    model = write_qdq(calibrated(residual(), "tensorrt")).model
    assert not any(name.endswith("_on_grid") for name in model.graph.initializers)


def test_the_folder_has_all_and_is_read_back(tmp_path: Path) -> None:
    data = demo.calibration_path()
    intact.quantize(demo.model_path(), data, target="tensorrt", output=tmp_path, threads=1)
    for name in (MODEL_FILE, CACHE_FILE, RANGES_FILE, "model.onnx"):
        assert (tmp_path / name).is_file()
    plan = Result.load(tmp_path).plan
    again = FORMATS["tensorrt"].writer.read(tmp_path, plan)
    assert isinstance(again, TensorRtModel)
    assert again.tables == written(plan).tables
    assert listing(again.model) == listing(written(plan).model)
    assert again.nbytes() == pytest.approx((tmp_path / MODEL_FILE).stat().st_size, rel=0.2)


def test_the_model_of_another_plan_is_refused(tmp_path: Path) -> None:
    written(calibrated(residual(), "tensorrt")).save(tmp_path)
    other = calibrated(two_readers(), "tensorrt")
    with pytest.raises(PlanError, match=r"not the model of this plan, its inputs are \['image'\]"):
        FORMATS["tensorrt"].writer.read(tmp_path, other)
    (tmp_path / CACHE_FILE).unlink()
    with pytest.raises(PlanError, match=f"no {CACHE_FILE} in it"):
        FORMATS["tensorrt"].writer.read(tmp_path, other)
