"""Graphs under construction."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.graph.builder import GraphBuilder, typed_value


def test_builder_numbers_names_that_are_in_use() -> None:
    builder = GraphBuilder()
    x = builder.input("x", ir.DataType.FLOAT, ["batch", 3])
    first = builder.node("Relu", [x], "x")
    second = builder.node("Add", [first, builder.initializer("x", np.zeros(3, np.float32))], "y")
    graph = builder.graph([second], opset=18, name="g")
    assert [node.name for node in graph] == ["x_2", "y"]
    assert list(graph.initializers) == ["x_3"]
    assert graph.opset_imports == {"": 18}


def test_builder_shares_equal_constants() -> None:
    builder = GraphBuilder()
    assert builder.integers(1, 2) is builder.integers(1, 2)
    assert builder.number(6) is builder.number(6.0)
    assert builder.floats(1.0) is not builder.number(1.0)
    assert list(builder.initializers) == ["sizes", "number", "numbers", "number_2"]


def test_builder_keeps_the_shape_of_scalars() -> None:
    constant = GraphBuilder().constant("c", np.float32(2))
    assert constant.shape == ir.Shape([])


def test_builder_leaves_out_attributes_of_none() -> None:
    builder = GraphBuilder()
    x = builder.input("x", ir.DataType.FLOAT, [4])
    outputs = [typed_value("a"), typed_value("b")]
    node = builder.add("Split", [x], outputs, {"axis": 0, "num_outputs": None}, name="split")
    assert list(node.attributes) == ["axis"]
    assert builder.nodes == [node]
