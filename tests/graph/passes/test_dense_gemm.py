"""Dense layers written as MatMul and Add."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from intact.graph import normalize
from tests.graph.test_normalize import assert_same_results
from tests.models import ModelBuilder


@pytest.mark.parametrize("shape", [(6,), (1, 6)])
@pytest.mark.parametrize("bias_first", [False, True])
def test_matmul_and_bias_become_one_gemm(bias_first: bool, shape: tuple[int, ...]) -> None:
    b = ModelBuilder()
    x = b.node("MatMul", b.input("x", ["batch", 4]), b.weight(4, 6), name="dense")
    bias = b.constant(np.linspace(-1, 1, 6, dtype=np.float32).reshape(shape))
    b.node("Add", *((bias, x) if bias_first else (x, bias)), out="y")
    b.output("y")
    graph = normalize(b.build())
    assert [(node.name, node.op_type) for node in graph.nodes] == [("dense", "Gemm")]
    bias_array = graph.constant(graph.node("dense").inputs[2])
    assert bias_array is not None
    assert bias_array.shape == (6,)
    assert_same_results(b.build(), graph)


def test_a_normalization_behind_it_is_folded_too() -> None:
    b = ModelBuilder()
    x = b.node("MatMul", b.input("x", ["batch", 4]), b.weight(4, 6))
    b.batch_norm(b.node("Add", x, b.weight(6)), 6, out="y")
    b.output("y")
    graph = normalize(b.build())
    assert [node.op_type for node in graph.nodes] == ["Gemm"]
    assert_same_results(b.build(), graph)


@pytest.mark.parametrize(
    ("data", "weight", "bias"),
    [
        (["batch", 3, 4], (4, 6), (6,)),  # more than two axes
        ([2, 4], (4, 6), (2, 6)),  # differs by row
        ([2, 4], (4, 6), (2, 1)),
        ([2, 4], (4, 6), (3, 2, 6)),  # adds an axis
        ([2, 4], (4, 1), (6,)),  # widens the result
        ([2, 4], (5, 4, 6), (6,)),
    ],
)
def test_other_products_and_sums_stay(
    data: list[int | str], weight: tuple[int, ...], bias: tuple[int, ...]
) -> None:
    b = ModelBuilder()
    x = b.node("MatMul", b.input("x", data), b.weight(*weight))
    b.node("Add", x, b.constant(np.ones(bias, np.float32)), out="y")
    b.output("y")
    assert [node.op_type for node in normalize(b.build()).nodes] == ["MatMul", "Add"]


def test_a_sum_adds_the_bias_as_well() -> None:
    b = ModelBuilder()
    x = b.node("MatMul", b.input("x", ["batch", 4]), b.weight(4, 6))
    b.node("Sum", x, b.weight(6), out="y")
    b.output("y")
    assert [node.op_type for node in normalize(b.build()).nodes] == ["Gemm"]


def test_products_of_integers_stay() -> None:
    b = ModelBuilder()
    x = b.node("Cast", b.input("x", [2, 4]), to=TensorProto.INT32)
    x = b.node("MatMul", x, b.constant(np.ones((4, 6), np.int32)))
    x = b.node("Add", x, b.constant(np.ones(6, np.int32)))
    b.node("Cast", x, to=TensorProto.FLOAT, out="y")
    b.output("y")
    graph = normalize(b.build())
    assert [node.op_type for node in graph.nodes] == ["Cast", "MatMul", "Add", "Cast"]


def test_products_that_others_read_stay() -> None:
    b = ModelBuilder()
    x = b.node("MatMul", b.input("x", ["batch", 4]), b.weight(4, 6))
    b.node("Mul", b.node("Add", x, b.weight(6)), x, out="y")
    b.output("y")
    assert [node.op_type for node in normalize(b.build()).nodes] == ["MatMul", "Add", "Mul"]
