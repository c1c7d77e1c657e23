"""Which values get unsigned codes: each rule by a graph that needs no other."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from intact.plan import NoteKind, QuantizedGraph
from intact.plan.overrides import Overrides
from intact.plan.signs import signs_of
from intact.plan.topology import decide
from intact.targets import Target
from intact.targets.schema import BesideSigned
from tests.models import ModelBuilder, random_inputs
from tests.plans import calibrate, config, conv, image, own_target, planned

HEADER = """
format = 2
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
requantize = { kind = "float_once" }
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
    return plan, signs_of(plan.graph, target, decisions).values


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
    assert signs_of(graph, target, decisions).values == {"r"}


def test_operators_of_other_domains_only_share_a_name(target: Target) -> None:
    b = ModelBuilder()
    b.domains["mine"] = 1
    x = conv(b, image(b), "a")
    b.node("Relu", x, out="own", domain="mine")
    b.node("MaxPool", relu(b, x, "r"), out="own_pool", domain="mine")
    conv(b, "own", "one")
    conv(b, "own_pool", "two")
    assert made(b, target, "one_out", "two_out")[1] == {"r"}


def shared(b: ModelBuilder, *, joins: int = 1, readers: int = 1, pooled: bool = False) -> None:
    """A Relu that Concats read beside numbers with a sign, and others read as well."""
    x = image(b)
    r = relu(b, conv(b, x, "a"), "r")
    at_join = pool(b, r, "p") if pooled else r
    for k in range(joins):
        s = conv(b, x, f"s{k}")
        s = pool(b, s, f"ps{k}") if pooled else s
        b.node("Concat", at_join, s, axis=1, out=f"joined{k}", name=f"join{k}")
        b.node("Conv", f"joined{k}", b.weight(4, 8, 1, 1), out=f"y{k}", name=f"y{k}")
        b.output(f"y{k}")
    for k in range(readers):
        conv(b, r, f"reader{k}")
        b.output(f"reader{k}_out")


def told(target: Target, choice: BesideSigned) -> Target:
    unsigned = msgspec.structs.replace(target.unsigned, beside_signed=choice)
    return msgspec.structs.replace(target, unsigned=unsigned)


@pytest.mark.parametrize(
    ("joins", "readers", "expected"),
    [(1, 1, True), (3, 1, True), (4, 1, False), (4, 2, True), (1, 0, False)],
)
@pytest.mark.parametrize("pooled", [False, True])
def test_what_others_read_keeps_its_bit(
    target: Target, joins: int, readers: int, expected: bool, pooled: bool
) -> None:
    b = ModelBuilder()
    shared(b, joins=joins, readers=readers, pooled=pooled)
    plan, found = made(b, target)
    assert found == (({"r", "p"} if pooled else {"r"}) if expected else set())
    output = config(plan, "Relu_r.output[0]")
    assert (output.quant_min, output.quant_max) == ((0, 255) if expected else (-128, 127))
    at_join = config(plan, "join0.input[0]")
    assert (at_join.quant_min, at_join.quant_max) == (-128, 127)
    assert at_join.dominator is config(plan, "join0.output[0]").dominator
    assert at_join.dominator is config(plan, "join0.input[1]").dominator
    assert (at_join.dominator is output.dominator) is not expected
    assert not [note for note in plan.notes if note.kind is NoteKind.TIE]


@pytest.mark.parametrize("choice", list(BesideSigned))
@pytest.mark.parametrize("readers", [0, 1])
def test_the_rule_is_chosen_by_name(target: Target, choice: BesideSigned, readers: int) -> None:
    b = ModelBuilder()
    shared(b, readers=readers)
    _, found = made(b, told(target, choice))
    by_name = {BesideSigned.ALWAYS: True, BesideSigned.NEVER: False}
    assert found == ({"r"} if by_name.get(choice, readers > 0) else set())


def test_a_result_of_the_model_is_a_reader(target: Target) -> None:
    b = ModelBuilder()
    concat(b)
    assert made(b, target, "last_out", "r")[1] == {"r"}


@pytest.mark.parametrize(("joins", "readers"), [(1, 1), (3, 1), (1, 0)])
def test_the_choice_by_error_loses_least(target: Target, joins: int, readers: int) -> None:
    """Summed over all who read the Relu, in the mean squares of what they read."""
    b = ModelBuilder()
    shared(b, joins=joins, readers=readers)
    model = b.build()
    feeds = random_inputs(model, batch=64, seed=8)
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    shown.graph.output.append(onnx.ValueInfoProto(name="r"))
    values = ort.InferenceSession(shown.SerializeToString()).run(["r"], feeds)[0]
    errors = {}
    for choice in BesideSigned:
        plan = calibrate(planned(model, told(target, choice)), feeds)
        stored = config(plan, "Relu_r.output[0]").dominator.fake_quantize(values)
        read = [config(plan, f"reader{k}.input[0]") for k in range(readers)]
        read += [config(plan, f"join{k}.input[0]") for k in range(joins)]
        errors[choice] = sum(
            float(np.square(each.dominator.fake_quantize(stored) - values).mean()) for each in read
        )
    assert errors[BesideSigned.BY_ERROR] == min(errors.values())
