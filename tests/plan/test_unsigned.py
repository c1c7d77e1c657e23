"""Which values get unsigned codes: each rule by a graph that needs no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from intact.plan import NoteKind, QuantizedGraph
from intact.plan.annotate import unsigned_values
from intact.plan.overrides import Overrides
from intact.plan.topology import decide
from intact.targets import Target
from tests.models import ModelBuilder
from tests.plans import config, conv, image, own_target, planned

HEADER = """
format = 1
name = "mine"
formats = ["openvino"]
[activation]
dtype = "int8"
symmetric = true
[weight]
dtype = "int8"
symmetric = true
granularity = "per_channel"
[bias]
dtype = "float32"
[arithmetic]
requantize = "float32"
[unsigned]
after = ["Relu", "Clip", "Sigmoid"]
through = ["Add", "AveragePool", "MaxPool", "Concat", "Resize", "Mul"]
"""
OPS = """
[[op]]
ops = ["Conv"]
[[op]]
ops = ["Relu", "Clip", "Add", "AveragePool", "Mul", "Sigmoid"]
float = true
[[op]]
ops = ["MaxPool", "Resize"]
float = true
scales = "output_follows_input"
[[op]]
ops = ["Concat"]
float = true
scales = "unify_all"
"""


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return own_target(tmp_path, OPS, header=HEADER)


def relu(b: ModelBuilder, x: str, out: str) -> str:
    return b.node("Relu", x, out=out)


def pool(b: ModelBuilder, x: str, out: str, op_type: str = "MaxPool") -> str:
    return b.node(op_type, x, kernel_shape=[2, 2], out=out)


def made(b: ModelBuilder, target: Target, *outputs: str) -> tuple[QuantizedGraph, frozenset[str]]:
    for name in outputs:
        b.output(name)
    plan = planned(b.build(), target)
    decisions = decide(plan.graph, target, Overrides())
    return plan, unsigned_values(plan.graph, target, decisions)


def test_behind_a_relu_and_not_before_it(target: Target) -> None:
    b = ModelBuilder()
    conv(b, relu(b, conv(b, image(b), "one"), "r"), "two")
    plan, found = made(b, target, "two_out")
    assert found == {"r"}
    output = config(plan, "Relu_r.output[0]")
    assert (output.quant_min, output.quant_max, output.bits) == (0, 255, 8)
    assert output.grid.symmetric
    reader = config(plan, "two.input[0]")
    assert (reader.quant_min, reader.quant_max) == (0, 255)
    assert reader.dominator is output.dominator
    last = config(plan, "two.output[0]")
    assert (last.quant_min, last.quant_max) == (-128, 127)
    first = config(plan, "one.input[0]")
    assert (first.quant_min, first.quant_max) == (-128, 127)


def test_through_a_pool_and_an_add(target: Target) -> None:
    b = ModelBuilder()
    x = image(b)
    left = pool(b, relu(b, conv(b, x, "a"), "ra"), "pa")
    right = pool(b, relu(b, conv(b, x, "b"), "rb"), "pb", "AveragePool")
    conv(b, b.node("Add", left, right, out="sum"), "last")
    _, found = made(b, target, "last_out")
    assert found == {"ra", "rb", "pa", "pb", "sum"}


def test_one_signed_branch_makes_the_sum_signed(target: Target) -> None:
    b = ModelBuilder()
    x = image(b)
    left = relu(b, conv(b, x, "a"), "ra")
    conv(b, b.node("Add", left, conv(b, x, "b"), out="sum"), "last")
    _, found = made(b, target, "last_out")
    assert found == {"ra"}


def test_a_signed_branch_one_level_deeper_counts_too(target: Target) -> None:
    """The nearest level has a Relu alone; the pool's negative numbers would be lost."""
    b = ModelBuilder()
    x = image(b)
    deep = pool(b, conv(b, x, "b"), "pb", "AveragePool")
    left = pool(b, relu(b, conv(b, x, "a"), "ra"), "pa", "AveragePool")
    conv(b, b.node("Add", left, deep, out="sum"), "last")
    _, found = made(b, target, "last_out")
    assert found == {"ra", "pa"}


def test_a_diamond(target: Target) -> None:
    b = ModelBuilder()
    r = relu(b, conv(b, image(b), "a"), "r")
    s = b.node("Add", pool(b, r, "p", "AveragePool"), pool(b, r, "q", "AveragePool"), out="sum")
    conv(b, s, "last")
    _, found = made(b, target, "last_out")
    assert found == {"r", "p", "q", "sum"}


def test_the_node_where_the_search_starts_is_judged_by_itself(target: Target) -> None:
    """A Relu has unsigned codes whatever it reads, and makes nothing of what is before it so."""
    b = ModelBuilder()
    x = conv(b, image(b), "a")
    p = pool(b, x, "p", "AveragePool")
    relu(b, p, "r")
    conv(b, "r", "last")
    b.node("Add", "r", p, out="sum")
    conv(b, "sum", "other")
    _, found = made(b, target, "last_out", "other_out")
    assert found == {"r"}


