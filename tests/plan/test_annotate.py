"""The config that each end starts with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from intact.config import PerChannel, PerTensor, QuantState
from intact.errors import UsageError
from intact.graph import normalize
from intact.plan import Overrides, annotate
from tests.models import ModelBuilder
from tests.plans import HEADER, config, own_target, planned

CONV = '[[op]]\nops = ["Conv", "Gemm", "MatMul", "ConvTranspose"]\n'


def conv() -> ModelBuilder:
    b = ModelBuilder()
    x = b.input("x", ["batch", 4, 8, 8])
    b.node("Conv", x, b.weight(6, 4, 1, 1), b.weight(6), out="y", name="conv")
    b.output("y")
    return b


def test_a_convolution(tmp_path: Path) -> None:
    plan = planned(conv().build(), own_target(tmp_path, CONV))
    data, weight, bias, output = (
        config(plan, f"conv.{end}") for end in ("input[0]", "input[1]", "input[2]", "output[0]")
    )
    assert (data.quant_min, data.quant_max, data.granularity) == (0, 255, PerTensor())
    assert (weight.quant_min, weight.quant_max, weight.granularity) == (-127, 127, PerChannel(0))
    assert (bias.bits, bias.granularity) == (32, PerChannel(0))
    states = [each.state for each in (data, weight, bias, output)]
    initial = QuantState.INITIAL
    assert states == [initial, initial, QuantState.PASSIVE_INIT, initial]


def test_a_bias_has_one_scale_where_the_weight_has_one(tmp_path: Path) -> None:
    header = HEADER.replace('granularity = "per_channel"', "")
    plan = planned(conv().build(), own_target(tmp_path, CONV, header=header))
    assert config(plan, "conv.input[2]").granularity == PerTensor()


@pytest.mark.parametrize(
    "rules",
    [
        'quantize_inputs = "data"',
        "quantize_inputs = [1]",
        "quantize_inputs = [0]",
        'activation = { dtype = "float32" }',
        'weight = { dtype = "float32" }',
    ],
)
def test_a_bias_stays_float_unless_all_that_it_is_added_to_is_integer(
    tmp_path: Path, rules: str
) -> None:
    plan = planned(conv().build(), own_target(tmp_path, CONV + rules))
    assert config(plan, "conv.input[2]").state is QuantState.FP32


def test_a_target_that_adds_floats(tmp_path: Path) -> None:
    header = HEADER.replace("[arithmetic]", '[bias]\ndtype = "float32"\n[arithmetic]')
    plan = planned(conv().build(), own_target(tmp_path, CONV, header=header))
    assert config(plan, "conv.input[2]").state is QuantState.FP32


def test_only_the_listed_inputs_have_quantizers(tmp_path: Path) -> None:
    plan = planned(conv().build(), own_target(tmp_path, CONV + "quantize_inputs = [1]"))
    assert config(plan, "conv.input[0]").state is QuantState.FP32
    assert config(plan, "conv.input[1]").state is QuantState.INITIAL


def test_weights_only(tmp_path: Path) -> None:
    rules = CONV + 'activation = { dtype = "float32" }\nfloat_output = true'
    plan = planned(conv().build(), own_target(tmp_path, rules))
    states = {str(end): each.state for end, each in plan.configs.items()}
    assert states == {
        "conv.input[0]": QuantState.FP32,
        "conv.input[1]": QuantState.INITIAL,
        "conv.input[2]": QuantState.FP32,
        "conv.output[0]": QuantState.FP32,
    }


@pytest.mark.parametrize("shape", [[5], [1, 5], [1]])
def test_biases_of_a_gemm(tmp_path: Path, shape: list[int]) -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 3])
    b.node("Gemm", x, b.weight(3, 5), b.weight(*shape), out="y", name="gemm")
    b.output("y")
    plan = planned(b.build(), own_target(tmp_path, CONV))
    assert config(plan, "gemm.input[2]").granularity == PerChannel(0)
    assert config(plan, "gemm.input[2]").state is QuantState.PASSIVE_INIT


def test_a_weight_on_the_left_has_one_scale(tmp_path: Path) -> None:
    """Its channels are the rows of the product, and the bias runs along the columns."""
    b = ModelBuilder()
    x = b.input("x", [3, 5])
    b.node("Gemm", b.weight(4, 3), x, b.weight(5), out="y", name="gemm")
    b.output("y")
    plan = planned(b.build(), own_target(tmp_path, CONV))
    assert config(plan, "gemm.input[0]").granularity == PerTensor()
    assert config(plan, "gemm.input[2]").granularity == PerTensor()
    assert config(plan, "gemm.input[2]").state is QuantState.PASSIVE_INIT


def test_a_computed_bias_stays_float(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 4, 8, 8])
    b.node("Conv", x, b.weight(6, 4, 1, 1), b.input("shift", [6]), out="y", name="conv")
    b.output("y")
    adds_floats = own_target(tmp_path, CONV, header=HEADER + '[bias]\ndtype = "float32"\n')
    plan = planned(b.build(), adds_floats)
    assert plan.decisions["conv"].quantized
    assert config(plan, "conv.input[2]").state is QuantState.FP32


FIXED = '[[op]]\nops = ["Sigmoid"]\nfixed_output = { scale = 0.00390625, offset = 0 }\n'


def sigmoid() -> ModelBuilder:
    b = ModelBuilder()
    b.node("Sigmoid", b.input("x", ["batch", 4]), out="y", name="s")
    b.output("y")
    return b


def test_a_prescribed_output_has_its_scale_from_the_start(tmp_path: Path) -> None:
    overrides = Overrides(activation_bits=4)
    for asked in (None, overrides):
        output = config(
            planned(sigmoid().build(), own_target(tmp_path, FIXED), asked), "s.output[0]"
        )
        assert output.state is QuantState.ACTIVATED
        assert output.bits == 8
        assert output.scale == np.float32(1 / 256)


@pytest.mark.parametrize("place", ["s", "s.output", "s.output[0]"])
def test_a_prescribed_output_cannot_be_given_another_width(tmp_path: Path, place: str) -> None:
    with pytest.raises(UsageError, match="prescribes"):
        planned(sigmoid().build(), own_target(tmp_path, FIXED), Overrides(bits={place: 4}))


def test_annotating_changes_no_graph(tmp_path: Path) -> None:
    graph = normalize(conv().build())
    before = graph.hash
    annotate(graph, own_target(tmp_path, CONV))
    assert type(graph)(graph.model).hash == before
