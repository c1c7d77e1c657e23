"""HardSwish written out, in every order that exporters write, and near misses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from intact.engines.session import FloatModel
from intact.graph import normalize
from intact.graph.passes.joins import JOINS, join
from tests.models import ModelBuilder
from tests.plans import op_types

HARD_SWISH = JOINS["HardSwish"]
FORMS = ("divide last", "multiply last", "divide the clip", "divide the data", "hard sigmoid")
SPECIAL = np.array([0, -0.0, 1e-45, -1e-40, np.inf, -np.inf, np.nan, -3, 3, 3.4e38], np.float32)


def written_out(
    form: str, opset: int = 13, *, three: float = 3.0, six: float = 6.0, last: float = 6.0
) -> ModelBuilder:
    b = ModelBuilder(opset)
    x = b.input("x", ["batch", 8])
    added = b.node("Add", x, b.scalar(three))
    gate = b.node("Clip", added, b.scalar(0.0), b.scalar(six))
    match form:
        case "divide last":
            b.node("Div", b.node("Mul", x, gate), b.scalar(last), out="y")
        case "multiply last":
            b.node("Mul", b.scalar(1 / last), b.node("Mul", gate, x), out="y")
        case "divide the clip":
            b.node("Mul", x, b.node("Div", gate, b.scalar(last)), out="y")
        case "divide the data":
            b.node("Mul", gate, b.node("Div", x, b.scalar(last)), out="y")
        case _:
            gate = b.node("HardSigmoid", x, alpha=1 / last, beta=three / six)
            b.node("Mul", x, gate, out="y")
    b.output("y", ["batch", 8])
    return b


@pytest.mark.crossed
@pytest.mark.parametrize("opset", [11, 13, 14, 18])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_joined(form: str, opset: int) -> None:
    model = written_out(form, opset).build()
    graph = normalize(model)
    joined = join(graph, HARD_SWISH)
    assert op_types(joined) == ["HardSwish"]
    assert joined.opset == max(opset, 14)
    x = np.random.default_rng(1).normal(0, 4, (64, 8)).astype(np.float32)
    found = FloatModel(joined, threads=1).run({"x": x})["y"]
    wanted = FloatModel(normalize(model), threads=1).run({"x": x})["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_special_numbers(form: str) -> None:
    """What is no number may become another: 0 * inf is NaN only where the gate is exactly 0."""
    graph = normalize(written_out(form).build())
    x = {"x": np.resize(SPECIAL, (2, 8)).astype(np.float32)}
    wanted = FloatModel(graph, threads=1).run(x)["y"]
    found = FloatModel(join(graph, HARD_SWISH), threads=1).run(x)["y"]
    finite = np.isfinite(wanted) & (np.abs(x["x"]) < 1e38)
    np.testing.assert_allclose(found[finite], wanted[finite], rtol=1e-6, atol=1e-44)


@pytest.mark.parametrize("wrong", [{"three": 2.0}, {"last": 5.0}, {"six": 5.0}])
@pytest.mark.parametrize("form", FORMS)
def test_other_constants_are_another_function(form: str, wrong: dict[str, Any]) -> None:
    graph = normalize(written_out(form, **wrong).build())
    assert join(graph, HARD_SWISH) is graph


def test_what_others_read_stays() -> None:
    b = written_out("divide last")
    b.node("Clip", b.node("Add", "x", b.scalar(3.0)), b.scalar(0.0), b.scalar(6.0), out="z")
    b.output("z", ["batch", 8])
    assert sorted(op_types(join(normalize(b.build()), HARD_SWISH))) == ["Add", "Clip", "HardSwish"]


def test_a_constant_of_more_axes_adds_them() -> None:
    b = ModelBuilder(17)
    x = b.input("x", ["batch", 8])
    gate = b.node("Clip", b.node("Add", x, b.scalar(3.0)), b.scalar(0.0), b.scalar(6.0))
    sixth = b.constant(np.full((1, 1, 1), 1 / 6, np.float32))
    b.node("Mul", b.node("Mul", x, gate), sixth, out="y")
    b.output("y")
    assert "HardSwish" not in op_types(join(normalize(b.build()), HARD_SWISH))