@pytest.mark.parametrize(
    ("low", "expected"), [(0.0, {"c"}), (0.5, {"c"}), (-1.0, set()), (None, set())]
)
def test_a_clip_by_its_lower_bound(target: Target, low: float | None, expected: set[str]) -> None:
    b = ModelBuilder()
    bounds = ["" if low is None else b.scalar(low), b.scalar(6.0)]
    conv(b, b.node("Clip", conv(b, image(b), "a"), *bounds, out="c"), "last")
    assert made(b, target, "last_out")[1] == expected


def test_a_clip_whose_bound_is_computed_has_a_sign(target: Target) -> None:
    b = ModelBuilder()
    x, low = image(b), b.input("low", [])
    conv(b, b.node("Clip", conv(b, x, "a"), low, b.scalar(6.0), out="c"), "last")
    assert made(b, target, "last_out")[1] == set()


@pytest.mark.parametrize(("constant", "expected"), [(1.0, {"r", "sum"}), (-1.0, {"r"})])
def test_constants_by_their_numbers(target: Target, constant: float, expected: set[str]) -> None:
    b = ModelBuilder()
    r = relu(b, conv(b, image(b), "a"), "r")
    b.node("Add", r, b.constant(np.full((4, 1, 1), constant, np.float32)), out="sum")
    conv(b, "sum", "last")
    assert made(b, target, "last_out")[1] == expected


def test_behind_a_relu_that_stays_float(target: Target) -> None:
    b = ModelBuilder()
    conv(b, relu(b, image(b), "r"), "last")
    plan, found = made(b, target, "last_out")
    assert not plan.decisions["Relu_r"].quantized
    assert found == {"r"}
    assert config(plan, "last.input[0]").quant_max == 255


def test_what_one_scale_joins_agrees_on_a_sign(target: Target) -> None:
    """A Concat of a Relu and of numbers with a sign has one scale: all of it gets signs."""
    b = ModelBuilder()
    x = image(b)
    left = pool(b, relu(b, conv(b, x, "a"), "ra"), "pa")  # the pool keeps the Relu's scale
    joined = b.node("Concat", left, pool(b, conv(b, x, "b"), "pb"), axis=1, out="joined")
    b.node("Conv", joined, b.weight(4, 8, 1, 1), out="y", name="last")
    plan, found = made(b, target, "y")
    assert found == set()
    assert not [note for note in plan.notes if note.kind is NoteKind.TIE]
    grids = {config(plan, f"Concat_joined.input[{slot}]").grid for slot in (0, 1)}
    assert grids == {config(plan, "Concat_joined.output[0]").grid}


def test_a_joint_scale_without_signs(target: Target) -> None:
    b = ModelBuilder()
    x = image(b)
    parts = [relu(b, conv(b, x, name), f"r{name}") for name in "ab"]
    joined = b.node("Concat", *parts, axis=1, out="joined")
    b.node("Conv", joined, b.weight(4, 8, 1, 1), out="y", name="last")
    plan, found = made(b, target, "y")
    assert found == {"ra", "rb", "joined"}
    assert config(plan, "Concat_joined.output[0]").quant_max == 255


def test_targets_that_do_not_ask_have_signs(tmp_path: Path) -> None:
    target = own_target(tmp_path, OPS, header=HEADER.split("[unsigned]", maxsplit=1)[0])
    b = ModelBuilder()
    conv(b, relu(b, conv(b, image(b), "one"), "r"), "two")
    plan, found = made(b, target, "two_out")
    assert found == set()
    assert config(plan, "Relu_r.output[0]").quant_min == -128


def test_other_widths_are_unsigned_too(target: Target) -> None:
    b = ModelBuilder()
    conv(b, relu(b, conv(b, image(b), "one"), "r"), "two")
    b.output("two_out")
    plan = planned(b.build(), target, Overrides(activation_bits=4))
    ranges = [config(plan, end).grid for end in ("Relu_r.output[0]", "one.input[0]")]
    assert [(grid.quant_min, grid.quant_max) for grid in ranges] == [(0, 15), (-8, 7)]


def concat(b: ModelBuilder) -> None:
    """Numbers with a sign come first, so that what is tied to them stands behind."""
    x = image(b)
    signed, unsigned = conv(b, x, "a"), relu(b, conv(b, x, "b"), "r")
    b.node("Concat", signed, unsigned, axis=1, out="joined", name="join")
    b.node("Conv", "joined", b.weight(4, 8, 1, 1), out="last_out")


def test_every_input_that_a_concat_ties_to_one_with_a_sign_gets_one(target: Target) -> None:
    b = ModelBuilder()
    concat(b)
    assert made(b, target, "last_out")[1] == set()


def test_a_concat_in_float_ties_nothing(target: Target) -> None:
    b = ModelBuilder()
    concat(b)
    b.output("last_out")
    graph = planned(b.build(), target).graph
    decisions = decide(graph, target, Overrides(keep_float=("join",)))
    assert unsigned_values(graph, target, decisions) == {"r"}


def test_operators_of_other_domains_only_share_a_name(target: Target) -> None:
    b = ModelBuilder()
    b.domains["mine"] = 1
    x = conv(b, image(b), "a")
    b.node("Relu", x, out="own", domain="mine")
    b.node("MaxPool", relu(b, x, "r"), out="own_pool", domain="mine")
    conv(b, "own", "one")
    conv(b, "own_pool", "two")
    assert made(b, target, "one_out", "two_out")[1] == {"r"}
