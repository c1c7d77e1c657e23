"""What a target has to be able to say, each thing in a small file, as DESIGN lists them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from intact.config import Rounding
from intact.errors import TargetError
from intact.targets import (
    Addition,
    Arithmetic,
    ArithmeticOverride,
    DType,
    Exact,
    FixedPoint,
    FloatEnds,
    FloatInTurn,
    FloatOnce,
    FloatType,
    FoldedEnds,
    Granularity,
    Multiplier,
    OpRule,
    PairSaturate,
    Product,
    ScalePrecision,
    ScaleRule,
    Shift,
    Signature,
    Spacing,
    TargetArithmetic,
    Wrap,
)
from intact.targets.arithmetic import Requantization
from tests.targets.nodes import MINIMAL, WAY, constant, conv, node, target, value

X = [1, 4, 8, 8]


def test_data_types_per_operator_with_alternatives_best_first(tmp_path: Path) -> None:
    text = """
[[op]]
ops = ["Conv"]
inputs = ["int16", "int16"]
outputs = ["int32"]
alternatives = [{ inputs = ["int8", "int8"], outputs = ["int32"] }]
[[op]]
ops = ["GlobalAveragePool"]
quantize = false
reason = "described for float32 only"
"""
    made = target(tmp_path, text)
    rule = made.rule_for(conv())
    assert rule is not None
    assert rule.inputs == (DType.INT16, DType.INT16)
    assert rule.outputs == (DType.INT32,)
    assert rule.alternatives == (
        Signature(inputs=(DType.INT8, DType.INT8), outputs=(DType.INT32,)),
    )


def test_ranges_symmetry_rounding_spacing_and_granularity(tmp_path: Path) -> None:
    body = """
format = 2
name = "mine"
[activation]
dtype = "int8"
bits = 6
symmetric = true
power_of_two = true
rounding = "half_up"
[weight]
dtype = "int8"
symmetric = true
spacing = "exponential"
granularity = "per_channel"
[bias]
dtype = "int32"
quant_min = -536870911
quant_max = 536870911
[arithmetic]
requantize = { kind = "float_once", precision = "float64" }
"""
    made = target(tmp_path, body=body)
    assert (made.activation.bits, made.activation.quant_min, made.activation.quant_max) == (
        6,
        -32,
        31,
    )
    assert made.activation.rounding is Rounding.HALF_UP
    assert made.activation.power_of_two
    assert made.weight.spacing is Spacing.EXPONENTIAL
    assert (made.weight.quant_min, made.weight.quant_max) == (-127, 127)
    assert made.weight.granularity is Granularity.PER_CHANNEL
    assert made.bias.range() == (-536870911, 536870911)


@pytest.mark.parametrize("precision", list(ScalePrecision))
@pytest.mark.parametrize(
    "way",
    [
        Shift(),
        *(FixedPoint(product, multiplier_bits=8) for product in Product),
        FloatOnce(addition=Addition.FUSED_MULTIPLY_ADD, multiplier=Multiplier.FLOAT32_PRODUCT),
        FloatInTurn(precision=FloatType.FLOAT64, ratio_conversions=True),
        FloatEnds(folded_ends=FoldedEnds.PER_CHANNEL, fused_bias=True),
    ],
)
def test_requantization_and_stored_precision(
    way: Requantization, precision: ScalePrecision, tmp_path: Path
) -> None:
    options = {"kind": way.kind, **msgspec.to_builtins(way)}
    told = ", ".join(f"{key} = {json.dumps(each)}" for key, each in options.items() if each)
    body = MINIMAL.replace(WAY, f'{{ {told} }}\nscale_precision = "{precision}"')
    body = body.replace("symmetric", "power_of_two = true\nsymmetric")
    made = target(tmp_path, body=body).arithmetic
    assert (made.requantize, made.scale_precision) == (way, precision)


def test_arithmetic_of_single_operators(tmp_path: Path) -> None:
    text = """
rounding = "half_away_from_zero"
accumulator = { kind = "pair_saturate", bits = 24, pair_bits = 16, block = 4 }
[[arithmetic.overrides]]
ops = ["Add", "AveragePool"]
zero_point = "before_rounding"
accumulator = { kind = "wrap" }
[[arithmetic.overrides]]
ops = ["Add"]
rounding = "half_up"
accumulator = { kind = "exact", bits = 64 }
"""
    made = target(tmp_path, text)
    conv, pool, add = map(made.arithmetic_for, ("Conv", "AveragePool", "Add"))
    assert conv.accumulator == PairSaturate(bits=24, pair_bits=16, block=4)
    assert (conv.zero_point, conv.rounding) == ("after_rounding", "half_away_from_zero")
    assert (pool.accumulator, add.accumulator) == (Wrap(), Exact(64))
    assert (pool.zero_point, pool.rounding) == ("before_rounding", "half_away_from_zero")
    assert (add.zero_point, add.rounding) == ("before_rounding", "half_up")
    assert made.arithmetic.with_exact_sums().for_op("Conv", lambda _: True).accumulator == Exact(64)


def test_an_override_can_state_whatever_an_arithmetic_does() -> None:
    subject = {"ops", "when", "instructions"}
    fields = Arithmetic.__struct_fields__
    assert set(ArithmeticOverride.__struct_fields__) - subject == set(fields)
    assert set(TargetArithmetic.__struct_fields__) - {"overrides"} == set(fields)


def test_arithmetic_on_a_condition(tmp_path: Path) -> None:
    text = """
