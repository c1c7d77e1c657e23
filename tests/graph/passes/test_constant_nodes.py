"""Nodes that read constants alone are computed as ONNX Runtime computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from intact.graph import normalize
from tests.models import ModelBuilder, run_model


@pytest.mark.parametrize(
    ("operator", "shape", "opset", "attributes"),
    [
        ("GlobalMaxPool", (8, 3, 4), 17, {}),
        ("GlobalMaxPool", (8, 2, 1, 1, 8), 17, {}),
        ("MaxPool", (1, 2, 5, 7), 17, {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        ("AveragePool", (1, 2, 6), 17, {"kernel_shape": [3], "pads": [0, 1]}),
        ("Softmax", (2, 3, 4, 5), 11, {"axis": 1}),
        ("LogSoftmax", (2, 3, 4), 11, {"axis": 1}),
        ("LpNormalization", (2, 3, 4), 17, {"axis": 1, "p": 1}),
        ("LRN", (1, 4, 3, 3), 17, {"size": 3, "alpha": 0.5}),
        ("Elu", (2, 3), 17, {"alpha": 0.3}),
    ],
)
def test_node_of_constants_becomes_what_the_runtime_computes(
    operator: str, shape: tuple[int, ...], opset: int, attributes: dict[str, Any]
) -> None:
    b = ModelBuilder(opset)
    made = b.node(operator, b.weight(*shape), **attributes)
    b.output(b.node("Neg", b.node("Add", b.input("x", ["N"]), b.node("Neg", made))))
    model = b.build()
    feeds = {"x": np.array([0.5], np.float32)}
    (expected,) = run_model(model, feeds).values()
    graph = normalize(model)
    assert [node.op_type for node in graph.nodes] == ["Add", "Neg"]
    (found,) = run_model(ir.to_proto(graph.model), feeds).values()
    np.testing.assert_array_equal(found, expected)


def test_node_that_the_runtime_refuses_stays() -> None:
    b = ModelBuilder()
    made = b.node("MaxPool", b.weight(2, 2), kernel_shape=[1])
    b.output(b.node("Add", b.input("x", ["N"]), made))
    assert "MaxPool" in [node.op_type for node in normalize(b.build()).nodes]


def test_packed_weights_are_split() -> None:
    b = ModelBuilder(18)
    first, second = b.split(b.weight(12, 8), [4, 8], 0)
    x = b.input("x", ["N", 8])
    b.output(b.node("Gemm", x, first, transB=1))
    b.output(b.node("Gemm", x, second, transB=1))
    model = b.build()
    graph = normalize(model)
    assert [node.op_type for node in graph.nodes] == ["Gemm", "Gemm"]
    feeds = {"x": np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)}
    for found, expected in zip(
        run_model(ir.to_proto(graph.model), feeds).values(),
        run_model(model, feeds).values(),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)
