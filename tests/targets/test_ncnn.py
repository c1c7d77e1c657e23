"""What the targets of ncnn say about nodes; their arithmetic is held against ncnn in
tests/deployment/test_ncnn.py."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

from intact.plan import TensorEnd
from intact.targets import load_target
from tests.models import MODELS, ModelBuilder
from tests.plans import floats, planned
from tests.targets.nodes import conv


def window(groups: int = 1, kernel: int = 3, **attributes: Any) -> ir.Node:
    """A convolution of 8 channels."""
    return conv((kernel, kernel), channels=8, group=groups, **attributes)


@pytest.mark.parametrize(
    ("node", "fused"),
    [
        (window(), True),
        (window(kernel=1), True),
        (window(groups=8), True),
        (window(groups=8, strides=[2, 2]), True),
        (window(groups=8, strides=[2, 1]), False),
        (window(groups=8, strides=[3, 3]), False),
        (window(groups=8, dilations=[2, 2]), False),
        (window(groups=8, kernel=5), False),
    ],
)
def test_which_kernels_add_the_bias_with_one_rounding(node: ir.Node, fused: bool) -> None:
    assert load_target("ncnn").arithmetic_of(node).fuses_bias is fused
    assert load_target("ncnn-winograd").arithmetic_of(node).fuses_bias is fused


def test_only_inputs_and_weights_of_products_have_codes() -> None:
    plan = planned(MODELS["residual"].build(17), "ncnn")
    quantized = {str(end) for end, config in plan.configs.items() if config.quant_max in (127, 31)}
    products = [node for node in plan.graph.nodes if node.op_type in ("Conv", "Gemm")]
    expected = {str(TensorEnd.input(str(n.name), slot)) for n in products for slot in (0, 1)}
    assert quantized == expected


def test_a_convolution_hands_out_floats_to_another() -> None:
    b = ModelBuilder()
    b.output(b.conv(b.conv(b.input("x", ["batch", 3, 4, 4]), 3, 4), 4, 4))
    plan = planned(b.build(), "ncnn")
    first = plan.graph.nodes[0]
    assert plan.output_config(first).state.name == "FP32"
    assert plan.input_config(plan.graph.nodes[1], 0).state.name == "INITIAL"


def test_grouped_convolutions_stay_float() -> None:
    b = ModelBuilder()
    b.output(b.conv(b.input("x", ["batch", 4, 4, 4]), 4, 4, group=2))
    assert floats("go wrong with its default options", planned(b.build(), "ncnn"))
    assert floats("go wrong with its default options", planned(b.build(), "ncnn-winograd"))


@pytest.mark.parametrize(
    ("attributes", "bits"),
    [
        ({}, 6),
        ({"strides": [2, 2]}, 8),
        ({"kernel": 1}, 8),
        ({"groups": 8}, 8),
        ({"dilations": [2, 2]}, 8),
    ],
)
def test_winograd_takes_six_bits(attributes: dict[str, Any], bits: int) -> None:
    target = load_target("ncnn-winograd")
    rule = target.rule_for(window(**attributes))
    assert rule is not None
    scheme = target.weight_scheme(rule)
    assert (scheme.bits, scheme.quant_max) == (bits, 31 if bits == 6 else 127)
    plain = load_target("ncnn").rule_for(window(**attributes))
    assert plain is not None
    assert load_target("ncnn").weight_scheme(plain).bits == 8