[[arithmetic.overrides]]
ops = ["MatMul"]
when = { weight_ranks = [2] }
requantize = { kind = "float_once", precision = "float64" }
"""
    made = target(tmp_path, text)
    dense = node("MatMul", value("x", [2, 3]), constant("w", [3, 4]))
    both = node("MatMul", value("x", [2, 3]), value("w", [3, 4]))
    assert made.arithmetic_of(dense).precision == "float64"
    assert made.arithmetic_of(both).precision == "float32"
    assert made.arithmetic_for("MatMul").precision == "float32"


def test_fusions(tmp_path: Path) -> None:
    text = """
[[fusion]]
pattern = [["Conv", "Gemm"], ["Add"], ["Relu", "Clip"]]
[[fusion]]
pattern = [["Sigmoid"], ["Mul"]]
shares_input = true
"""
    chain, swish = target(tmp_path, text).fusions
    assert chain.pattern == (("Conv", "Gemm"), ("Add",), ("Relu", "Clip"))
    assert swish.shares_input
    assert not chain.shares_input


@pytest.mark.parametrize(
    ("text", "slots", "weight"),
    [("'all'", {0, 1, 2}, True), ("'data'", {0, 1, 2}, False), ("[1]", {1}, True)],
)
def test_where_quantizers_sit(text: str, slots: set[int], weight: bool, tmp_path: Path) -> None:
    rule = target(tmp_path, f"[[op]]\nops = ['Add']\nquantize_inputs = {text}").rules[0]
    assert {slot for slot in range(3) if rule.quantizes_input(slot)} == slots
    assert rule.quantizes_weight is weight


@pytest.mark.parametrize("scales", list(ScaleRule))
def test_tied_scales(scales: ScaleRule, tmp_path: Path) -> None:
    text = f"[[op]]\nops = ['Concat']\nscales = '{scales}'\n[topology]\nin_place = true"
    assert target(tmp_path, text).rules[0].scales is scales


def test_fixed_scales(tmp_path: Path) -> None:
    text = """
[[op]]
ops = ["Softmax", "Sigmoid"]
activation = { dtype = "int8" }
fixed_output = { scale = 0.00390625, offset = -128 }
"""
    fixed = target(tmp_path, text).rules[0].fixed_output
    assert fixed is not None
    assert (fixed.scale, fixed.offset) == (1 / 256, -128)


def test_cost(tmp_path: Path) -> None:
    text = """
[[op]]
ops = ["Conv"]
when = { groups = "depthwise" }
cost = 0.5
[cost]
"Conv.uint8" = 1.0
"Conv.float32" = 3.3
"""
    made = target(tmp_path, text)
    assert made.cost_of("Conv", DType.UINT8) == 1.0
    assert made.cost_of("Conv", DType.FLOAT32) == 3.3
    assert made.cost_of("Gemm", DType.UINT8) == 1.0
    assert made.cost_of("Conv", DType.UINT8, made.rules[0]) == 0.5
    assert made.cost_of("Conv", DType.FLOAT32, made.rules[0]) == 3.3


# ---- rules of real runtimes ---------------------------------------------------------------------


def bits_of_weight(made: object, what: object) -> tuple[int, int]:
    rule = made.rule_for(what)  # type: ignore[attr-defined]
    scheme = made.weight_scheme(rule)  # type: ignore[attr-defined]
    return scheme.bits, scheme.quant_max


def test_ncnn_three_by_three_stride_one_has_six_bits(tmp_path: Path) -> None:
    body = """
format = 2
name = "ncnn-like"
[activation]
dtype = "int8"
quant_min = -127
symmetric = true
rounding = "half_away_from_zero"
[weight]
dtype = "int8"
quant_min = -127
symmetric = true
granularity = "per_channel"
[bias]
dtype = "float32"
[arithmetic]
requantize = { kind = "float_once" }
rounding = "half_away_from_zero"
[[op]]
ops = ["Conv", "Gemm"]
float_output = true
[[op]]
ops = ["Conv"]
when = { kernel_shape = [3, 3], groups = "one", attributes = { strides = 1, dilations = 1 } }
float_output = true
weight = { bits = 6 }
"""
    made = target(tmp_path, body=body)
    assert bits_of_weight(made, conv()) == (6, 31)
    assert bits_of_weight(made, conv(strides=[2, 2])) == (8, 127)
    assert bits_of_weight(made, conv((1, 1))) == (8, 127)
    assert bits_of_weight(made, conv(group=4)) == (8, 127)
    assert made.weight_scheme(made.rules[1]).quant_min == -31


def test_tengine_gives_scales_back_to_inputs_used_fewer_than_twice(tmp_path: Path) -> None:
    text = """
