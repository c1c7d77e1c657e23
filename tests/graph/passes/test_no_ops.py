"""Only what does exactly nothing is removed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto

from intact.graph import normalize
from tests import models
from tests.models import ModelBuilder, run_model


def survives(op_type: str, *constants: Any, first: bool = False, **attributes: Any) -> bool:
    builder = ModelBuilder(17)
    x = builder.node("Relu", builder.input("x", ["batch", 3]))
    others = [builder.constant(value) for value in constants]
    inputs = [*others, x] if first else [x, *others]
    y = builder.node(op_type, *inputs, name="node", **attributes)
    builder.node("Neg", y, out="y")
    builder.output("y")
    return any(node.name == "node" for node in normalize(builder.build()).nodes)


F = np.float32


@pytest.mark.parametrize(
    ("op_type", "constant"),
    [
        *(
            ("Add", F(0)),
            ("Sub", F(-0.0)),
            ("Mul", F(1)),
            ("Div", F(1)),
            ("Mul", np.ones((1, 1), F)),
        ),
        *(("Max", F(-np.inf)), ("Min", F(np.inf)), ("Max", np.full(3, -np.inf, F))),
        ("Add", np.zeros((1, 3), F)),
    ],
)
def test_neutral_constants(op_type: str, constant: Any) -> None:
    assert not survives(op_type, constant)


@pytest.mark.parametrize(
    ("op_type", "constant"),
    [
        ("Add", F(1e-45)),
        ("Mul", np.nextafter(F(1), F(2))),
        ("Mul", F(np.nan)),
        ("Add", np.zeros((1, 1, 1), F)),  # adds an axis
        ("Add", np.zeros((4, 1), F)),  # broadcasts
        ("Mul", F(-1)),
        ("Max", F(-3.4e38)),
        ("Max", F(np.inf)),
        ("Min", F(np.nan)),
        ("Add", np.array([0, 0, 1e-45], F)),
        ("Add", np.zeros((0, 3), F)),
    ],
)
def test_near_neutral_constants_stay(op_type: str, constant: Any) -> None:
    assert survives(op_type, constant)


def test_sides() -> None:
    assert not survives("Add", F(0), first=True)
    assert survives("Sub", F(0), first=True)
    assert survives("Div", F(1), first=True)


def test_bounds_at_infinity() -> None:
    assert not survives("Clip", F(-np.inf), F(np.inf))
    assert survives("Clip", F(-np.inf), F(6))
    assert survives("Clip", F(-np.inf))  # the largest finite number is its upper bound
    assert survives("Clip")
    assert survives("Max", F(-np.inf), F(0))
    assert survives("Min")


def test_dropout_and_cast() -> None:
    assert not survives("Dropout", F(0.5))
    assert not survives("Dropout", F(0.5), np.array(False))
    assert survives("Dropout", F(0.5), np.array(True))
    assert not survives("Cast", to=1)
    assert survives("Cast", to=11)


def test_copies_between_ports_stay() -> None:
    graph = normalize(models.shared_ports())
    kept = [node.outputs[0].name for node in graph.nodes if node.op_type == "Identity"]
    assert kept == ["second", "third", "copy"]
    seven = graph.value("seven")
    assert seven.is_graph_output()


@pytest.mark.parametrize(
    ("condition", "left", "right", "goes"),
    [
        (np.ones((1, 3), bool), "x", F(-5), True),
        (np.ones(3, bool), "x", "column", True),
        (np.zeros((1, 3), bool), F(-5), "x", True),
        (np.zeros((1, 3), bool), "x", F(-5), False),  # the number becomes as large as x
        (np.ones((2, 1, 3), bool), "x", F(-5), False),  # x becomes as large as the condition
        (np.ones(3, bool), "column", "x", False),
        (np.array([True, False, True]), "x", F(-5), False),
    ],
)
def test_choices_that_are_always_the_same(
    condition: Any, left: Any, right: Any, goes: bool
) -> None:
    b = ModelBuilder(18)
    x = b.node("Relu", b.input("x", ["batch", 3]))
    values = {"x": x, "column": b.with_axes("ReduceMax", x, [1])}
    sides = [values[side] if isinstance(side, str) else b.constant(side) for side in (left, right)]
    b.node("Neg", b.node("Where", b.constant(condition), *sides), out="y")
    b.output("y")
    model, feeds = b.build(), {"x": np.arange(-3, 3, dtype=F).reshape(2, 3)}
    graph = normalize(model)
    assert ("Where" not in {node.op_type for node in graph.nodes}) == goes
    np.testing.assert_array_equal(
        run_model(ir.to_proto(graph.model), feeds)["y"], run_model(model, feeds)["y"]
    )


def test_a_choice_between_unnamed_lengths_stays() -> None:
    b = ModelBuilder(17)
    unnamed: Any = None
    sides = [b.input(name, [unnamed, 3]) for name in ("x", "other")]
    b.output(b.node("Neg", b.node("Where", b.constant(np.ones(3, bool)), *sides)))
    assert "Where" in {node.op_type for node in normalize(b.build()).nodes}


def guarded(
    mask: Any,
    *,
    axis: int = -1,
    scale: float = 0.5,
    other: bool = False,
    behind: tuple[str, float] = ("Mul", 1),
    rest: Any = 0,
) -> ModelBuilder:
    """An attention as torch's exporter writes it: a Softmax that is NaN becomes 0."""
    b = ModelBuilder(17)
    x = b.input("x", [2, 3, 4])
    scores = b.node("MatMul", x, b.node("Transpose", x, perm=[0, 2, 1]))
    scores = b.node("Add", b.node("Mul", scores, b.constant(F(scale))), b.constant(mask))
    scores = b.node(behind[0], scores, b.constant(F(behind[1])))
    attention = b.node("Softmax", scores, axis=axis)
    checked = b.node("Neg", attention) if other else attention
    b.node("Where", b.node("IsNaN", checked), b.constant(F(rest)), attention, out="y")
    b.output("y")
    return b


