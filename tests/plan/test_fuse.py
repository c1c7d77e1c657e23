"""What exists in the graph and not on the hardware is overlapped, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from intact.config import QuantState, TensorQuantConfig
from intact.plan import Overrides, QuantizedGraph, annotate, fuse
from tests.models import ModelBuilder
from tests.plans import config, conv, image, own_target, planned

OPS = """
[[op]]
ops = ["Conv", "Relu", "Clip", "Add", "Concat", "Mul", "Sigmoid", "MaxPool"]
"""
PAIR = '[[fusion]]\npattern = [["Conv"], ["Relu", "Clip"]]\n'
RESIDUAL = PAIR + (
    '[[fusion]]\npattern = [["Add"], ["Relu"]]\n'
    '[[fusion]]\npattern = [["Conv"], ["Add"]]\n'
    '[[fusion]]\npattern = [["Conv"], ["Add"], ["Relu"]]\n'
)
SWISH = '[[fusion]]\npattern = [["Sigmoid"], ["Mul"]]\nshares_input = true\n'


def plan_of(
    b: ModelBuilder, folder: Path, rules: str, *outputs: str, overrides: Overrides | None = None
) -> QuantizedGraph:
    for name in outputs:
        b.output(name)
    return planned(b.build(), own_target(folder, OPS + rules), overrides)


def fused(plan: QuantizedGraph, end: str) -> TensorQuantConfig:
    """The config that governs an end, which must be overlapped."""
    found = config(plan, end)
    assert found.state is QuantState.OVERLAPPED, end
    return found.dominator


@pytest.mark.parametrize("op_type", ["Relu", "Clip"])
def test_an_activation_is_fused_to_its_producer(tmp_path: Path, op_type: str) -> None:
    b = ModelBuilder()
    x = conv(b, image(b), "conv")
    extra = [b.scalar(0), b.scalar(6)] if op_type == "Clip" else []
    b.node(op_type, x, *extra, out="y", name="last")
    plan = plan_of(b, tmp_path, PAIR, "y")
    last = config(plan, "last.output[0]")
    assert last.state is QuantState.INITIAL
    assert fused(plan, "conv.output[0]") is fused(plan, "last.input[0]") is last


@pytest.mark.parametrize("second", ["reader", "output"])
def test_a_result_that_others_see_is_not_fused(tmp_path: Path, second: str) -> None:
    b = ModelBuilder()
    x = conv(b, image(b), "conv")
    b.node("Relu", x, out="y", name="relu")
    if second == "reader":
        b.node("MaxPool", x, kernel_shape=[2, 2], out="z", name="pool")
    plan = plan_of(b, tmp_path, PAIR, "y", "z" if second == "reader" else x)
    assert config(plan, "conv.output[0]").state is QuantState.INITIAL
    assert fused(plan, "relu.input[0]") is config(plan, "conv.output[0]")


def test_a_float_node_is_not_fused(tmp_path: Path) -> None:
    b = ModelBuilder()
    b.node("Relu", conv(b, image(b), "conv"), out="y", name="relu")
    plan = plan_of(b, tmp_path, PAIR, "y", overrides=Overrides(keep_float=("relu",)))
    assert config(plan, "conv.output[0]").state is QuantState.INITIAL


def test_the_longest_pattern_wins(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = image(b)
    b.node("Relu", b.node("Add", conv(b, x, "conv"), x, name="add"), out="y", name="relu")
    plan = plan_of(b, tmp_path, RESIDUAL, "y")
    last = config(plan, "relu.output[0]")
    for end in ("conv.output[0]", "add.input[0]", "add.output[0]", "relu.input[0]"):
        assert fused(plan, end) is last
    assert fused(plan, "add.input[1]") is config(plan, "conv.input[0]")


def test_an_accumulator_takes_one_chain_only(tmp_path: Path) -> None:
    """Where two convolutions meet in an Add the second one's result is stored (the residual)."""
    for activation in (False, True):
        b = ModelBuilder()
        x = image(b)
        y = b.node("Add", conv(b, x, "one"), conv(b, x, "two"), name="add")
        y = b.node("Relu", y, out="y", name="relu") if activation else y
        plan = plan_of(b, tmp_path, RESIDUAL, y)
        last = config(plan, "relu.output[0]" if activation else "add.output[0]")
        assert fused(plan, "one.output[0]") is last
        assert config(plan, "two.output[0]").state is QuantState.INITIAL
        assert fused(plan, "add.input[1]") is config(plan, "two.output[0]")


