"""Shapes and indices are found, data is not."""

from __future__ import annotations

import numpy as np

from intact.graph import normalize
from tests import models


def test_detector_sizes() -> None:
    graph = normalize(models.detector())
    found = graph.shape_or_index_values
    for node in graph.nodes:
        is_shape = node.op_type in {"Shape", "Gather"} or node.name == "Concat_concat_23"
        assert all((value.name in found) == is_shape for value in node.outputs), node.name
    assert "image" not in found
    scales = next(node for node in graph.nodes if node.op_type == "Resize").inputs[2]
    assert scales is not None
    assert scales.name in found


def test_floats_that_end_in_a_shape() -> None:
    builder = models.ModelBuilder(17)
    x = builder.input("x", ["batch", 1, "height", "width"])
    size = builder.node("Cast", builder.node("Shape", x), out="float_size", to=1)
    factor = builder.constant(np.array([1, 1, 2, 2], dtype=np.float32), "factor")
    scaled = builder.node("Mul", size, factor, out="scaled")
    target = builder.node("Cast", scaled, out="target", to=7)
    builder.node("Resize", x, "", "", target, out="y", mode="nearest")
    builder.output("y")
    graph = normalize(builder.build())
    assert graph.shape_or_index_values >= {"float_size", "factor", "scaled", "target"}
    assert not graph.shape_or_index_values & {"x", "y"}


def test_data_whose_index_is_a_result() -> None:
    builder = models.ModelBuilder(17)
    x = builder.input("x", ["batch", 4])
    logits = builder.node("MatMul", x, builder.weight(4, 3), out="logits")
    builder.node("Cast", builder.node("ArgMax", logits, axis=1, out="label"), out="y", to=1)
    builder.output("y")
    assert normalize(builder.build()).shape_or_index_values == {"label"}


def test_what_routes_is_an_index_but_not_what_is_multiplied() -> None:
    builder = models.ModelBuilder(17)
    x = builder.input("x", ["batch", 4])
    scores = builder.node("MatMul", x, builder.weight(4, 3, name="w"), out="scores")
    index = builder.node("ArgMax", scores, axis=1, out="index", keepdims=0)
    builder.node("Gather", builder.weight(3, 4), index, out="y")
    builder.output("y")
    found = normalize(builder.build()).shape_or_index_values
    assert {"scores", "index"} <= found
    assert not {"x", "w", "y"} & found


def test_unknown_operators_and_bodies_read_data() -> None:
    graph = normalize(models.custom_domain())
    assert graph.shape_or_index_values == frozenset()
    graph = normalize(models.control_flow())
    assert "image" not in graph.shape_or_index_values


def test_zero_readers_and_outputs_are_data() -> None:
    graph = normalize(models.shared_ports())
    assert graph.shape_or_index_values == frozenset()
