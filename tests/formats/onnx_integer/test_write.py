"""Whole models: valid, of integers alone, deterministic, with an open batch; their ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from intact.config import Rounding
from intact.engines.integer import IntegerEngine
from intact.errors import ExportError
from intact.formats.base.format import Io, WrittenFiles
from intact.formats.onnx_integer.format import ONNX_INTEGER, ONNX_INTEGER_FILE
from intact.formats.onnx_integer.run import OnnxIntegerRuntime
from intact.formats.onnx_integer.write import write_onnx_integer
from intact.program import Encoding
from intact.program import operations as ops
from intact.program.realize import integer_program
from intact.targets import Arithmetic, Shift, ZeroPointOrder, load_target
from tests.models import ModelBuilder
from tests.plans import calibrate, planned
from tests.program.one_step import one_step
from tests.program.realize.networks import images, network, plan_for

FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
TARGETS = ("integer-pow2", "tvm", "tflite-micro")


def content_of(target: str, io: Io = Io.INT8, *, curved: bool = False) -> bytes:
    exported = ONNX_INTEGER.writer.write(plan_for(target, curved=curved), io)
    assert isinstance(exported, WrittenFiles)
    assert list(exported.files) == [ONNX_INTEGER_FILE]
    return exported.files[ONNX_INTEGER_FILE]


def types_of(model: onnx.ModelProto) -> dict[str, int]:
    graph = model.graph
    values = [*graph.input, *graph.output, *graph.value_info]
    found = {value.name: value.type.tensor_type.elem_type for value in values}
    return found | {tensor.name: tensor.data_type for tensor in graph.initializer}


@pytest.mark.parametrize("curved", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_a_model_is_valid_and_of_integers_alone(target: str, curved: bool) -> None:
    model = onnx.load_from_string(content_of(target, curved=curved))
    onnx.checker.check_model(model, full_check=True)
    types = types_of(model)
    assert not FLOATS & set(types.values())
    assert {name for node in model.graph.node for name in node.output} <= set(types)
    assert {node.op_type for node in model.graph.node} >= {"ConvInteger", "MatMulInteger"}
    assert not any("Quantize" in node.op_type for node in model.graph.node)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", [1, 7])
def test_any_batch_has_the_engines_bits(target: str, count: int) -> None:
    program = integer_program(plan_for(target, curved=True))
    rng = np.random.default_rng(count)
    name, tensor = next(iter(program.inputs.items()))
    fed = {
        name: rng.integers(
            -128, 128, (count, *(length or 1 for length in tensor.shape[1:]))
        ).astype(np.int8)
    }
    found = OnnxIntegerRuntime(content_of(target, curved=True), threads=1).run(fed)
    wanted = IntegerEngine(program).run(fed).outputs
    assert found.keys() == wanted.keys()
    for key, codes in wanted.items():
        np.testing.assert_array_equal(found[key], codes)
        assert found[key].dtype == np.int8


@pytest.mark.parametrize("target", TARGETS)
def test_floats_stand_at_the_ends_alone(target: str) -> None:
    model = onnx.load_from_string(content_of(target, Io.FLOAT))
    onnx.checker.check_model(model, full_check=True)
    types = types_of(model)
    ends = [*model.graph.input, *model.graph.output]
    assert all(types[value.name] == TensorProto.FLOAT for value in ends)
    makers = [node for node in model.graph.node if node.op_type == "ConvInteger"]
    assert all(types[node.output[0]] == TensorProto.INT32 for node in makers)
    program = integer_program(plan_for(target), float_ends=True)
    fed = images(9, seed=3)
    found = OnnxIntegerRuntime(content_of(target, Io.FLOAT), threads=1).run(fed)
    np.testing.assert_array_equal(
        found["logits"], IntegerEngine(program).run(fed).outputs["logits"]
    )


@pytest.mark.parametrize("rounding", sorted(Rounding))
@pytest.mark.parametrize("order", sorted(ZeroPointOrder))
@pytest.mark.parametrize(("reciprocal", "nan_is_highest"), [(False, False), (True, True)])
def test_floats_become_codes_as_the_plan_rounds(
    rounding: Rounding, order: ZeroPointOrder, reciprocal: bool, nan_is_highest: bool
) -> None:
    encoding = Encoding(
        np.asarray(0.1, np.float32), np.asarray(-3, np.int64), -127, 127, rounding=rounding
    )
    arithmetic = Arithmetic(requantize=Shift(), zero_point=order, reciprocal_scale=reciprocal)
    program = one_step(ops.Quantize(), arithmetic, [((None,), None)], [((None,), encoding)])
    halves = (np.arange(-300, 300) / 2).astype(np.float32) * np.float32(0.1)
    near = [np.nextafter(halves, np.float32(side)) for side in (-np.inf, np.inf)]
    odd = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0, 2.0**31, -(2.0**31)]
    fed = {"in0": np.concatenate([halves, *near, np.asarray(odd, np.float32)])}
    found = OnnxIntegerRuntime(write_onnx_integer(program), threads=1).run(fed)["out0"]
    np.testing.assert_array_equal(found, IntegerEngine(program).run(fed).outputs["out0"])


def test_the_same_plan_gives_the_same_bytes() -> None:
    plan = calibrate(planned(network(), "tvm"), images(32, seed=1))
    other = calibrate(planned(network(), "tvm"), images(32, seed=1))
    first, again = (write_onnx_integer(integer_program(each)) for each in (plan, other))
    assert first == again


def test_what_codes_at_the_ends_stand_for_is_told() -> None:
    model = onnx.load_from_string(content_of("tvm"))
    told = {each.key: each.value for each in model.metadata_props}
    program = integer_program(plan_for("tvm"))
    encoding = program.inputs["image"].encoding
    assert encoding is not None
    assert f"int8 scale=[{float(encoding.scale)!r}] zero_point=[0]" in told["quantization.image"]
    assert "quantization.logits" in told


@pytest.mark.parametrize("name", ["a/b c", "logits_2", "stem/convolve", "ü", "dense"])
def test_odd_names_are_kept(name: str) -> None:
    plan = calibrate(planned(network(image=name), "integer-pow2"), images(8, image=name))
    content = write_onnx_integer(integer_program(plan))
    model = onnx.load_from_string(content)
    assert [value.name for value in model.graph.input] == [name]
    assert [value.name for value in model.graph.output] == ["logits"]
    names = [output for node in model.graph.node for output in node.output]
    assert len(names) == len(set(names))
    OnnxIntegerRuntime(content, threads=1)


def test_what_a_user_should_know_is_noted(tmp_path: Path) -> None:
    exported = ONNX_INTEGER.writer.write(plan_for("tvm"), Io.INT8)
    assert "VNNI" in exported.notes[0].message
    exported.save(tmp_path)
    read = ONNX_INTEGER.writer.read(tmp_path, plan_for("tvm"))
    assert isinstance(read, WrittenFiles)
    assert read.files == {ONNX_INTEGER_FILE: content_of("tvm")}


def test_small_weights_need_no_note(tmp_path: Path) -> None:
    path = tmp_path / "narrow.toml"
    path.write_text(
        'format = 2\nname = "narrow"\nextends = "tvm"\n[weight]\nquant_min = -64\nquant_max = 64\n'
    )
    plan = calibrate(planned(network(), load_target(path)), images(8))
    assert list(ONNX_INTEGER.writer.write(plan, Io.INT8).notes) == []


def test_all_that_floats_compute_is_listed() -> None:
    with pytest.raises(ExportError, match=r"'stem'.*'dense'.*float32"):
        ONNX_INTEGER.writer.write(plan_for("onnxruntime"), Io.INT8)


def test_the_runtime_refuses_no_model() -> None:
    with pytest.raises(ExportError, match="refuses the model"):
        OnnxIntegerRuntime(b"no model")
    with pytest.raises(ExportError, match="fails on this input"):
        OnnxIntegerRuntime(content_of("tvm")).run({})


def test_several_outputs_of_one_layer() -> None:
    b = ModelBuilder()
    x = b.conv(b.input("image", ["batch", 3, 8, 8]), 3, 8)
    b.output(b.node("Relu", x), ["batch", 8, 8, 8])
    b.output(b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), ["batch", 8, 4, 4])
    plan = calibrate(planned(b.build(), "integer-pow2"), images(8))
    program = integer_program(plan)
    codes = np.random.default_rng(0).integers(-128, 128, (3, 3, 8, 8)).astype(np.int8)
    found = OnnxIntegerRuntime(write_onnx_integer(program), threads=1).run({"image": codes})
    for name, wanted in IntegerEngine(program).run({"image": codes}).outputs.items():
        np.testing.assert_array_equal(found[name], wanted)
