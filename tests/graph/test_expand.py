"""Taking operators apart: the same numbers, other operators."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest

import intact
from intact.engines.session import FloatModel
from intact.errors import UsageError
from intact.graph import Graph, normalize
from intact.graph.passes.expand import expand
from tests.models import OPSETS, ModelBuilder

SINCE = 17


def normed(opset: int, *, axis: int = -1, bias: bool = True, twice: bool = False) -> Graph:
    b = ModelBuilder(opset)
    x = b.input("x", ["batch", 5, 8])
    size = (8,) if axis in (-1, 2) else (5, 8)
    extra = [b.weight(*size)] if bias else []
    y = b.node("LayerNormalization", x, b.weight(*size), *extra, axis=axis, epsilon=1e-3, name="ln")
    if twice:
        y = b.node("LayerNormalization", y, b.weight(8), name="ln_again")
    b.node("Relu", y, out="y")
    b.output("y", ["batch", 5, 8])
    return normalize(b.build())


def types(graph: Graph) -> Counter[str]:
    return Counter(node.op_type for node in graph.nodes)


@pytest.mark.parametrize("opset", [opset for opset in OPSETS if opset >= SINCE])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_norm_computes_the_same(opset: int, bias: bool, axis: int) -> None:
    graph = normed(opset, axis=axis, bias=bias, twice=True)
    expanded = expand(graph, ["LayerNormalization"])
    assert types(expanded)["LayerNormalization"] == 0
    assert types(expanded)["ReduceMean"] == 4
    x = {"x": np.random.default_rng(0).normal(2, 3, (4, 5, 8)).astype(np.float32)}
    wanted, found = FloatModel(graph, threads=1).run(x), FloatModel(expanded, threads=1).run(x)
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-5, atol=1e-6)


def test_names_and_shapes_survive_and_the_source_does_not_change() -> None:
    graph = normed(17)
    before = graph.hash
    expanded = expand(graph, ["LayerNormalization"])
    assert graph.hash == before
    names = {str(value.name) for value in graph.values if value.producer() is not None}
    assert names <= {str(value.name) for value in expanded.values}
    assert all(value.shape is not None for value in expanded.values)
    normalize(expanded.model)


def test_what_hands_out_its_mean_stays() -> None:
    b = ModelBuilder(17)
    x = b.input("x", ["batch", 8])
    b.node("LayerNormalization", x, b.weight(8), out="y", name="ln")
    b.nodes[-1].output.append("mean")
    b.output("y")
    b.output("mean")
    graph = normalize(b.build())
    assert types(expand(graph, ["LayerNormalization"])) == {"LayerNormalization": 1}


def test_nothing_to_do_is_nothing_done() -> None:
    graph = normed(17)
    assert expand(graph, []) is graph


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(UsageError, match=r"LayerNormalizatoin.*LayerNormalization"):
        expand(normed(17), ["LayerNormalizatoin"])


SPECIAL = np.array([0, -0.0, 1e-45, -1e-40, np.inf, -np.inf, 3.4e38, -2.5, 2.5], np.float32)


@pytest.mark.parametrize("opset", OPSETS)
def test_hard_sigmoid_computes_the_same(opset: int) -> None:
    b = ModelBuilder(opset)
    b.node("HardSigmoid", b.input("x", ["n"]), alpha=1 / 6, beta=0.4, out="y")
    b.output("y", ["n"])
    graph = normalize(b.build())
    expanded = expand(graph, ["HardSigmoid"])
    assert [node.op_type for node in expanded.nodes] == ["Mul", "Add", "Clip"]
    x = np.concatenate([SPECIAL, np.random.default_rng(0).normal(0, 3, 200).astype(np.float32)])
    wanted = FloatModel(graph, threads=1).run({"x": x})["y"]
    found = FloatModel(expanded, threads=1).run({"x": x})["y"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=6e-8)


def test_a_hard_sigmoid_goes_into_the_layer_in_front() -> None:
    b = ModelBuilder(17)
    x = b.node("Conv", b.input("x", ["batch", 4, 2, 2]), b.weight(6, 4, 1, 1))
    b.node("HardSigmoid", x, out="y")
    b.output("y", ["batch", 6, 2, 2])
    graph = normalize(b.build())
    expanded = expand(graph, ["HardSigmoid"])
    assert [node.op_type for node in expanded.nodes] == ["Conv", "Clip"]
    feeds = {"x": np.random.default_rng(0).normal(0, 9, (3, 4, 2, 2)).astype(np.float32)}
    wanted = FloatModel(graph, threads=1).run(feeds)["y"]
    found = FloatModel(expanded, threads=1).run(feeds)["y"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_a_computed_divisor_becomes_a_factor() -> None:
    b = ModelBuilder(17)
    b.node("Div", b.input("x", ["n"]), b.input("z", ["n"]), out="y")
    b.output("y", ["n"])
    graph = normalize(b.build())
    expanded = expand(graph, ["Div"])
    assert [node.op_type for node in expanded.nodes] == ["Reciprocal", "Mul"]
    random = np.random.default_rng(0).normal(0, 3, (2, 200)).astype(np.float32)
    feeds = {"x": random[0], "z": random[1]}
    wanted = FloatModel(graph, threads=1).run(feeds)["y"]
    found = FloatModel(expanded, threads=1).run(feeds)["y"]
    np.testing.assert_allclose(found, wanted, rtol=3e-7)


def powered(exponent: npt.ArrayLike) -> Graph:
    b = ModelBuilder(17)
    b.node("Pow", b.input("x", ["batch", 5]), b.constant(exponent), out="y", name="power")
    b.output("y", ["batch", 5])
    return normalize(b.build())


@pytest.mark.parametrize(("exponent", "products"), [(3, 2), (4, 2)])
def test_small_powers_are_products(exponent: int, products: int) -> None:
    graph = powered(np.float32(exponent))
    expanded = expand(graph, ["Pow"])
    assert types(expanded) == {"Mul": products}
    x = {"x": np.random.default_rng(0).normal(0, 3, (4, 5)).astype(np.float32)}
    wanted, found = FloatModel(graph, threads=1).run(x), FloatModel(expanded, threads=1).run(x)
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=3e-7)


@pytest.mark.parametrize("exponent", [0.5, -1.0, 5.0, [3.0] * 5, [[[3.0]]]])
def test_other_powers_stay(exponent: npt.ArrayLike) -> None:
    graph = powered(np.asarray(exponent, np.float32))
    assert "Pow" in types(expand(graph, ["Pow"]))


@pytest.mark.parametrize("target", ["tflite", "tflite-micro", "tvm", "ncnn"])
def test_targets_without_powers_take_a_cube(target: str) -> None:
    b = ModelBuilder(17)
    x = b.node("MatMul", b.input("x", ["batch", 8]), b.weight(8, 8))
    b.node("MatMul", b.node("Pow", x, b.scalar(3)), b.weight(8, 4), out="y")
    b.output("y", ["batch", 4])
    data = {"x": np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)}
    result = intact.quantize(b.build(), data, target=target)
    assert "Pow" not in types(result.plan.graph)
