"""Divisions by constants and squares are products, exact or one rounding away."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto

from intact.engines.session import FloatModel
from intact.graph import Graph, normalize
from tests.models import OPSETS, ModelBuilder
from tests.plans import op_types

F = np.float32


def special(count: int = 4000) -> npt.NDArray[np.float32]:
    """Numbers of every kind: random bits, and the ends of each kind."""
    bits = np.random.default_rng(0).integers(0, 2**32, count, np.uint64).astype(np.uint32)
    ends = [0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 1.2e-38, 3.4e38, -3.4e38, 1, 6]
    return np.concatenate([bits.view(F), np.array(ends, F)])


def model_of(op_type: str, constant: Any, opset: int = 17) -> ModelBuilder:
    b = ModelBuilder(opset)
    b.node(op_type, b.input("x", ["n"]), b.constant(constant), out="y")
    b.output("y", ["n"])
    return b


def results(graph: Graph) -> npt.NDArray[np.float32]:
    return np.asarray(FloatModel(graph, threads=1).run({"x": special()})["y"])


@pytest.mark.crossed
@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("divisor", [0.125, 4.0, -2.0, 2.0**100])
def test_division_by_a_power_of_two_is_exact(divisor: float, opset: int) -> None:
    graph = normalize(model_of("Div", F(divisor), opset).build())
    assert op_types(graph) == ["Mul"]
    with np.errstate(all="ignore"):
        wanted = special() / F(divisor)
    np.testing.assert_array_equal(results(graph), wanted)
    kept = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(results(graph))[kept], np.signbit(wanted)[kept])


@pytest.mark.parametrize("divisor", [6.0, 3.0, -0.7, 1.4142135, 1e30, 1e-30])
def test_other_divisors_differ_by_a_rounding(divisor: float) -> None:
    graph = normalize(model_of("Div", F(divisor)).build())
    assert op_types(graph) == ["Mul"]
    with np.errstate(all="ignore"):
        wanted, found = special() / F(divisor), results(graph)
        both = np.isfinite(wanted) & np.isfinite(found)
        steps = np.abs((found[both] - wanted[both]) / np.spacing(np.abs(wanted[both])))
    assert steps.max() <= 1
    beyond = np.isfinite(wanted) != np.isfinite(found)  # one rounding may reach infinity
    assert (np.abs(wanted[beyond & np.isfinite(wanted)]) > 3.4e38).all()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))


@pytest.mark.parametrize("divisor", [0.0, np.inf, np.nan, 1e-40, 3e38])
def test_divisors_without_a_normal_reciprocal_stay(divisor: float) -> None:
    assert op_types(normalize(model_of("Div", F(divisor)).build())) == ["Div"]


def test_integers_and_computed_divisors_stay() -> None:
    b = ModelBuilder()
    x = b.input("x", ["n"], TensorProto.INT64)
    b.node("Div", x, b.ints(2), out="y")
    b.node("Div", b.constant(F(1)), b.input("z", ["n"]), out="w")
    b.output("w", ["n"])
    b.node("Cast", "y", to=TensorProto.FLOAT, out="u")
    b.output("u", ["n"])
    assert sorted(op_types(normalize(b.build()))) == ["Cast", "Div", "Div"]


def test_a_divisor_by_channel_reaches_the_convolution() -> None:
    b = ModelBuilder()
    x = b.node("Conv", b.input("x", ["batch", 2, 4, 4]), b.weight(3, 2, 1, 1))
    b.node("Div", x, b.constant(np.array([2, 3, 4], F).reshape(3, 1, 1)), out="y")
    b.output("y")
    assert op_types(normalize(b.build())) == ["Conv"]


@pytest.mark.parametrize("opset", OPSETS)
def test_a_square_is_a_product(opset: int) -> None:
    graph = normalize(model_of("Pow", F(2), opset).build())
    assert op_types(graph) == ["Mul"]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(results(graph), special() * special())


@pytest.mark.parametrize("exponent", [F(3), F(0.5), F(2).reshape(1, 1)])
def test_other_powers_stay(exponent: Any) -> None:
    b = ModelBuilder()
    b.node("Pow", b.input("x", ["n"]), b.constant(exponent), out="y")
    b.output("y")
    assert op_types(normalize(b.build())) == ["Pow"]
