"""Which means become pools."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from onnx import TensorProto

from intact.graph import Graph, normalize
from tests.graph.test_normalize import assert_same_results
from tests.models import OPSETS, ModelBuilder


def mean_of(
    shape: Sequence[int | str], axes: Sequence[int], keepdims: int, opset: int = 17
) -> Graph:
    builder = ModelBuilder(opset)
    x = builder.node("Relu", builder.input("x", shape))
    mean = builder.mean(x, axes, keepdims=keepdims)
    builder.node("Neg", mean, out="y")
    builder.output("y")
    return normalize(builder.build())


def op_types(graph: Graph) -> list[str]:
    return [node.op_type for node in graph.nodes][1:-1]


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("axes", [[2, 3], [3, 2], [-1, -2], [2, -1]])
def test_all_spatial_axes(axes: list[int], opset: int) -> None:
    graph = mean_of(["batch", 3, "h", 5], axes, 1, opset)
    assert op_types(graph) == ["GlobalAveragePool"]
    assert (graph.nodes[1].name or "").startswith("ReduceMean_")
    graph = mean_of(["batch", 3, "h", 5], axes, 0, opset)
    assert op_types(graph) == ["GlobalAveragePool", "Flatten"]


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        (["batch", 3, 4, 4], [2]),
        (["batch", 3, 4, 4], [1, 2, 3]),
        (["batch", 3, 4, 4], [0, 2]),
        (["batch", 7, 8], [2]),  # a mean over features, as in a LayerNormalization
        (["batch", 7, 8], [1]),
        (["batch", 7], [1]),
        ([1, 2, 3, 4, 5, 6], [2, 3, 4, 5]),
    ],
)
def test_other_means_stay(shape: list[int | str], axes: list[int]) -> None:
    assert op_types(mean_of(shape, axes, 1)) == ["ReduceMean"]


def test_unknown_rank_and_computed_axes_stay() -> None:
    builder = ModelBuilder(18)
    builder.input("x", ["batch", 3, 4, 4])
    builder.input("axes", [2], 7)
    builder.node("ReduceMean", "x", "axes", out="y")
    builder.node("ReduceMean", "x", out="z")
    builder.output("y")
    builder.output("z")
    assert [node.op_type for node in normalize(builder.build()).nodes] == ["ReduceMean"] * 2


def test_mean_as_graph_output_keeps_its_name() -> None:
    builder = ModelBuilder(17)
    builder.mean(builder.input("x", ["batch", 3, 4, 4]), [2, 3], keepdims=0)
    builder.output("reducemean_1")
    graph = normalize(builder.build())
    assert [value.name for value in graph.outputs] == ["reducemean_1"]
    assert [node.op_type for node in graph.nodes] == ["GlobalAveragePool", "Flatten"]


@pytest.mark.parametrize("dtype", [TensorProto.INT32, TensorProto.DOUBLE])
def test_means_of_what_no_runtime_pools_stay(dtype: int) -> None:
    builder = ModelBuilder()
    x = builder.node("Cast", builder.input("x", ["batch", 2, 4, 4]), to=dtype)
    x = builder.mean(x, [2, 3], keepdims=0)
    builder.node("Cast", x, to=TensorProto.FLOAT, out="y")
    builder.output("y")
    graph = normalize(builder.build())
    assert op_types(graph) == ["ReduceMean"]
    assert_same_results(builder.build(), graph)


def test_axes_that_do_not_exist_stay() -> None:
    assert "ReduceMean" in op_types(mean_of(["batch", 2, 4, 4], [6, 7], 1))
