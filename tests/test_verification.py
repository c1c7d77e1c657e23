from __future__ import annotations

import numpy as np
import pytest

import intact
from intact.formats.onnx_qdq.write import write_qdq
from intact.result import Result
from intact.verification import verify_qdq
from tests.images import Images
from tests.models import ModelBuilder


@pytest.fixture(scope="module")
def digits(digits_model: object, digits_calib: Images) -> Result:
    return intact.quantize(digits_model, {"image": digits_calib.image})  # type: ignore[arg-type]


def test_layers_agree_and_are_all_compared(digits: Result, digits_test: Images) -> None:
    found = intact.verify(digits, {"image": digits_test.image}, samples=48)
    assert found.samples == 48
    assert found.runtime.startswith("ONNX Runtime 1.")
    assert found.cpu.instruction_set
    assert len(found.layers) == len(found.end_to_end) > 5
    values = sum(layer.values for layer in found.layers)
    assert sum(layer.mismatches for layer in found.layers) <= max(2, 1e-4 * values)
    assert max(layer.largest for layer in found.layers) <= 1
    assert found.float_nodes == {}


def test_without_data_inputs_are_drawn_from_the_statistics(digits: Result) -> None:
    first, second = intact.verify(digits), intact.verify(digits)
    assert first.samples == 64
    assert first.layers == second.layers
    assert max(layer.largest for layer in first.layers) <= 1


def test_a_model_that_is_not_the_plans_is_found_out(digits: Result, digits_test: Images) -> None:
    plan = digits.plan.copy()
    roots = [c for c in plan.configs.values() if c.dominator is c and c.bits == 8 and c.params]
    for config in roots:
        assert config.scale is not None
        if config.scale.ndim == 0:
            config.set_params(config.scale * np.float32(1.1), config.offset)
            break
    exported = write_qdq(digits.plan)
    found = verify_qdq(plan, exported, [{"image": digits_test.image[:8]}])
    assert sum(layer.mismatches for layer in found.layers) > 100


def test_one_bad_layer_is_one_bad_layer_when_teacher_forced(
    digits: Result, digits_test: Images
) -> None:
    plan = digits.plan.copy()
    weight = next(c for c in plan.configs.values() if c.granularity.axis is not None and c.params)
    assert weight.scale is not None
    weight.set_params(weight.scale * np.float32(1.5), weight.offset)
    found = verify_qdq(plan, write_qdq(digits.plan), [{"image": digits_test.image[:8]}])
    wrong = [layer.end for layer in found.layers if layer.mismatches > 0.01 * layer.values]
    wrong_end_to_end = [x.end for x in found.end_to_end if x.mismatches > 0.01 * x.values]
    assert len(wrong) == 1
    assert len(wrong_end_to_end) > len(wrong)


def test_outputs_without_a_sample_axis_are_compared_too() -> None:
    b = ModelBuilder()
    x = b.node("Relu", b.conv(b.input("image", ["batch", 3, 8, 8]), 3, 8))
    b.node("ReduceMean", b.conv(x, 8, 4), out="mean", keepdims=0)
    b.output("mean", [])
    data = {"image": np.random.default_rng(0).normal(size=(10, 3, 8, 8)).astype(np.float32)}
    result = intact.quantize(b.build(), data)
    assert intact.verify(result, data).outputs_sqnr_db["mean"] > 20
    assert intact.evaluate(result, data).samples == 10
