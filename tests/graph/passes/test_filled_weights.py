"""Weights made by ConstantOfShape are constants after normalization."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from intact.graph import normalize
from tests.graph.test_normalize import assert_same_results
from tests.models import ModelBuilder


def filled(b: ModelBuilder, number: float, *shape: int) -> str:
    value = numpy_helper.from_array(np.array([number], np.float32))
    return b.node("ConstantOfShape", b.ints(*shape), value=value)


def op_types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in normalize(model).nodes]


def test_weights_of_any_size_and_small_constants_are_computed() -> None:
    b = ModelBuilder()
    x = b.node("Flatten", b.input("x", ["batch", 70, 8, 8]))
    weight = filled(b, 0.01, 4480, 5)
    b.node("Gemm", x, weight, filled(b, 0.5, 5), out="y")
    b.output("y", ["batch", 5])
    model = b.build()
    graph = normalize(model)
    assert [node.op_type for node in graph.nodes] == ["Flatten", "Gemm"]
    stored = graph.constant(graph.value(weight))
    assert stored is not None
    assert (stored.shape, str(stored.dtype)) == ((4480, 5), "float32")
    assert (stored == np.float32(0.01)).all()
    assert_same_results(model, graph)


def test_weights_that_are_moved_first_are_computed_too() -> None:
    b = ModelBuilder()
    weight = b.node("Reshape", filled(b, 0.1, 5, 5, 20, 20), b.ints(25, 400))
    weight = b.node("Transpose", weight, perm=[1, 0])
    b.node("MatMul", b.input("x", ["batch", 400]), weight, out="y")
    b.output("y")
    assert op_types(b.build()) == ["MatMul"]


def test_large_constants_that_are_no_weights_stay() -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 2000, 1000])
    b.node("Add", x, filled(b, 2, 2000, 1000), out="y")
    b.output("y")
    assert op_types(b.build()) == ["ConstantOfShape", "Add"]


def test_what_would_not_fit_into_memory_is_not_computed() -> None:
    b = ModelBuilder()
    b.node("MatMul", b.input("x", ["batch", 2**40]), filled(b, 1, 2**40, 2), out="y")
    b.output("y")
    assert op_types(b.build()) == ["ConstantOfShape", "MatMul"]


def test_graph_outputs_and_computed_shapes_stay() -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 3])
    b.node("ConstantOfShape", b.ints(2), out="zeros")
    b.node("Add", x, b.node("ConstantOfShape", b.node("Shape", x)), out="y")
    b.output("zeros", [2])
    b.output("y")
    assert op_types(b.build()).count("ConstantOfShape") == 2


def test_sizes_may_be_computed_by_the_model() -> None:
    b = ModelBuilder()
    sizes = b.node("Concat", b.ints(100), b.ints(50), axis=0)
    b.node("MatMul", b.input("x", ["batch", 100]), b.node("ConstantOfShape", sizes), out="y")
    b.output("y")
    assert op_types(b.build()) == ["MatMul"]


def test_all_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["intact.graph.normalization"], "MOST_FILLED", 250)
    b = ModelBuilder()
    x = b.input("x", ["batch", 10])
    for _ in range(3):
        x = b.node("MatMul", x, filled(b, 1, 10, 10))
    b.node("Relu", x, out="y")
    b.output("y")
    assert op_types(b.build()) == ["MatMul", "MatMul", "ConstantOfShape", "MatMul", "Relu"]


def test_a_weight_may_pass_any_number_of_moves() -> None:
    b = ModelBuilder()
    weight = filled(b, 1, 100, 50)
    for _ in range(1100):
        weight = b.node("Identity", weight)
    b.node("MatMul", b.input("x", ["batch", 100]), weight, out="y")
    b.output("y")
    assert op_types(b.build()) == ["MatMul"]
