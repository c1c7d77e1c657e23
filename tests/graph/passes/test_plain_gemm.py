"""Gemm's factors go into its constants."""

from __future__ import annotations

import numpy as np
import pytest

from intact.graph import normalize
from tests.graph.test_normalize import assert_same_results
from tests.models import ModelBuilder


@pytest.mark.parametrize("bias_shape", [None, (), (1,), (4,), (1, 4), (2, 4), (2, 1)])
@pytest.mark.parametrize("transposed", [0, 1])
def test_factors_disappear(bias_shape: tuple[int, ...] | None, transposed: int) -> None:
    builder = ModelBuilder()
    x = builder.input("x", [2, 3])
    weight = builder.weight(*((4, 3) if transposed else (3, 4)), name="w")
    biases = [] if bias_shape is None else [builder.constant(np.ones(bias_shape, np.float32), "c")]
    builder.node("Gemm", x, weight, *biases, out="y", alpha=0.25, beta=-2.0, transB=transposed)
    builder.output("y")
    graph = normalize(builder.build())
    (gemm,) = graph.nodes
    assert gemm.attributes.get_float("alpha", 1.0) == 1.0
    if bias_shape is not None:
        assert gemm.attributes.get_float("beta", 1.0) == 1.0
        bias = graph.constant(gemm.inputs[2])
        assert bias is not None
        assert bias.shape == (bias_shape if bias_shape in {(2, 4), (2, 1)} else (4,))
    assert [value.name for value in gemm.inputs if value][:2] == ["x", "w"]
    assert_same_results(builder.build(), graph)


def test_weights_that_others_read_are_not_scaled() -> None:
    builder = ModelBuilder()
    x = builder.input("x", ["batch", 3])
    weight = builder.weight(3, 3, name="w")
    left = builder.node("Gemm", x, weight, alpha=2.0)
    builder.node("Add", left, builder.node("MatMul", x, weight), out="y")
    builder.output("y")
    graph = normalize(builder.build())
    assert "w" in {value.name for value in graph.values}
    assert_same_results(builder.build(), graph)


def test_weight_on_the_left() -> None:
    builder = ModelBuilder()
    x = builder.input("x", [3, 2])
    builder.node(
        "Gemm", builder.weight(4, 3), x, builder.weight(4, 1), out="y", alpha=3.0, beta=2.0
    )
    builder.output("y")
    assert_same_results(builder.build(), normalize(builder.build()))
