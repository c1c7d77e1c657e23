"""Every contradiction is refused with file, key and remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from intact.errors import TargetError
from tests.targets.nodes import MINIMAL, target

OP = "[[op]]\nops = ['Conv']\n"
ADD = "[[op]]\nops = ['Add']\n"


@pytest.mark.parametrize(
    ("table", "keys", "message"),
    [
        ("weight", "bits = 9", "[weight] bits is 9, but dtype is int8; use 2 to 8 bits or"),
        ("weight", "bits = 1", "[weight] bits is 1"),
        ("weight", "bits = -3", "[weight] bits is -3"),
        ("weight", "quant_min = 5\nquant_max = 5", "quant_min 5 is not below quant_max 5"),
        ("weight", "quant_min = 6\nquant_max = 5", "quant_min 6 is not below quant_max 5"),
        ("weight", "quant_max = 128", "[weight] range -128..128 does not fit 8 bits of int8"),
        ("weight", "bits = 4\nquant_min = -9", "does not fit 4 bits of int8; stay within -8..7"),
        ("activation", "quant_min = -1", "range -1..255 does not fit 8 bits of uint8"),
        ("weight", "quant_min = 1", "[weight] symmetric is true, but 1..127 does not contain 0"),
        ("weight", "quant_max = 0", "symmetric is true, but -128..0 does not contain 0"),
        ("activation", "granularity = 'per_channel'", "granularity is per_channel, but an act"),
        (
            "activation",
            "spacing = 'exponential'",
            "'exponential', which does not support",
        ),
        ("weight", "spacing = 'exponential'\npower_of_two = true", "needs linear levels"),
        ("weight", "spacing = 'exponential'\nquant_min = -100", "-100..127 is not symmetric"),
        (
            "arithmetic",
            "accumulator = 32",
            "is of type integer; give { kind = ... }, where kind is",
        ),
        (
            "arithmetic",
            "accumulator = { bits = 32 }",
            "key 'kind' is missing in [arithmetic.accumulator]; add it: 'exact', 'wrap' or 'pair_",
        ),
        (
            "arithmetic",
            "accumulator = { kind = 'wrapp' }",
            "[arithmetic.accumulator] kind is 'wrapp'; did you mean 'wrap'?",
        ),
        (
            "arithmetic",
            "accumulator = { kind = 'wrap', bits = 7 }",
            "[arithmetic.accumulator] bits is 7; give 8 or more",
        ),
        (
            "arithmetic",
            "accumulator = { kind = 'wrap', bits = 65 }",
            "[arithmetic.accumulator] bits is 65; give 64 or less",
        ),
        (
            "arithmetic",
            "accumulator = { kind = 'pair_saturate' }",
            "key 'pair_bits' is missing in [arithmetic.accumulator]",
        ),
        (
            "arithmetic",
            "accumulator = { kind = 'pair_saturate', pair_bits = 32 }",
            "[arithmetic] accumulator: pair_bits is 32, bits is 32; pairs saturate in fewer",
        ),
        (
            "arithmetic",
            "accumulator = { kind = 'wrap', block = 4 }",
            "unknown key 'block' in [arithmetic.accumulator]; it is one of kind 'pair_saturate'",
        ),
        (
            "arithmetic",
            "scale_precision = 'float32_product'",
            "scale_precision is 'float32_product'; did you mean 'float32'?",
        ),
        *(
            ("arithmetic", f"overrides = [{{ ops = ['Add'], requantize = {way} }}]", message)
            for way, message in (
                (
                    "{ kind = 'shift', fused_bias = true }",
                    "unknown key 'fused_bias' in [[arithmetic.overrides]] for Add, requantize; it "
                    "is one of kind 'float_once', 'float_in_turn' or 'float_ends'",
                ),
                (
                    "{ kind = 'float_once', folded_factor = true }",
                    "requantize; it is one of kind 'float_ends'",
                ),
                (
                    "{ kind = 'float_ends', ratio_conversions = true }",
                    "requantize; it is one of kind 'float_once' or 'float_in_turn'",
                ),
                (
                    "{ kind = 'float_once', fused_bais = true }",
                    "unknown key 'fused_bais' in [[arithmetic.overrides]] for Add, requantize; did "
                    "you mean 'fused_bias'?",
                ),
                (
                    "{ kind = 'fixed_point', product = 'single', multiplier_bits = 0 }",
                    "for Add, requantize multiplier_bits is 0; give 1 or more",
                ),
                (
                    "{ kind = 'fixed_point', product = 'doubel' }",
                    "for Add, requantize product is 'doubel'; did you mean 'double'?",
                ),
                (
                    "{ kind = 'fixed_point', product = 'double', addition_shift = -1 }",
                    "for Add, requantize addition_shift is -1; give 0 or more",
                ),
                (
                    "{ kind='float_once', precision='float64', addition='fused_multiply_add' }",
                    "overrides for Add requantize: addition is 'fused_multiply_add', which is",
                ),
                (
                    "{ kind = 'float_ends' }, reciprocal_scale = true",
                    "overrides for Add reciprocal_scale does not apply to requantize of kind",
                ),
            )
        ),
        (
            "arithmetic",
            "overrides = [{ ops = ['Add'], instructions = ['AVX2'] }]",
            "[arithmetic] overrides for Add changes nothing",
        ),
        (
            "arithmetic",
            "overrides = [{ ops = ['Add'] }]",
            "[arithmetic] overrides for Add changes nothing",
        ),
        (
            "arithmetic",
            "overrides = [{ ops = ['Adda'], rounding = 'up' }]",
            "unknown operator 'Adda'; did you mean 'Add'?",
        ),
    ],
)
def test_tables(table: str, keys: str, message: str, tmp_path: Path) -> None:
    body = MINIMAL.replace(f"[{table}]\n", f"[{table}]\n{keys}\n")
    with pytest.raises(TargetError, match=re.escape(message)) as caught:
        target(tmp_path, body=body)
    assert str(caught.value).startswith(str(tmp_path / "mine.toml") + ": ")
    assert ";" in str(caught.value)


def test_shift_needs_powers_of_two(tmp_path: Path) -> None:
    body = MINIMAL.replace('"float_once"', '"shift"')
    with pytest.raises(TargetError, match=r"set power_of_two = true in .activation. and"):
        target(tmp_path, body=body)
    both = body.replace("symmetric", "power_of_two = true\nsymmetric")
    assert target(tmp_path, body=both).weight.power_of_two


@pytest.mark.parametrize(
    "key",
    ["bits = 32", "quant_min = 0", "symmetric = true", "power_of_two = false", "rounding = 'up'"],
)
def test_float_schemes_say_nothing_about_integers(key: str, tmp_path: Path) -> None:
    body = MINIMAL.replace('"uint8"\nsymmetric = false', f'"float32"\n{key}')
    with pytest.raises(
        TargetError, match=f"{key.split(maxsplit=1)[0]} is given, but dtype is float32"
    ):
        target(tmp_path, body=body)


def test_zero_point_rule_of_float_activations(tmp_path: Path) -> None:
    weights_only = MINIMAL.replace('"uint8"\nsymmetric = false', '"float32"')
    assert target(tmp_path, body=weights_only).activation.is_float
    with pytest.raises(TargetError, match="zero_point is given, but activations are float32"):
        target(tmp_path, 'zero_point = "before_rounding"', body=weights_only)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("[bias]\ndtype = 'float32'\nquant_max = 3", "[bias] quant_max is given, but dtype is"),
        (
            "[bias]\ndtype = 'float32'\ndead_channels = 'zero'",
            "[bias] dead_channels is zero, but dtype is float32; remove dead_channels",
        ),
        ("[bias]\ndtype = 'uint8'", "[bias] dtype is uint8; use int64, int32, int16"),
        ("[bias]\nquant_max = 4294967296", "[bias] range -2147483648..4294967296 is impossible"),
        ("[bias]\nquant_min = 0", "[bias] range 0..2147483647 is impossible"),
        ("[[op]]\nops = []", "no operator is listed; list ONNX op types"),
        ("[[op]]\nops = ['Convv']", "unknown operator 'Convv'; did you mean 'Conv'?"),
        ("[[op]]\nops = ['Add', 'Add']", "[[op]] for Add, Add: Add is listed twice"),
        (OP + OP, "[[op]] for Conv: defined twice; merge the entries"),
        (OP + "quantize = false", "quantize is false without reason; add reason"),
        (OP + "quantize = false\nreason = ' '", "quantize is false without reason"),
        (
            OP + "quantize = false\nreason = 'r'\nscales = 'unify_all'",
            "scales has no effect where quantize is false; remove scales",
        ),
        (
            "[[op]]\nops = ['Conv']\nquantize = false\nreason = 'r'\nweights_only = true",
            "weights_only has no effect on Conv; it is for GRU, LSTM, RNN, Gather",
        ),
        (
            "[[op]]\nops = ['LSTM']\nweights_only = true",
            "weights_only is true, but quantize too; add quantize = false and a reason",
        ),
        (
            "[[op]]\nops = ['LSTM']\nquantize = false\nreason = 'r'\nweights_only = true\n"
            "weight = { bits = 9 }",
            "[[op]] for LSTM, weight bits is 9, but dtype is int8",
        ),
        (OP + "weight = { bits = 9 }", "[[op]] for Conv, weight bits is 9, but dtype is int8"),
        (OP + "activation = { granularity = 'per_channel' }", "Conv, activation granularity is"),
        (OP + "weight = { dtype = 'float32', bits = 8 }", "has keys for integers, but dtype is fl"),
        (OP + "when = { right_zero_point = 0 }", "when has right_zero_point, but there are no"),
        (OP + "max_consumers = 1", "max_consumers has no effect without an in-place tie"),
        (OP + "quantize_inputs = [0, -1]", "quantize_inputs lists -1; count slots from 0"),
        (OP + "quantize_inputs = 'residual'", "quantize_inputs is 'residual'"),
        (OP + "cost = -1", "cost is -1.0; give 0 or more"),
        (OP + "cost = nan", "cost is nan"),
        (OP + "fixed_output = { scale = 0.0 }", "fixed_output.scale is 0.0; give a positive"),
        (OP + "fixed_output = { scale = inf }", "fixed_output.scale is inf"),
        (OP + "fixed_output = { scale = 1.0, offset = 256 }", "offset is 256; use 0 to 255"),
        (
            OP + "activation = { symmetric = true }\nfixed_output = { scale = 1.0, offset = 3 }",
            "fixed_output.offset is 3, but activations are symmetric",
        ),
        (
            OP + "activation = { power_of_two = true }\nfixed_output = { scale = 0.3 }",
            "fixed_output.scale 0.3 is not a power of two",
        ),
        (
            OP + "fixed_output = { scale = 1.0 }\nscales = 'output_follows_input'",
            "the output is both fixed and tied by scales = 'output_follows_input'",
        ),
        (ADD + "scales = 'input_follows_output'", "has no effect; set in_place = true"),
        ("[[fusion]]\npattern = [['Conv']]", "[[fusion]] number 1: pattern has 1 step;"),
        ("[[fusion]]\npattern = []", "[[fusion]] number 1: pattern has 0 steps;"),
        ("[[fusion]]\npattern = [['Conv'], []]", "number 1 pattern: no operator is listed"),
        (
            "[[fusion]]\npattern = [['Conv'], ['ReLU']]",
            "operator 'ReLU'; did you mean 'Relu'",
        ),
        ("[calibration]\nmethod = 'mes'", "[calibration] method is 'mes'; did you mean 'mse'?"),
        ("[calibration]\nfallback = 'x'", "[calibration] fallback is 'x'; known: aciq"),
        ("[calibration]\nweight_method = 'kl'", "weight_method is 'kl'; known: max_range, minmax"),
        (
            "[calibration]\nmethod = 'kl'\nfallback = 'aciq'",
            "fallback 'aciq' is not defined for asymmetric activations; use 'minmax'",
        ),
        (
            "[calibration]\nmethod = 'percentile'\noptions = { percentle = 99.0 }",
            "'percentile' has no option 'percentle'; did you mean 'percentile'?",
        ),
        (
            "[calibration]\nmethod = 'percentile'\noptions = { percentile = nan }",
            "[calibration.options] percentile is nan; give a finite number",
        ),
        ("[cost]\n'Covn.int8' = 1", "[cost] names operator 'Covn'; did you mean 'Conv'?"),
        ("[cost]\nConv = 1", "[cost] 'Conv' does not end in a data type; write \"Conv.uint8\""),
        ("[cost]\n'Conv.int9' = 1", "does not end in a data type"),
        ("[cost]\n'Conv.int8' = -1", "[cost] 'Conv.int8' is -1.0; give 0 or more"),
        (
            "[cost]\nConv.int8 = 1",
            "[cost] Conv is a table, because an unquoted dot starts one",
        ),
    ],
)
def test_rules_and_other_tables(extra: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=re.escape(message)) as caught:
        target(tmp_path, extra)
    assert str(caught.value).startswith(str(tmp_path / "mine.toml") + ": ")
    assert ";" in str(caught.value)


def test_the_minimal_target_is_enough(tmp_path: Path) -> None:
    made = target(tmp_path)
    assert (made.activation.quant_min, made.activation.quant_max) == (0, 255)
    assert (made.weight.quant_min, made.weight.quant_max, made.weight.bits) == (-128, 127, 8)
    assert made.bias.range() == (-(2**31), 2**31 - 1)
    assert made.rules == ()


@pytest.mark.parametrize(
    ("key", "rule", "message"),
    [
        (
            'expand = ["BatchNorm"]',
            "",
            "expand names 'BatchNorm'; did you mean 'BatchNormalization'?",
        ),
        (
            'expand = ["BatchNormalization"]',
            '[[op]]\nops = ["BatchNormalization"]\n',
            "expand names BatchNormalization, which an [[op]] computes with integers; leave it out",
        ),
    ],
)
def test_what_is_expanded(key: str, rule: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=re.escape(message)):
        target(tmp_path, rule, body=f"{key}\n{MINIMAL}")
