"""Zeros that are joined to a tensor become pads, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from intact.engines.session import FloatModel
from intact.graph import normalize
from tests.models import OPSETS, ModelBuilder
from tests.plans import op_types

SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3e38, 7], np.float32)


def joined(number: float, *, axis: int = 1, first: bool = False, opset: int = 17) -> ModelBuilder:
    b = ModelBuilder(opset)
    x = b.input("x", ["batch", 2, 4])
    zeros = b.constant(np.full((1, 3, 4), number, np.float32))
    b.node("Concat", *((zeros, x) if first else (x, zeros)), axis=axis, out="y")
    b.output("y", ["batch", 5, 4])
    return b


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(("first", "axis"), [(False, 1), (True, -2)])
def test_zeros_become_pads(opset: int, first: bool, axis: int) -> None:
    builder = joined(0.0, axis=axis, first=first, opset=opset)
    graph = normalize(builder.build())
    assert op_types(graph) == ["Pad"]
    x = SPECIAL.reshape(1, 2, 4)
    found = FloatModel(graph, threads=1).run({"x": x})["y"]
    zeros = np.zeros((1, 3, 4), np.float32)
    wanted = np.concatenate([zeros, x] if first else [x, zeros], axis=1)
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("number", [-0.0, 1.0, np.nan])
def test_other_numbers_stay(number: float) -> None:
    assert op_types(normalize(joined(number).build())) == ["Concat"]


def test_zeros_made_by_the_model_and_on_both_sides() -> None:
    b = ModelBuilder()
    x = b.input("x", [1, 8, 40, 50])
    zeros = b.node("ConstantOfShape", b.ints(1, 4, 40, 50))  # more than a few numbers
    b.node("Concat", zeros, x, zeros, axis=1, out="y")
    b.output("y", [1, 16, 40, 50])
    graph = normalize(b.build())
    assert op_types(graph) == ["Pad"]
    pads = graph.constant(graph.nodes[0].inputs[1])
    assert pads is not None
    assert pads.tolist() == [0, 4, 0, 0, 0, 4, 0, 0]


def test_two_tensors_and_integers_stay() -> None:
    b = ModelBuilder()
    x, z = b.input("x", ["batch", 2, 4]), b.input("z", ["batch", 2, 4])
    b.node("Concat", x, z, b.constant(np.zeros((1, 3, 4), np.float32)), axis=1, out="y")
    b.output("y")
    assert op_types(normalize(b.build())) == ["Concat"]
