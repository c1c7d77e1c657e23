"""Gelu written out, in every order that exporters write, and near misses."""

from __future__ import annotations

import math

import numpy as np
import pytest

from intact.engines.session import FloatModel
from intact.graph import is_constant, normalize
from intact.graph.passes.joins import JOINS, join
from tests.models import ModelBuilder

GELU = JOINS["Gelu"]
FORMS = ("half last", "half first", "half on the data", "operands exchanged")


def written_out(
    form: str,
    opset: int = 17,
    *,
    root: float = math.sqrt(2),
    half: float = 0.5,
    one: float = 1.0,
) -> ModelBuilder:
    b = ModelBuilder(opset)
    x = b.node("MatMul", b.input("x", ["batch", 8]), b.weight(8, 8))
    if form == "operands exchanged":
        erf = b.node("Erf", b.node("Mul", b.scalar(1 / root), x))
        b.node("Mul", b.scalar(half), b.node("Mul", b.node("Add", b.scalar(one), erf), x), out="y")
    else:
        erf = b.node("Erf", b.node("Div", x, b.scalar(root)), out="erf")
        added = b.node("Add", erf, b.scalar(one))
        if form == "half last":
            b.node("Mul", b.node("Mul", x, added), b.scalar(half), out="y")
        elif form == "half first":
            b.node("Mul", x, b.node("Mul", added, b.scalar(half)), out="y")
        else:
            b.node("Mul", b.node("Mul", x, b.scalar(half)), added, out="y")
    b.output("y", ["batch", 8])
    return b


def with_layer_norm(opset: int) -> ModelBuilder:
    """A Gelu behind a mean whose axes are an attribute up to opset 17."""
    b = ModelBuilder(opset)
    x = b.node("MatMul", b.input("x", ["batch", 8]), b.weight(8, 8))
    x = b.node("Sub", x, b.node("ReduceMean", x, axes=[-1], keepdims=1))
    added = b.node("Add", b.node("Erf", b.node("Div", x, b.scalar(math.sqrt(2)))), b.scalar(1.0))
    b.node("Mul", b.node("Mul", x, added), b.scalar(0.5), out="y")
    b.output("y", ["batch", 8])
    return b


def types(builder: ModelBuilder) -> list[str]:
    return [node.op_type for node in join(normalize(builder.build()), GELU).nodes]


@pytest.mark.crossed
@pytest.mark.parametrize("opset", [13, 17, 20, 21])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_joined(form: str, opset: int) -> None:
    graph = normalize(written_out(form, opset).build())
    joined = join(graph, GELU)
    assert [node.op_type for node in joined.nodes] == ["MatMul", "Gelu"]
    assert joined.opset == max(opset, 20)
    x = {"x": np.random.default_rng(1).normal(0, 2, (16, 8)).astype(np.float32)}
    wanted, found = FloatModel(graph, threads=1).run(x), FloatModel(joined, threads=1).run(x)
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", [{"root": 1.5}, {"half": 0.4}, {"one": 1.1}])
@pytest.mark.parametrize("form", FORMS)
def test_other_constants_are_another_function(form: str, wrong: dict[str, float]) -> None:
    assert "Erf" in types(written_out(form, 17, **wrong))


def approximated(form: str, opset: int = 17, *, cube: float = 0.044715) -> ModelBuilder:
    """The approximation by Tanh, as libraries multiply it out; the data is a sum itself."""
    b = ModelBuilder(opset)
    x = b.node("MatMul", b.input("x", ["batch", 8]), b.weight(8, 8))
    x = b.node("Add", x, b.weight(8))
    root, third = b.scalar(math.sqrt(2 / math.pi)), b.scalar(cube)
    half, one = b.scalar(0.5), b.scalar(1.0)
    if form == "power":
        inner = b.node(
            "Mul", root, b.node("Add", x, b.node("Mul", third, b.node("Pow", x, b.scalar(3))))
        )
    elif form == "cube":
        part = b.node("Mul", x, b.node("Mul", x, b.node("Mul", third, x)))
        inner = b.node("Mul", root, b.node("Add", x, part))
    else:
        squared = b.node("Mul", third, b.node("Mul", x, x))
        inner = b.node("Mul", b.node("Mul", x, root), b.node("Add", one, squared))
    tanh = b.node("Add", one, b.node("Tanh", inner))
    if form == "cube":
        b.node("Mul", x, b.node("Mul", half, tanh), out="y")
    else:
        b.node("Mul", b.node("Mul", half, x), tanh, out="y")
    b.output("y", ["batch", 8])
    return b


@pytest.mark.parametrize("form", ["power", "cube", "square"])
def test_the_approximation_is_joined_however_it_is_multiplied_out(form: str) -> None:
    graph = normalize(approximated(form).build())
    joined = join(graph, GELU)
    assert [node.op_type for node in joined.nodes] == ["Gemm", "Gelu"]
    x = {"x": np.random.default_rng(1).normal(0, 2, (16, 8)).astype(np.float32)}
    wanted, found = FloatModel(graph, threads=1).run(x), FloatModel(joined, threads=1).run(x)
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-5, atol=1e-6)
    assert "Tanh" in types(approximated(form, cube=0.05))


def test_what_others_see_stays() -> None:
    b = written_out("half last")
    b.output("erf")
    assert "Erf" in types(b)
    b = written_out("half last")
    b.node("Relu", "erf", out="z")
    b.output("z")
    assert "Gelu" not in types(b)


def test_a_graph_without_any_is_returned_as_it_is() -> None:
    graph = normalize(written_out("half last", one=2.0).build())
    assert join(graph, GELU) is graph


@pytest.mark.parametrize("opset", [13, 14, 17])
def test_attributes_that_become_inputs_are_initializers(opset: int) -> None:
    graph = normalize(with_layer_norm(opset).build())
    joined = join(graph, GELU)
    assert [node.op_type for node in joined.nodes] == ["MatMul", "ReduceMean", "Sub", "Gelu"]
    assert [node.name for node in joined.nodes[:3]] == [node.name for node in graph.nodes[:3]]
    axes = joined.nodes[1].inputs[1]
    assert axes is not None
    assert is_constant(axes)
    x = {"x": np.random.default_rng(1).normal(0, 2, (16, 8)).astype(np.float32)}
    wanted, found = FloatModel(graph, threads=1).run(x), FloatModel(joined, threads=1).run(x)
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-5, atol=1e-6)