CAUSAL = np.triu(np.full((3, 3), -np.inf, F), 1)


@pytest.mark.parametrize("mask", [np.zeros((3, 3), F), CAUSAL, F(-5)], ids=["none", "causal", "1"])
def test_guards_behind_rows_that_keep_something_go(mask: Any) -> None:
    for behind in (("Mul", 1), ("Mul", 3), ("Div", 3)):
        graph = normalize(guarded(mask, behind=behind, rest=np.zeros((1, 3))).build())
        assert {"Where", "IsNaN"}.isdisjoint(node.op_type for node in graph.nodes)


@pytest.mark.parametrize(
    "builder",
    [
        guarded(np.where(np.arange(3)[:, None] == 1, F(-np.inf), F(0)) + np.zeros((3, 3), F)),
        guarded(CAUSAL, axis=1),
        guarded(CAUSAL, scale=np.inf),
        guarded(F(np.nan)),
        guarded(F(-np.inf)),
        guarded(F(1), other=True),
        guarded(CAUSAL, behind=("Mul", -2)),
        guarded(CAUSAL, behind=("Mul", 0)),
        guarded(CAUSAL, behind=("Div", -2)),
        guarded(CAUSAL, rest=np.zeros((1, 1, 1, 1))),
        guarded(CAUSAL, rest=np.zeros((4, 1, 1, 1))),
    ],
    ids=["a row", "axis", "scale", "nan", "all", "other", *"-0/", "rank", "samples"],
)
def test_guards_that_may_be_needed_stay(builder: ModelBuilder) -> None:
    assert "Where" in [node.op_type for node in normalize(builder.build()).nodes]


LEAST = float(np.finfo(F).min)


def masked(*, least: float, masks: int = 1, factor: float = 1) -> ModelBuilder:
    """An attention whose mask is an input."""
    b = ModelBuilder(17)
    x = b.input("x", [2, 3, 4])
    scores = b.node("MatMul", x, b.node("Transpose", x, perm=[0, 2, 1]))
    for number in range(masks):
        known = b.input(f"mask_{number}", [2, 1, 3], TensorProto.BOOL)
        chosen = b.node("Where", known, b.constant(F(0)), b.constant(F(least)))
        scores = b.node("Add", chosen, scores)
    scores = b.node("Mul", scores, b.constant(F(factor)))
    attention = b.node("Softmax", scores, axis=-1)
    b.node("Where", b.node("IsNaN", attention), b.constant(F(0)), attention, out="y")
    b.output("y")
    return b


def test_guards_behind_masks_of_finite_numbers_go() -> None:
    model = masked(least=LEAST).build()
    graph = normalize(model)
    assert "IsNaN" not in [node.op_type for node in graph.nodes]
    x = np.random.default_rng(5).normal(size=(2, 3, 4)).astype(F)
    mask = np.array([[[True, False, True]], [[False, False, False]]])
    feeds = {"x": x, "mask_0": mask}
    (expected,) = run_model(model, feeds).values()
    (found,) = run_model(ir.to_proto(graph.model), feeds).values()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "builder",
    [masked(least=-np.inf), masked(least=LEAST, masks=2), masked(least=LEAST, factor=8)],
    ids=["infinite", "two may be infinite together", "infinite times a factor"],
)
def test_guards_behind_masks_that_may_leave_nothing_stay(builder: ModelBuilder) -> None:
    assert "IsNaN" in [node.op_type for node in normalize(builder.build()).nodes]


@pytest.mark.parametrize(
    ("limit", "goes"), [(20.0, True), (16.0, True), (5.0, False), ([[[20.0]]], False)]
)
def test_the_straight_part_of_softplus_goes_where_it_is_no_other(limit: Any, goes: bool) -> None:
    b = ModelBuilder(17)
    x = b.node("Neg", b.input("x", ["batch", 3]))
    curved = b.node("Softplus", x)
    b.node("Where", b.node("Greater", x, b.constant(F(limit))), x, curved, out="y")
    b.output("y")
    model = b.build()
    graph = normalize(model)
    assert ("Where" not in [node.op_type for node in graph.nodes]) == goes
    feeds = {"x": np.array([[-16.5, -20.5, -90.0], [-15.9, 0.3, 4.0]], F)}
    (expected,) = run_model(model, feeds).values()
    (found,) = run_model(ir.to_proto(graph.model), feeds).values()
    np.testing.assert_array_equal(found, expected)