def test_a_concat_takes_in_any_number(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = image(b)
    b.node("Concat", conv(b, x, "one"), conv(b, x, "two"), axis=1, out="y", name="join")
    plan = plan_of(b, tmp_path, '[[fusion]]\npattern = [["Conv"], ["Concat"]]\n', "y")
    last = config(plan, "join.output[0]")
    for end in ("one.output[0]", "two.output[0]", "join.input[0]", "join.input[1]"):
        assert fused(plan, end) is last


def test_swish(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = conv(b, image(b), "conv")
    b.node("Mul", x, b.node("Sigmoid", x, name="gate"), out="y", name="mul")
    plan = plan_of(b, tmp_path, SWISH, "y")
    last, source = config(plan, "mul.output[0]"), config(plan, "conv.output[0]")
    assert fused(plan, "gate.output[0]") is fused(plan, "mul.input[1]") is last
    assert fused(plan, "mul.input[0]") is fused(plan, "gate.input[0]") is source


def test_a_swish_needs_the_shared_input(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = image(b)
    b.node("Mul", conv(b, x, "conv"), b.node("Sigmoid", x, name="gate"), out="y", name="mul")
    plan = plan_of(b, tmp_path, SWISH, "y")
    assert config(plan, "gate.output[0]").state is QuantState.INITIAL


def test_a_swish_around_a_prescribed_sigmoid(tmp_path: Path) -> None:
    """The Sigmoid inside has no output on the hardware, so its prescribed scale is none."""
    b = ModelBuilder()
    x = image(b)
    b.node("Mul", x, b.node("Sigmoid", x, name="gate"), out="y", name="mul")
    rule = '[[op]]\nops = ["Sigmoid"]\nfixed_output = { scale = 0.00390625 }\n'
    plan = plan_of(b, tmp_path, rule + SWISH, "y")
    assert fused(plan, "gate.output[0]") is config(plan, "mul.output[0]")
    assert config(plan, "mul.output[0]").scale is None


def test_a_reader_on_the_grid_of_its_producer_is_redundant(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = conv(b, image(b), "one")
    conv(b, x, "two")
    plan = plan_of(b, tmp_path, "", "two_out")
    assert fused(plan, "two.input[0]") is config(plan, "one.output[0]")


def test_other_widths_are_not_hidden(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = conv(b, image(b), "one")
    for name in ("two", "three", "four"):
        conv(b, x, name)
    narrow = Overrides(bits={"two.input": 4, "three.input": 4})
    plan = plan_of(b, tmp_path, "", "two_out", "three_out", "four_out", overrides=narrow)
    first = config(plan, "one.output[0]")
    assert config(plan, "two.input[0]").state is QuantState.INITIAL
    assert config(plan, "two.input[0]").dominator is not first
    assert fused(plan, "three.input[0]") is config(plan, "two.input[0]")
    assert fused(plan, "four.input[0]") is first


def test_readers_of_a_graph_input_share_by_width(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = image(b)
    for name in ("a", "b", "c", "d"):
        conv(b, x, name)
    asked = Overrides(bits={"b.input": 4, "d.input": 4})
    plan = plan_of(b, tmp_path, "", "a_out", "b_out", "c_out", "d_out", overrides=asked)
    assert config(plan, "a.input[0]").state is QuantState.INITIAL
    assert config(plan, "b.input[0]").state is QuantState.INITIAL
    assert fused(plan, "c.input[0]") is config(plan, "a.input[0]")
    assert fused(plan, "d.input[0]") is config(plan, "b.input[0]")


def test_two_nodes_with_one_weight_share_its_scales(tmp_path: Path) -> None:
    b = ModelBuilder()
    x, weight = image(b), b.weight(4, 4, 1, 1)
    for name in ("a", "b"):
        b.node("Conv", x, weight, name=name, out=name)
    plan = plan_of(b, tmp_path, "", "a", "b")
    assert fused(plan, "b.input[1]") is config(plan, "a.input[1]")


def test_fusing_leaves_its_argument_alone(tmp_path: Path) -> None:
    b = ModelBuilder()
    b.node("Relu", conv(b, image(b), "conv"), out="y", name="relu")
    b.output("y")
    before = annotate(planned(b.build()).graph, own_target(tmp_path, OPS + PAIR))
    after = fuse(before)
    assert config(before, "conv.output[0]").state is QuantState.INITIAL
    assert config(after, "conv.output[0]").state is QuantState.OVERLAPPED
