"""TensorRT's rules, each broken on purpose, and verification without TensorRT."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import intact
from intact import demo
from intact.cli.entry import run
from intact.formats.base.format import Io
from intact.formats.registry import FORMATS
from intact.formats.tensorrt.verify import (
    RULES,
    WrittenModel,
    check_tensorrt,
    verify_tensorrt,
)
from intact.formats.tensorrt.write import CACHE_FILE, MODEL_FILE, RANGES_FILE, TensorRtModel
from intact.graph import Graph, save_model
from intact.plan import Overrides, QuantizedGraph
from tests.formats.tensorrt.networks import SCALES, planned_with, residual
from tests.models import MODELS, ModelBuilder, random_inputs
from tests.plans import calibrated

Proto = onnx.ModelProto
(
    ZERO_POINTS,
    SOUND_SCALES,
    PAIRS,
    PER_TENSOR,
    CHANNELS,
    IN_BLOCKS,
    FACTORS,
    BIASES,
    RESIDUALS,
    OPERATORS,
    OPSET,
    TABLE_NAMES,
    TABLE_SCALES,
) = RULES


def written(plan: QuantizedGraph) -> TensorRtModel:
    exported = FORMATS["tensorrt"].writer.write(plan, Io.INT8)
    assert isinstance(exported, TensorRtModel)
    return exported


def broken(change: Callable[[Proto], None], model: Proto | None = None) -> dict[str, list[str]]:
    """The rules that a change of the written model breaks, with the places."""
    plan = planned_with(SCALES, residual()) if model is None else calibrated(model, "tensorrt")
    exported = written(plan)
    proto = ir.to_proto(exported.model)
    change(proto)
    found = check_tensorrt(WrittenModel(ir.from_proto(proto), exported.tables, plan.graph))
    assert list(found) == list(RULES)
    return {rule: places for rule, places in found.items() if places}


def node(model: Proto, output: str) -> onnx.NodeProto:
    (found,) = [each for each in model.graph.node if each.output[0] == output]
    assert isinstance(found, onnx.NodeProto)
    return found


def put(model: Proto, name: str, array: np.ndarray) -> str:
    """Put a constant in, or in the place of the one of that name."""
    for tensor in [each for each in model.graph.initializer if each.name == name]:
        model.graph.initializer.remove(tensor)
    model.graph.initializer.append(numpy_helper.from_array(array, name))
    return name


def read(model: Proto, name: str) -> np.ndarray:
    (tensor,) = [each for each in model.graph.initializer if each.name == name]
    return numpy_helper.to_array(tensor)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_what_is_written_breaks_no_rule(name: str) -> None:
    assert broken(lambda _: None, MODELS[name].build(17)) == {}


def test_a_product_in_float_reads_the_codes_of_an_integer_one_beside_it() -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["batch", 3, 8, 8]), b.weight(4, 3, 3, 3), name="first")
    b.output(b.node("MatMul", x, b.weight(6, 5), name="kept"))
    b.output(b.node("Conv", x, b.weight(4, 4, 3, 3), name="beside"))
    plan = calibrated(b.build(), "tensorrt", Overrides(keep_float=("kept",)))
    floats = frozenset({"kept"})
    exported = written(plan)
    found = check_tensorrt(WrittenModel(exported.model, exported.tables, plan.graph, floats))
    assert not any(found.values())
    found = verify_tensorrt(plan, exported, [random_inputs(b.build())]).rules
    assert found
    assert not any(found.values())


def test_a_zero_point_that_is_not_zero() -> None:
    def change(model: Proto) -> None:
        put(model, "relu1_zero_point", np.array(3, np.int8))

    assert broken(change) == {ZERO_POINTS: ["relu1_quantized", "relu1_dequantized"]}


def test_a_zero_point_of_another_type() -> None:
    def change(model: Proto) -> None:
        put(model, "relu1_zero_point", np.array(0, np.uint8))

    assert broken(change) == {ZERO_POINTS: ["relu1_quantized", "relu1_dequantized"]}


def test_a_zero_point_that_is_left_out() -> None:
    def change(model: Proto) -> None:
        node(model, "relu1_dequantized").input.pop()

    assert broken(change) == {ZERO_POINTS: ["relu1_dequantized"]}


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan])
def test_a_scale_that_is_none(scale: float) -> None:
    def change(model: Proto) -> None:
        put(model, "w1_scale", np.array([1, scale], np.float32))

    found = broken(change)
    assert found.pop(SOUND_SCALES) == ["w1_quantized", "w1_dequantized"]
    assert set(found) <= {PAIRS}  # NaN is not even itself


def test_a_scale_of_another_type_or_shape() -> None:
    def half(model: Proto) -> None:
        put(model, "w1_scale", np.array([1, 1], np.float16))

    def longer(model: Proto) -> None:
        put(model, "relu2_scale", np.array([1, 1], np.float32))

    assert broken(half)[SOUND_SCALES] == ["w1_quantized", "w1_dequantized"]
    assert broken(longer)[SOUND_SCALES] == ["relu2_quantized", "relu2_dequantized"]


def test_a_scale_that_the_model_computes() -> None:
    def change(model: Proto) -> None:
        model.graph.node.insert(0, helper.make_node("Identity", ["relu1_scale"], ["computed"]))
        node(model, "relu1_quantized").input[1] = "computed"

    found = broken(change)
    assert found[SOUND_SCALES] == ["relu1_quantized"]
    assert found[PAIRS] == ["relu1_quantized", "relu1_dequantized"]


def test_a_pair_with_two_scales() -> None:
    def change(model: Proto) -> None:
        node(model, "relu1_dequantized").input[1] = put(model, "other", np.array(1, np.float32))

    assert broken(change) == {PAIRS: ["relu1_quantized", "relu1_dequantized"]}


def test_a_quantizer_that_nothing_dequantizes() -> None:
    def change(model: Proto) -> None:
        inputs = ["y", "relu1_scale", "relu1_zero_point"]
        model.graph.node.append(helper.make_node("QuantizeLinear", inputs, ["codes"], "loose"))
        model.graph.output.append(helper.make_tensor_value_info("codes", TensorProto.INT8, None))

    found = broken(change)
    assert found.pop(PAIRS) == ["loose"]
    assert set(found) == {TABLE_SCALES}


def test_weights_that_are_integers() -> None:
    def change(model: Proto) -> None:
        maker = node(model, "w1_quantized")
        put(model, "codes", np.array([127, -3, 127, 3], np.int8).reshape(2, 2, 1, 1))
        node(model, "w1_dequantized").input[0] = "codes"
        model.graph.node.remove(maker)

    assert broken(change) == {PAIRS: ["w1_dequantized"]}


def test_activations_with_a_scale_for_each_channel() -> None:
    def change(model: Proto) -> None:
        put(model, "relu2_scale", np.array([1, 1], np.float32))
        put(model, "relu2_zero_point", np.zeros(2, np.int8))

    found = broken(change)
    assert found[PER_TENSOR] == ["relu2_quantized", "relu2_dequantized"]


def test_weights_along_another_axis() -> None:
    def change(model: Proto) -> None:
        for name in ("w1_quantized", "w1_dequantized"):
            node(model, name).attribute[0].i = 1

    assert broken(change) == {CHANNELS: ["first along axis 1"]}


def test_more_scales_than_channels() -> None:
    def change(model: Proto) -> None:
        put(model, "w1_scale", np.ones(3, np.float32))
        put(model, "w1_zero_point", np.zeros(3, np.int8))

    assert broken(change) == {CHANNELS: ["first along axis 0"]}


def gemm(*, transposed: bool) -> Proto:
    b = ModelBuilder()
    x = b.input("x", ["batch", 3])
    shape = (3, 3)
    b.node("Gemm", x, b.weight(*shape, name="w"), out="y", name="fc", transB=int(transposed))
    b.output("y")
    return b.build()


@pytest.mark.parametrize(("transposed", "axis"), [(True, 0), (False, 1)])
def test_the_channels_of_a_gemm(transposed: bool, axis: int) -> None:
    def turn(model: Proto) -> None:
        for name in ("w_quantized", "w_dequantized"):
            (attribute,) = node(model, name).attribute
            assert attribute.i == axis
            attribute.i = 1 - axis

    assert broken(lambda _: None, gemm(transposed=transposed)) == {}
    assert broken(turn, gemm(transposed=transposed)) == {CHANNELS: [f"fc along axis {1 - axis}"]}


def test_a_transposed_convolution_with_scales_by_channel() -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 2, 4, 4])
    b.node("ConvTranspose", x, b.weight(2, 2, 3, 3, name="w"), out="y", name="up")
    b.output("y")

    def change(model: Proto) -> None:
        put(model, "w_scale", np.ones(2, np.float32))
        put(model, "w_zero_point", np.zeros(2, np.int8))

    assert broken(change, b.build()) == {CHANNELS: ["up along axis 1"]}


def test_a_product_of_which_one_factor_is_float() -> None:
    def change(model: Proto) -> None:
        node(model, "conv3").input[0] = "relu2"

    assert broken(change) == {FACTORS: ["third"]}


def test_a_bias_that_is_dequantized() -> None:
    def change(model: Proto) -> None:
        put(model, "codes", np.array([1, 2], np.int32))
        inputs = ["codes", put(model, "step", np.array(0.5, np.float32))]
        model.graph.node.insert(0, helper.make_node("DequantizeLinear", inputs, ["bias"], "bias"))
        node(model, "conv1").input[2] = "bias"

    found = broken(change)
    assert found[BIASES] == ["first"]
    assert found[PAIRS] == ["bias"]


def test_a_residual_that_is_float() -> None:
    def change(model: Proto) -> None:
        total = node(model, "sum")
        total.input[list(total.input).index("relu1_dequantized")] = "relu1"

    assert broken(change) == {RESIDUALS: ["plus"]}


def test_a_sum_of_two_convolutions_neither_quantized() -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 2, 4, 4])
    for name in ("left", "right"):
        b.node("Conv", x, b.weight(2, 2, 1, 1), out=name, name=name)
    b.node("Add", "left", "right", out="sum", name="plus")
    b.node("Conv", "sum", b.weight(2, 2, 1, 1), out="y", name="last")
    b.output("y")

    def change(model: Proto) -> None:
        total = node(model, "sum")
        for slot, name in enumerate(("left", "right")):
            total.input[slot] = name

    assert broken(lambda _: None, b.build()) == {}
    assert broken(change, b.build())[RESIDUALS] == ["plus"]


def test_operators_that_the_parser_does_not_read() -> None:
    def change(model: Proto) -> None:
        model.graph.node.append(helper.make_node("Det", ["y"], ["d"], "determinant"))
        model.graph.node.append(helper.make_node("Own", ["y"], ["o"], "mine", domain="my.domain"))

    assert broken(change) == {OPERATORS: ["determinant (Det)", "mine (Own)"]}


def test_operators_of_branches_are_looked_at_too() -> None:
    def change(model: Proto) -> None:
        put(model, "chosen", np.array(True))
        result = helper.make_tensor_value_info("d", onnx.TensorProto.FLOAT, None)
        inner = helper.make_node("Det", ["y"], ["d"], "inner")
        branch = helper.make_graph([inner], "branch", [], [result])
        branches = {"then_branch": branch, "else_branch": branch}
        model.graph.node.append(helper.make_node("If", ["chosen"], ["e"], **branches))

    assert broken(change) == {OPERATORS: ["inner (Det)", "inner (Det)"]}


@pytest.mark.parametrize("opset", [12, 25])
def test_opsets_that_the_parser_does_not_read(opset: int) -> None:
    def change(model: Proto) -> None:
        model.opset_import[0].version = opset

    assert broken(change) == {OPSET: [f"opset {opset}"]}


# ---- the tables --------------------------------------------------------------------------------


def with_tables(
    cache: Callable[[bytes], bytes], ranges: Callable[[bytes], bytes]
) -> dict[str, list[str]]:
    """The rules that changes of the tables break, with the places."""
    plan = planned_with(SCALES, residual())
    exported = written(plan)
    tables = {
        CACHE_FILE: cache(exported.tables[CACHE_FILE]),
        RANGES_FILE: ranges(exported.tables[RANGES_FILE]),
    }
    found = check_tensorrt(WrittenModel(exported.model, tables, plan.graph))
    return {rule: places for rule, places in found.items() if places}


def same(data: bytes) -> bytes:
    return data


def test_tables_of_other_scales() -> None:
    found = with_tables(
        lambda cache: cache.replace(b"relu1: 3e800000", b"relu1: 3e800001"),
        lambda ranges: ranges.replace(b"31.75", b"31.76"),
    )
    assert found == {TABLE_SCALES: [f"{CACHE_FILE}: 'relu1'", f"{RANGES_FILE}: 'relu1'"]}


def test_tables_of_other_tensors() -> None:
    found = with_tables(lambda cache: cache.replace(b"relu1:", b"ghost:"), same)
    assert found == {
        TABLE_NAMES: [f"{CACHE_FILE}: 'ghost'"],
        TABLE_SCALES: [f"{CACHE_FILE}: 'ghost'", f"{CACHE_FILE}: lacks 'relu1'"],
    }


@pytest.mark.parametrize("is_output", [False, True])
def test_a_clip_that_the_quantizer_does_has_its_name_in_the_tables(is_output: bool) -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["batch", 4, 5, 5]), b.weight(4, 4, 1, 1), out="c")
    x = b.node("Clip", x, b.scalar(-100), b.scalar(100), out="clipped")
    b.output(b.node("Conv", x, b.weight(4, 4, 1, 1)))
    if is_output:
        b.output(x)
    plan = calibrated(b.build(), "tensorrt")
    exported = written(plan)
    assert b"clipped: " in exported.tables[CACHE_FILE]
    assert is_output or "Clip" not in {node.op_type for node in exported.model.graph}
    found = check_tensorrt(WrittenModel(exported.model, exported.tables, plan.graph))
    assert not any(found.values())


def test_tables_that_are_damaged() -> None:
    found = with_tables(lambda _: b"TRT-\n", lambda _: b"{}")
    assert list(found) == [TABLE_NAMES]
    assert len(found[TABLE_NAMES]) == 2


def test_a_model_of_other_scales_than_its_tables() -> None:
    def change(model: Proto) -> None:
        put(model, "relu2_scale", np.array(1.5, np.float32))

    found = broken(change)
    assert found == {TABLE_SCALES: [f"{CACHE_FILE}: 'relu2'", f"{RANGES_FILE}: 'relu2'"]}


# ---- the whole way -----------------------------------------------------------------------------


def test_verification_says_that_nothing_was_executed_on_tensorrt(tmp_path: Path) -> None:
    model, data = demo.model_path(), demo.calibration_path()
    intact.quantize(model, data, target="tensorrt", output=tmp_path, threads=1)
    found = intact.verify(tmp_path, demo.test_path(), samples=64, threads=1)
    assert found.format == "tensorrt"
    assert found.runtime == "rules only (no TensorRT here)"
    assert list(found.rules) == list(RULES)
    assert not any(found.rules.values())
    assert found.layers == []
    assert "ONNX Runtime" in found.no_engine
    assert [each.mismatches for each in found.outputs] == [0]
    assert found.agreement == 100
    assert found.top1 is not None
    assert found.top1[0] > 80


def test_a_changed_file_breaks_the_rules_on_the_command_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, data = demo.model_path(), demo.calibration_path()
    intact.quantize(model, data, target="tensorrt", output=tmp_path, threads=1)
    proto = onnx.load(tmp_path / MODEL_FILE)
    name = next(each.input[2] for each in proto.graph.node if each.op_type == "QuantizeLinear")
    put(proto, name, np.ones_like(read(proto, name)))
    onnx.save(proto, tmp_path / MODEL_FILE)
    run(["verify", str(tmp_path), "--samples", "4", "--json"])
    (found,) = json.loads(capfd.readouterr().out)["verified"]
    assert found["rules"][ZERO_POINTS]


def test_a_loaded_model_is_checked_like_the_one_in_memory(tmp_path: Path) -> None:
    plan = planned_with(SCALES, residual())
    written(plan).save(tmp_path)
    save_model(plan.graph.model, tmp_path / "model.onnx")
    again = FORMATS["tensorrt"].writer.read(tmp_path, plan)
    assert isinstance(again, TensorRtModel)
    graph = Graph.load(tmp_path / "model.onnx")
    found = check_tensorrt(WrittenModel(again.model, again.tables, graph))
    assert not any(found.values())
