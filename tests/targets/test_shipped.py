"""The shipped targets, resolved, against one golden file each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from intact.targets import (
    DType,
    PairSaturate,
    ScaleRule,
    Shift,
    load_target,
    target_from_json,
    target_to_json,
)
from tests.targets.nodes import constant, conv, node, value

GOLDEN = Path(__file__).parent / "golden"
SHIPPED = (
    "arm",
    "cuda",
    "ethos-u",
    "ethos-u85",
    "integer-pow2",
    "ncnn",
    "ncnn-winograd",
    "nnie",
    "onnxruntime",
    "onnxruntime-avx2",
    "openvino",
    "openvino-avx2",
    "openvino-mqbench",
    "qualcomm-htp",
    "qualcomm-htp-16",
    "tengine",
    "tengine-tool",
    "tengine-u8",
    "tensorrt",
    "tflite",
    "tflite-16x8",
    "tflite-micro",
    "tflite-xnnpack",
    "tvm",
    "vta",
    "x86",
)
UPDATE = "INTACT_UPDATE_GOLDEN"
X = [1, 4, 8, 8]


@pytest.mark.parametrize("name", SHIPPED)
def test_golden(name: str) -> None:
    """After a wanted change run the test with INTACT_UPDATE_GOLDEN=1 and review the difference."""
    path = GOLDEN / f"{name}.json"
    resolved = target_to_json(load_target(name))
    text = json.dumps(resolved, indent=1) + "\n"
    if os.environ.get(UPDATE):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text
    assert target_from_json(json.loads(text)) == load_target(name)


def test_every_shipped_target_has_a_golden_file() -> None:
    folder = Path(load_target.__code__.co_filename).parent
    shipped = sorted(path.stem for path in folder.glob("*.toml"))
    assert shipped == list(SHIPPED) == sorted(path.stem for path in GOLDEN.glob("*.json"))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_target_says_what_it_is(name: str) -> None:
    target = load_target(name)
    assert target.name == name
    assert target.description
    assert target.sources
    assert target.formats


@pytest.mark.parametrize("name", SHIPPED)
def test_sums_of_common_layers_do_not_wrap(name: str) -> None:
    """None is known to have accumulators too narrow for the codes that it multiplies."""
    target = load_target(name)
    largest = (1 << target.activation.dtype.bits) * (1 << target.weight.dtype.bits - 1)
    assert largest << 14 <= 1 << target.arithmetic_for("MatMul").accumulator.bits - 1


def test_onnxruntime() -> None:
    target = load_target("onnxruntime")
    assert (target.activation.dtype, target.weight.dtype) == (DType.UINT8, DType.INT8)
    assert (target.weight.quant_min, target.weight.quant_max) == (-127, 127)
    assert target.arithmetic_for("Conv").zero_point == "after_rounding"
    assert target.arithmetic_for("Add").zero_point == "before_rounding"
    assert target.arithmetic_for("GlobalAveragePool").zero_point == "after_rounding"
    gemm = target.rule_for(node("Gemm", value("x", [1, 4]), value("w", [4, 4])))
    assert gemm is not None
    assert gemm.float_output
    assert not gemm.float
    for op_type in ("Softmax", "ConvTranspose", "Pad"):
        rule = target.rule_for(node(op_type, value("x", X), value("w", X)))
        assert rule is not None
        assert not rule.quantize
        assert rule.reason
    for op_type in ("Tanh", "Sub", "Div", "ReduceMean"):
        assert target.rule_for(node(op_type, value("x", X))) is None


def test_onnxruntime_moves_values_on_their_own_scale() -> None:
    target = load_target("onnxruntime")
    for op_type in ("Reshape", "Transpose", "MaxPool", "ReduceMax", "Resize"):
        rule = target.rule_for(node(op_type, value("x", X)))
        assert rule is not None
        assert rule.scales is ScaleRule.OUTPUT_FOLLOWS_INPUT
        assert rule.float
    assert target.rule_for(node("Resize", value("x", X), mode="linear")) is None


def test_avx2_weights_cannot_saturate_a_pair() -> None:
    target = load_target("onnxruntime-avx2")
    arithmetic = target.arithmetic_for("Conv")
    assert arithmetic.pairs == PairSaturate(pair_bits=16, rows=True)
    limits = np.iinfo(np.int16)
    most = 2 * target.activation.quant_max * target.weight.quant_max
    least = 2 * target.activation.quant_max * target.weight.quant_min
    assert limits.min <= least < most <= limits.max
    # ... which the unrestricted weights of its base could.
    base = load_target("onnxruntime")
    assert 2 * base.activation.quant_max * base.weight.quant_max > limits.max
    assert target.rules == base.rules
    assert target.fusions == base.fusions


def test_tensorrt() -> None:
    target = load_target("tensorrt")
    assert target.activation.symmetric
    assert (target.activation.quant_min, target.weight.quant_min) == (-128, -127)
    assert target.bias.dtype is DType.FLOAT32
    assert (("Conv",), ("Add",)) in [fusion.pattern for fusion in target.fusions]
    assert target.formats == ("tensorrt", "onnx_qdq")
    assert target.runtime_version == "8.6.1"
    up = target.rule_for(node("ConvTranspose", value("x", X), value("w", X)))
    assert up is not None
    assert target.weight_scheme(up).granularity == "per_tensor"
    bias = target.rule_for(node("Add", value("x", X), constant("b", [4])))
    residual = target.rule_for(node("Add", value("x", X), value("y", X)))
    assert bias is not None
    assert residual is not None
    assert (bias.quantize, residual.quantize) == (False, True)


def test_integer_pow2_is_integer_throughout() -> None:
    target = load_target("integer-pow2")
    assert target.arithmetic.requantize == Shift()
    assert target.activation.power_of_two
    assert target.weight.power_of_two
    assert not any(rule.float or rule.float_output for rule in target.rules)
    assert not target.topology.prune_without_consumer
    add = target.rule_for(node("Add", value("a", X), value("b", X)))
    concat = target.rule_for(node("Concat", value("a", X), value("b", X), axis=1))
    assert add is not None
    assert concat is not None
    assert add.scales is ScaleRule.UNIFY_INPUTS
    assert concat.scales is ScaleRule.UNIFY_ALL
    assert target.rule_for(conv()) is not None


@pytest.mark.parametrize("name", ["x86", "arm", "cuda"])
def test_processors_through_tvm_multiply_int8_by_channel(name: str) -> None:
    target, tvm = load_target(name), load_target("tvm")
    assert target.arithmetic == tvm.arithmetic
    assert target.rules == tvm.rules
    assert (target.weight.granularity, tvm.weight.granularity) == ("per_channel", "per_tensor")
    rule = target.rule_for(conv())
    assert rule is not None
    assert (rule.inputs, rule.alternatives) == ((DType.INT8, DType.INT8), ())
    assert target.cost_of("Conv", DType.FLOAT32) > target.cost_of("Conv", DType.INT8, rule) == 1


def test_vta_leaves_to_the_cpu_what_its_alu_cannot() -> None:
    target = load_target("vta")
    assert target.arithmetic == load_target("integer-pow2").arithmetic
    for quantized in (
        node("Add", value("x", X), value("y", X)),
        node("GlobalAveragePool", value("x", X)),
        node("MatMul", value("x", [4, 8]), constant("w", [8, 4])),
        conv(),
    ):
        rule = target.rule_for(quantized)
        assert rule is not None
        assert rule.quantize
    for floating in (
        node("Add", value("x", [1, 4]), value("y", [1, 4])),
        node("Mul", value("x", X), value("y", X)),
        node("GlobalAveragePool", value("x", [1, 4, 7, 7])),
        node("MatMul", value("x", [1, 4]), value("y", [4, 4])),
        node("Softmax", value("x", [1, 4])),
        conv(group=2),
        conv(group=4),
    ):
        rule = target.rule_for(floating)
        assert rule is not None
        assert not rule.quantize
        assert rule.reason
