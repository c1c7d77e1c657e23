"""LayerNormalization and Softmax written out, and near misses."""

from __future__ import annotations

import numpy as np
import pytest

from intact.engines.session import FloatModel
from intact.graph import Graph, normalize
from intact.graph.passes.joins import JOINS, join
from tests.models import ModelBuilder
from tests.plans import op_types

LAYER_NORM, SOFTMAX = JOINS["LayerNormalization"], JOINS["Softmax"]
OPSETS = (11, 13, 17, 18)


def normed(
    opset: int, *, scale: bool = True, bias: bool = True, square: str = "Pow", axis: int = -1
) -> ModelBuilder:
    b = ModelBuilder(opset)
    x = b.input("x", ["batch", 5, 8])
    centred = b.node("Sub", x, b.mean(x, [axis], keepdims=1))
    other = b.scalar(2.0) if square == "Pow" else centred
    variance = b.mean(b.node(square, centred, other), [axis], keepdims=1)
    root = b.node("Sqrt", b.node("Add", variance, b.scalar(1e-3)))
    y = b.node("Div", centred, root)
    y = b.node("Mul", y, b.weight(8)) if scale else y
    y = b.node("Add", b.weight(8), y) if bias else y
    b.node("Relu", y, out="y")
    b.output("y", ["batch", 5, 8])
    return b


def assert_alike(graph: Graph, other: Graph, shape: tuple[int, ...]) -> None:
    for factor in (1.0, 1e-3, 1e3):
        x = {"x": np.random.default_rng(0).normal(2, 3, shape).astype(np.float32) * factor}
        wanted, found = FloatModel(graph, threads=1).run(x), FloatModel(other, threads=1).run(x)
        np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.crossed
@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(("scale", "bias"), [(True, True), (True, False), (False, True), (0, 0)])
def test_layer_norm_is_joined(opset: int, scale: bool, bias: bool) -> None:
    graph = normalize(normed(opset, scale=scale, bias=bias).build())
    joined = join(graph, LAYER_NORM)
    assert op_types(joined) == ["LayerNormalization", "Relu"]
    assert_alike(graph, joined, (4, 5, 8))


def test_a_square_may_be_a_product() -> None:
    graph = normalize(normed(17, square="Mul").build())
    assert op_types(join(graph, LAYER_NORM)) == ["LayerNormalization", "Relu"]


def test_other_axes_are_something_else() -> None:
    graph = normalize(normed(17, axis=1).build())
    assert join(graph, LAYER_NORM) is graph


def softmaxed(opset: int, *, keepdims: int = 1, shift: bool = True, axis: int = -1) -> ModelBuilder:
    b = ModelBuilder(opset)
    x = b.input("x", [3, 8])

    def reduced(op_type: str, value: str) -> str:
        is_input = opset >= (13 if op_type == "ReduceSum" else 18)
        if is_input:
            found = b.node(op_type, value, b.ints(axis), keepdims=keepdims)
        else:
            found = b.node(op_type, value, axes=[axis], keepdims=keepdims)
        return found if keepdims else b.node("Reshape", found, b.ints(3, 1))

    powers = b.node("Exp", b.node("Sub", x, reduced("ReduceMax", x)) if shift else x)
    b.node("Div", powers, reduced("ReduceSum", powers), out="y")
    b.output("y", [3, 8])
    return b


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_softmax_is_joined(opset: int, keepdims: int) -> None:
    graph = normalize(softmaxed(opset, keepdims=keepdims).build())
    joined = join(graph, SOFTMAX)
    assert op_types(joined) == ["Softmax"]
    assert_alike(graph, joined, (3, 8))


def test_near_misses_stay() -> None:
    for builder in (softmaxed(17, shift=False), softmaxed(17, axis=0)):
        graph = normalize(builder.build())
        assert join(graph, SOFTMAX) is graph


def by_moments(axis: int, *, relu: bool = False, wrong: str = "") -> ModelBuilder:
    """As Flax's exports have it: sums times 1 / n, and axes that go and come back."""
    b = ModelBuilder(17)
    x = b.input("x", ["batch", 6, 8])
    length = (6, 8)[axis - 1]
    row = [1, 1, 1]
    row[axis] = length

    def mean(value: str) -> str:
        total = b.node("ReduceSum", value, b.ints(axis), keepdims=0)
        return b.node("Mul", total, b.scalar(1 / length if wrong != "length" else 0.1))

    first = mean(x)
    second = mean(b.node("Mul", x, x if wrong != "square" else b.node("Neg", x)))
    variance = b.node("Sub", second, b.node("Mul", first, first))
    variance = b.node("Relu", variance) if relu else b.node("Max", b.scalar(0), variance)
    kept = b.node(
        "Reshape", variance, b.ints(-1, *(1 if k == axis else (6, 8)[k - 1] for k in (1, 2)))
    )
    root = b.node("Reciprocal", b.node("Sqrt", b.node("Add", kept, b.scalar(1e-3))))
    factor = b.node("Mul", root, b.weight(*row))
    centred = b.node("Sub", x, b.node("Unsqueeze", first, b.ints(axis)))
    y = b.node("Add", b.node("Mul", centred, factor), b.weight(*row))
    b.node("Relu", y, out="y")
    b.output("y", ["batch", 6, 8])
    return b


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(("axis", "turned"), [(1, ["Transpose"]), (2, [])])
def test_moments_are_joined(axis: int, turned: list[str], relu: bool) -> None:
    graph = normalize(by_moments(axis, relu=relu).build())
    joined = join(graph, LAYER_NORM)
    assert op_types(joined) == [*turned, "LayerNormalization", *turned, "Relu"]
    x = {"x": np.random.default_rng(0).normal(2, 3, (4, 6, 8)).astype(np.float32)}
    wanted, found = FloatModel(graph, threads=1).run(x), FloatModel(joined, threads=1).run(x)
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wrong", ["length", "square"])
def test_other_moments_stay(wrong: str) -> None:
    graph = normalize(by_moments(2, wrong=wrong).build())
    assert join(graph, LAYER_NORM) is graph