scale_precision = "decimal6"
[topology]
in_place = true
[[op]]
ops = ["MaxPool", "Relu", "Flatten", "Reshape", "Squeeze", "Clip", "Slice"]
scales = "input_follows_output"
max_consumers = 1
"""
    made = target(tmp_path, text)
    rule = made.rule_for(node("Relu", value("x", X)))
    assert rule is not None
    assert (rule.scales, rule.max_consumers) == (ScaleRule.INPUT_FOLLOWS_OUTPUT, 1)
    assert made.topology.in_place


def test_hago_overrides_grouped_convolution_and_additions_that_are_not_4d(tmp_path: Path) -> None:
    text = """
[[op]]
ops = ["Conv"]
[[op]]
ops = ["Conv"]
when = { groups = ["grouped", "depthwise"] }
quantize = false
reason = "grouped convolutions stay float"
[[op]]
ops = ["Add"]
quantize = false
reason = "only 4-D additions are integer"
[[op]]
ops = ["Add"]
when = { ranks = [4] }
scales = "unify_inputs"
"""
    made = target(tmp_path, text)

    def quantizes(what: object) -> bool:
        rule = made.rule_for(what)  # type: ignore[arg-type]
        return rule is not None and rule.quantize

    assert quantizes(conv())
    assert not quantizes(conv(group=2))
    assert not quantizes(conv(group=4))
    assert quantizes(node("Add", value("a", X), value("b", X)))
    assert not quantizes(node("Add", value("a", [1, 4]), value("b", [1, 4])))
    assert not quantizes(node("Add", value("a", None), value("b", None)))


def test_conditions_on_consumers_constants_and_weights(tmp_path: Path) -> None:
    text = """
[[op]]
ops = ["Relu"]
when = { max_consumers = 1 }
[[op]]
ops = ["Add"]
when = { constant_input = false }
[[op]]
ops = ["MatMul"]
when = { weight_ranks = [2] }
"""
    made = target(tmp_path, text)
    assert made.rule_for(node("Relu", value("x", X))) is made.rules[0]
    assert made.rule_for(node("Relu", value("x", X), consumers=2)) is None
    assert made.rule_for(node("Add", value("a", X), constant("b", [1]))) is None
    matmul = [value("x", [2, 4]), constant("w", [4, 4])]
    assert made.rule_for(node("MatMul", *matmul)) is made.rules[2]
    assert made.rule_for(node("MatMul", value("x", [2, 4]), value("w", [4, 4]))) is None


# ---- schemes at other widths --------------------------------------------------------------------


def test_range_for_another_width(tmp_path: Path) -> None:
    made = target(tmp_path)
    narrow = target(tmp_path, body=MINIMAL.replace("= true", "= true\nquant_min = -127")).weight
    assert made.weight.range_for() == (-128, 127)
    assert made.weight.range_for(4) == (-8, 7)
    assert made.weight.range_for(16) == (-32768, 32767)
    assert narrow.range_for(4) == (-7, 7)
    assert narrow.range_for(8) == (-127, 127)
    assert made.activation.range_for(4) == (0, 15)
    for bits in (1, 33, 0, -8):
        with pytest.raises(TargetError, match=f"cannot have {bits} bits"):
            made.weight.range_for(bits)
    weights_only = MINIMAL.replace('"uint8"\nsymmetric = false', '"float32"')
    with pytest.raises(TargetError, match="a float tensor cannot have 8 bits"):
        target(tmp_path, body=weights_only).activation.range_for(8)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("{ bits = 4 }", (4, -7, 7)),
        ("{ dtype = 'int16' }", (16, -32767, 32767)),
        ("{ dtype = 'uint8' }", (8, 0, 255)),
        ("{ quant_max = 100 }", (8, -127, 100)),
        ("{ bits = 7, quant_min = -64 }", (7, -64, 63)),
    ],
)
def test_overridden_schemes(override: str, expected: tuple[int, int, int], tmp_path: Path) -> None:
    body = MINIMAL.replace("= true", "= true\nquant_min = -127")
    made = target(tmp_path, f"[[op]]\nops = ['Conv']\nweight = {override}", body=body)
    scheme = made.weight_scheme(made.rules[0])
    assert (scheme.bits, scheme.quant_min, scheme.quant_max) == expected
    assert made.activation_scheme(made.rules[0]) is made.activation


def test_float_override(tmp_path: Path) -> None:
    made = target(tmp_path, "[[op]]\nops = ['Conv']\nweight = { dtype = 'float32' }")
    assert made.weight_scheme(made.rules[0]).is_float


def test_targets_are_frozen(tmp_path: Path) -> None:
    made = target(tmp_path, "[[op]]\nops = ['Conv']")
    with pytest.raises(AttributeError):
        made.name = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        made.rules[0].cost = 1.0  # type: ignore[misc]
    assert OpRule(ops=("Conv",)) == made.rules[0]
