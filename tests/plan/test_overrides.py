"""Bit-widths that the user asks for: where they land, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import convert

from intact.errors import UsageError
from intact.graph import normalize
from intact.plan import Overrides, QuantizedGraph, build_plan
from intact.plan.preparation import graphs_for
from intact.targets import load_target
from tests.graph.test_given_nodes import scoped
from tests.models import ModelBuilder
from tests.plans import config, own_target, planned


def model(first: str = "first", second: str = "second") -> ModelBuilder:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["batch", 4, 8, 8]), b.weight(4, 4, 1, 1), name=first)
    x = b.node("Add", x, x, name="add")
    x = b.node("Conv", x, b.weight(4, 4, 1, 1), name=second)
    b.node("Softmax", x, out="y", name="soft")
    b.output("y")
    return b


def with_bits(**bits: int) -> QuantizedGraph:
    places = {place.replace("__", "."): width for place, width in bits.items()}
    return planned(model().build(), "onnxruntime", Overrides(bits=places))


def test_a_bare_node_means_its_weight_or_else_its_output() -> None:
    plan = with_bits(first=4, add=5)
    assert (config(plan, "first.input[1]").bits, config(plan, "first.output[0]").bits) == (4, 8)
    assert (config(plan, "add.output[0]").bits, config(plan, "add.input[0]").bits) == (5, 8)


@pytest.mark.parametrize(
    ("place", "changed"),
    [
        ("first.weight", {"first.input[1]"}),
        ("first.input", {"first.input[0]"}),
        ("first.output", {"first.output[0]"}),
        ("add.input", {"add.input[0]", "add.input[1]"}),
        ("add.input[1]", {"add.input[1]"}),
        ("second.input[0]", {"second.input[0]"}),
        ("second.output[0]", {"second.output[0]"}),
    ],
)
def test_a_place_changes_these_ends_and_no_others(place: str, changed: set[str]) -> None:
    plan = planned(model().build(), "onnxruntime", Overrides(bits={place: 6}))
    assert {str(end) for end, each in plan.configs.items() if each.bits == 6} == changed


def test_the_most_specific_place_holds() -> None:
    overrides = Overrides(
        bits={"first": 4, "first.weight": 5, "add.input": 6, "add.input[0]": 7},
        weight_bits=3,
        activation_bits=9,
    )
    plan = planned(model().build(), "onnxruntime", overrides)
    found = [config(plan, f"{end}]").bits for end in ("first.input[1", "second.input[1")]
    assert found == [5, 3]
    found = [config(plan, f"add.{end}]").bits for end in ("input[0", "input[1", "output[0")]
    assert found == [7, 6, 9]


@pytest.mark.parametrize("bits", range(2, 17))
def test_ranges_of_every_width(bits: int) -> None:
    overrides = Overrides(weight_bits=bits, activation_bits=bits)
    plan = planned(model().build(), "onnxruntime", overrides)
    activation, weight = config(plan, "first.input[0]"), config(plan, "first.input[1]")
    assert (activation.quant_min, activation.quant_max) == (0, 2**bits - 1)
    assert (weight.quant_min, weight.quant_max) == (1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1)


@pytest.mark.parametrize("bits", [-1, 0, 1, 17, 32])
def test_other_widths_are_refused(bits: int) -> None:
    for overrides in (
        Overrides(bits={"first": bits}),
        Overrides(weight_bits=bits),
        Overrides(activation_bits=bits),
    ):
        with pytest.raises(UsageError, match="2 to 16"):
            planned(model().build(), "onnxruntime", overrides)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (Overrides(keep_float=("frist",)), "did you mean 'first'"),
        (Overrides(keep_float=("conv",)), "did you mean 'Conv'"),
        (Overrides(bits={"secnod.weight": 4}), "did you mean 'second'"),
        (Overrides(bits={"ad": 4}), "did you mean 'add'"),
        (Overrides(bits={"first.input[x]": 4}), "no such node or op type; did you mean 'first'"),
    ],
)
def test_a_name_that_does_not_exist_gets_the_nearest(overrides: Overrides, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        planned(model().build(), "onnxruntime", overrides)


@pytest.mark.parametrize(
    "place", ["soft", "soft.output", "add.weight", "first.input[7]", "first.output[1]"]
)
def test_a_width_where_nothing_is_quantized_is_refused(place: str) -> None:
    with pytest.raises(UsageError, match="nothing is quantized there"):
        planned(model().build(), "onnxruntime", Overrides(bits={place: 4}))


DECLARED = """
[[op]]
ops = ["Conv", "Add"]
inputs = ["int8", "int8"]
outputs = ["int32"]
[[op]]
ops = ["Softmax"]
inputs = ["uint8"]
outputs = ["uint8"]
alternatives = [{ inputs = ["uint16"], outputs = ["uint16"] }]
"""


@pytest.mark.parametrize(
    ("place", "bits", "message"),
    [
        ("first", 12, r"bits first=12: target mine declares int8 at first\.input\[1\] \(Conv\)"),
        ("first.input", 9, r"declares int8 at first\.input\[0\] \(Conv\); give 2 to 8 bits"),
        ("first.weight", 16, "give 2 to 8 bits, or keep_float first"),
        ("add", 9, r"declares 8 bits at add\.output\[0\]"),
        ("soft.input", 12, None),
        ("first", 8, None),
        ("first", 2, None),
    ],
)
def test_a_width_that_no_type_of_the_hardware_has_is_refused_with_the_choices(
    tmp_path: Path, place: str, bits: int, message: str | None
) -> None:
    target = own_target(tmp_path, DECLARED)
    if message is None:
        planned(model().build(), target, Overrides(bits={place: bits}))
        return
    with pytest.raises(UsageError, match=message):
        planned(model().build(), target, Overrides(bits={place: bits}))
    if place == "first":
        with pytest.raises(UsageError, match="give 2 to 8 bits"):
            planned(model().build(), "x86", Overrides(bits={place: bits}))


@pytest.mark.parametrize("name", ["a b", "größe π", "a.input[0]", 'it\'s "q"', "x.weight", "a\nb"])
def test_odd_names(name: str) -> None:
    for place, end in ((name, "input[1]"), (f"{name}.output", "output[0]")):
        plan = planned(model(first=name).build(), "onnxruntime", Overrides(bits={place: 4}))
        changed = {str(end) for end, each in plan.configs.items() if each.bits == 4}
        assert changed == {f"{name}.{end}"}


def scoped_plan(**options: object) -> QuantizedGraph:
    (graph,) = graphs_for(normalize(scoped().build()), [load_target("onnxruntime")])
    return build_plan(graph, load_target("onnxruntime"), convert(options, Overrides))


def floats(plan: QuantizedGraph) -> set[str]:
    return {name for name, each in plan.decisions.items() if "as asked" in each.reason}


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("/stem/bn", {"/stem/conv"}),
        ("/stem/pad", {"/stem/conv"}),
        ("BatchNormalization", {"/stem/conv"}),
        ("Pad", {"/stem/conv"}),
        ("/stem", {"/stem/conv"}),
        ("/stem/*", {"/stem/conv"}),
        ("/head/erf", {"/head/half_gelu"}),
        ("Erf", {"/head/half_gelu"}),
        ("/head/", {"/head/half_gelu", "/head/conv"}),
        ("/*/conv", {"/stem/conv", "/head/conv"}),
        ("Gelu", {"/head/half_gelu"}),
    ],
)
def test_names_of_the_given_model_are_those_of_what_they_became(name: str, kept: set[str]) -> None:
    plan = scoped_plan(keep_float=[name])
    assert floats(plan) == kept
    folded = name in ("/stem/bn", "/stem/pad", "BatchNormalization", "Pad", "Erf") or "erf" in name
    notes = [str(note) for note in plan.notes if "folded into" in str(note)]
    assert len(notes) == 1 or not folded


def test_widths_take_such_names_and_a_node_goes_before_its_scope() -> None:
    plan = scoped_plan(bits={"/head/conv": 6, "Conv": 4, "/stem/bn.output": 7})
    assert config(plan, "/head/conv.input[1]").bits == 6
    assert config(plan, "/stem/conv.input[1]").bits == 4
    assert config(plan, "/stem/conv.output[0]").bits == 7


@pytest.mark.parametrize("name", ["/stem/bm", "/stam", "/nowhere/*", "BatchNorm"])
def test_names_that_fit_nothing_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no such node or op type"):
        scoped_plan(keep_float=[name])
    with pytest.raises(UsageError, match="no such node or op type"):
        scoped_plan(bits={name: 4})
