"""A written QDQ model in ONNX Runtime against the integer engine and the simulation."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir
import pytest

import intact
from intact.engines.exact_sums import OPTION, saturates_pairs
from intact.formats.base.report import Verification
from intact.formats.onnx_qdq.verify import verify_qdq
from intact.formats.onnx_qdq.write import write_qdq
from intact.results.result import Result
from intact.targets import Shift
from tests.deployment.networks import batches, images, network, plan_for, wrong
from tests.images import Images
from tests.models import ModelBuilder
from tests.plans import calibrate, own_target, planned

pytestmark = pytest.mark.runtime_fact("onnxruntime")


@pytest.fixture(scope="module")
def digits(digits_model: object, digits_calib: Images) -> Result:
    return intact.quantize(digits_model, {"image": digits_calib.image})  # type: ignore[arg-type]


def test_layers_agree_and_are_all_compared(digits: Result, digits_test: Images) -> None:
    found = intact.verify(digits, {"image": digits_test.image}, samples=48)
    assert found.samples == 48
    assert found.runtime.startswith("ONNX Runtime 1.")
    assert found.cpu.instruction_set
    assert len(found.layers) == len(found.end_to_end) > 5
    assert all(layer.values for layer in found.layers)
    assert wrong(found.layers) == wrong(found.end_to_end) == []
    assert [(each.mismatches, each.values) for each in found.outputs] == [(0, 480)]
    assert found.outputs_sqnr_db == {"logits": np.inf}
    assert found.float_nodes == found.in_float == found.not_compared == {}
    assert found.overflows == []


def test_a_processor_that_saturates_pairs_is_named_with_the_option_and_the_difference() -> None:
    plan = plan_for("onnxruntime")
    found = verify_qdq(plan, write_qdq(plan), batches(32))
    if not saturates_pairs():
        assert (found.processor, OPTION in found.runtime) == (None, False)
        return
    assert found.processor is not None
    assert OPTION in found.runtime
    assert OPTION in found.processor.compared
    assert "--target onnxruntime-avx2" in found.processor.remedy
    assert [each.values for each in found.processor.outputs] == [e.values for e in found.outputs]
    assert wrong(found.layers) == []


def test_a_target_that_saturates_pairs_is_run_as_the_runtime_does_by_default() -> None:
    plan = plan_for("onnxruntime-avx2")
    found = verify_qdq(plan, write_qdq(plan), batches(32))
    assert (found.processor, OPTION in found.runtime) == (None, False)
    assert wrong(found.layers) == []


def test_the_simulation_is_compared_apart(digits: Result, digits_test: Images) -> None:
    found = intact.verify(digits, {"image": digits_test.image}, samples=48)
    values = sum(layer.values for layer in found.simulation)
    assert values > 10_000
    assert sum(layer.mismatches for layer in found.simulation) <= max(2, 1e-4 * values)
    assert max(layer.largest for layer in found.simulation) <= 1


def test_without_data_inputs_are_drawn_from_the_statistics(digits: Result) -> None:
    first, second = intact.verify(digits), intact.verify(digits)
    assert first.samples == 64
    assert first.layers == second.layers
    assert wrong(first.layers) == []


def test_a_report_is_json(digits: Result) -> None:
    found = intact.verify(digits, samples=2)
    text = msgspec.json.encode(found)
    assert msgspec.json.decode(text)["layers"][0]["tensor"] == found.layers[0].tensor


def test_a_model_that_is_not_the_plans_is_found_out(digits: Result, digits_test: Images) -> None:
    plan = digits.plan.copy()
    roots = [c for c in plan.configs.values() if c.dominator is c and c.bits == 8 and c.params]
    for config in roots:
        assert config.scale is not None
        if config.scale.ndim == 0:
            config.set_params(config.scale * np.float32(1.1), config.offset)
            break
    found = verify_qdq(plan, write_qdq(digits.plan), [{"image": digits_test.image[:8]}])
    assert sum(layer.mismatches for layer in found.layers) > 100
    assert sum(layer.mismatches for layer in found.simulation) > 100


def test_one_bad_layer_is_one_bad_layer_when_teacher_forced(
    digits: Result, digits_test: Images
) -> None:
    plan = digits.plan.copy()
    weight = next(c for c in plan.configs.values() if c.granularity.axis is not None and c.params)
    assert weight.scale is not None
    weight.set_params(weight.scale * np.float32(1.5), weight.offset)
    found = verify_qdq(plan, write_qdq(digits.plan), [{"image": digits_test.image[:8]}])
    assert len(wrong(found.layers)) == len(wrong(found.simulation)) == 1
    assert len(wrong(found.end_to_end)) > 1
    assert found.outputs[0].mismatches > 0
    assert found.outputs_sqnr_db["logits"] < 60


@pytest.mark.parametrize("node", ["stem", "depthwise", "pointwise"])
def test_a_wrong_weight_in_the_written_model_shows_in_its_layer(node: str) -> None:
    plan = plan_for("onnxruntime")
    exported = write_qdq(plan)
    name = f"{plan.graph.node(node).inputs[1].name}_quantized"  # type: ignore[union-attr]
    stored = exported.model.graph.initializers[name]
    assert stored.const_value is not None
    codes = stored.const_value.numpy().copy()
    codes.flat[4] ^= np.int8(64)
    stored.const_value = ir.tensor(codes, name=name)
    found = verify_qdq(plan, exported, batches(32), threads=1)
    layer = f"{node}_out"
    assert wrong(found.layers) == [layer]
    assert next(each for each in found.layers if each.tensor == layer).operation == "Convolution"
    after = [each.tensor for each in found.layers]
    assert set(wrong(found.end_to_end)) <= set(after[after.index(layer) :])


def test_outputs_without_a_sample_axis_are_compared_too() -> None:
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", ["batch", 3, 8, 8]), 3, 8))
    b.node("ReduceMean", b.conv(x, 8, 4), out="mean", keepdims=0)
    b.output("mean", [])
    data = {"image": np.random.default_rng(0).normal(size=(10, 3, 8, 8)).astype(np.float32)}
    result = intact.quantize(b.build(), data)
    assert intact.verify(result, data).outputs_sqnr_db["mean"] > 20
    assert intact.evaluate(result, data).samples == 10


def test_a_layer_that_is_moved_away_is_named() -> None:
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", ["batch", 3, 8, 6]), 3, 8))
    x = b.node("Transpose", x, out="moved", name="move", perm=[0, 2, 3, 1])
    x = b.node("Transpose", x, out="back", name="back", perm=[0, 3, 1, 2])
    b.output(b.conv(x, 8, 4), ["batch", 4, 8, 6])
    plan = calibrate(planned(b.build()), images(8))
    found = verify_qdq(plan, write_qdq(plan), batches(8), threads=1)
    assert wrong(found.layers) == []
    assert all("moves" in reason for reason in found.not_compared.values())
    assert {str(end) for end in write_qdq(plan).codes} == {layer.end for layer in found.layers} | {
        *found.not_compared
    }


# ---- accumulators -------------------------------------------------------------------------------

NARROW = """
format = 2
name = "narrow"
formats = ["onnx_qdq"]
[activation]
dtype = "uint8"
symmetric = false
[weight]
dtype = "int8"
quant_min = -127
symmetric = true
granularity = "per_channel"
[bias]
dtype = "int32"
[arithmetic]
requantize = { kind = "float_once" }
accumulator = { kind = "wrap", bits = 16 }
[[op]]
ops = ["Conv", "Gemm"]
inputs = ["uint8", "int8"]
outputs = ["uint8"]
[[fusion]]
pattern = [["Conv"], ["Relu"]]
"""


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Verification:
    target = own_target(tmp_path_factory.mktemp("target"), "", header=NARROW)
    plan = calibrate(planned(network(), target), images(32, seed=1))
    return verify_qdq(plan, write_qdq(plan), batches(32), threads=1)


def test_an_overflow_says_where_and_by_how_much(narrow: Verification) -> None:
    assert narrow.overflows
    by_step = {report.step: report for report in narrow.overflows}
    assert "stem" in by_step
    for report in narrow.overflows:
        assert 0 < report.overflows <= report.sums
        assert report.limit == 2**15 - 1 < report.largest
    counts = [report.overflows for report in narrow.overflows]
    assert counts == sorted(counts, reverse=True)


def test_where_the_runtimes_accumulator_is_wider_the_file_wraps_sums(narrow: Verification) -> None:
    assert len(narrow.layers) > len(narrow.overflows)
    assert not any(layer.mismatches for layer in narrow.layers)


def test_the_largest_sum_is_the_one_that_numpy_finds(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 64])
    b.node("Gemm", x, b.constant(np.ones((64, 2), np.float32)), out="y", name="dense")
    b.output("y", ["batch", 2])
    target = own_target(tmp_path, "", header=NARROW)
    data = {"x": np.linspace(0, 1, 128, dtype=np.float32).reshape(2, 64)}
    plan = calibrate(planned(b.build(), target), data)
    (report,) = verify_qdq(plan, write_qdq(plan), [data], threads=1).overflows
    config = plan.input_config(plan.graph.node("dense"), 0)
    assert config is not None
    sums = config.quantize(data["x"]).astype(np.int64).sum(axis=1) * 127
    assert report.largest == sums.max()
    assert report.sums % 4 == 0
    assert report.overflows * 4 == report.sums * 2 * np.count_nonzero(sums > 2**15 - 1)


def test_scales_that_the_hardware_cannot_compute_with_leave_the_simulation() -> None:
    plan = plan_for("onnxruntime")
    shifts = msgspec.structs.replace(plan.target.arithmetic, requantize=Shift(), overrides=())
    target = msgspec.structs.replace(plan.target, arithmetic=shifts)
    plan = dataclasses.replace(plan, target=target)
    found = verify_qdq(plan, write_qdq(plan), batches(16), threads=1)
    assert "no power of two" in found.no_engine
    assert (len(found.layers), len(found.end_to_end), len(found.overflows)) == (0, 0, 0)
    assert sum(layer.values for layer in found.simulation) > 1000
    assert found.outputs[0].values == 80
    assert found.outputs_sqnr_db["logits"] > 60


def test_what_quantizing_makes_no_number_is_verified_and_explained() -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 4, 5, 5])
    least = b.constant(np.float32(1e-3))  # becomes 0; a constant without axes
    below = b.node("Add", b.node("Relu", b.conv(x, 4, 4)), least)
    b.output(b.conv(b.node("Div", b.node("Relu", b.conv(x, 4, 4)), below), 4, 3))
    data = {"x": np.random.default_rng(0).normal(size=(8, 4, 5, 5)).astype(np.float32)}
    made = intact.quantize(b.build(), data, target="integer-pow2", method="minmax", preset="fast")
    assert made.findings
    verified = intact.verify(made, data)
    assert max(each.largest for each in verified.layers) <= 1
