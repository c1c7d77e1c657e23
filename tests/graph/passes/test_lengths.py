"""Shapes of Reshape targets that are computed follow from the inputs' shapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.graph import normalize
from intact.graph.passes.lengths import learn_shapes
from intact.graph.passes.library import infer_shapes
from tests import models
from tests.models import ModelBuilder


def by_slice(b: ModelBuilder, x: str) -> str:
    """``[batch, 3, -1]``, as Paddle writes it."""
    shape = b.node("Cast", b.node("Cast", b.node("Shape", x), to=6), to=7)
    head = b.node("Slice", shape, b.ints(0), b.ints(2), b.ints(0))
    return b.node("Concat", head, b.ints(-1), axis=0)


def by_gather(b: ModelBuilder, x: str) -> str:
    """``[batch, 3, 20]``, as torch writes it."""
    shape = b.node("Shape", x)
    batch, channels = (
        b.node("Unsqueeze", b.node("Gather", shape, b.constant(np.int64(axis))), b.ints(0))
        for axis in (0, -3)
    )
    return b.node("Concat", batch, channels, b.ints(20), axis=0)


def by_matrix(b: ModelBuilder, x: str) -> str:
    """``[3, -1]``: the first row of a matrix of lengths is two numbers and not one."""
    lengths = b.node("Concat", b.ints(3), b.ints(-1), b.node("Shape", x), axis=0)
    rows = b.node("Reshape", lengths, b.ints(3, 2))
    return b.node("Reshape", b.node("Gather", rows, b.ints(0)), b.ints(-1))


def by_arithmetic(b: ModelBuilder, x: str) -> str:
    """Two lengths of which nothing is known but that there are two."""
    batch, rest = (b.node("Gather", b.node("Shape", x), b.ints(axis)) for axis in (0, 1))
    return b.node("Concat", b.node("Mul", batch, rest), b.ints(-1), axis=0)


def reshaped(target: Callable[[ModelBuilder, str], str], shape: list[int | str]) -> onnx.ModelProto:
    b = ModelBuilder(17)
    x = b.node("Relu", b.input("x", shape))
    b.node("Reshape", x, target(b, x), out="y")
    b.output("y")
    return b.build()


@pytest.mark.parametrize(
    ("target", "shape", "constant", "found"),
    [
        (by_slice, ["batch", 3, "h", "w"], [0, 3, -1], "[batch,3,?]"),
        (by_slice, ["batch", 3, 4, 5], [0, 3, -1], "[batch,3,20]"),
        (by_gather, ["batch", 3, 4, 5], [-1, 3, 20], "[batch,3,20]"),
        (by_arithmetic, ["batch", "c", 4, 5], None, "[?,?]"),
    ],
)
def test_what_is_known_of_a_target(
    target: Callable[[ModelBuilder, str], str],
    shape: list[int | str],
    constant: list[int] | None,
    found: str,
) -> None:
    source = reshaped(target, shape)
    graph = normalize(source)
    result = graph.outputs[0].shape
    assert result is not None
    assert str(result).replace("None", "?") == found
    array = graph.constant(graph.nodes[-1].inputs[1])
    if constant is None:
        assert array is None
    else:
        assert array is not None
        assert array.tolist() == constant
    feeds = {"x": np.random.default_rng(1).normal(size=(2, 3, 4, 5)).astype(np.float32)}
    before, after = (models.run_model(m, feeds)["y"] for m in (source, ir.to_proto(graph.model)))
    np.testing.assert_array_equal(after, before)


def test_a_row_of_a_matrix_is_not_one_length() -> None:
    model = ir.from_proto(reshaped(by_matrix, ["batch", "c", 4, 5]))
    infer_shapes(model)
    result = model.graph.outputs[0]
    result.shape = None
    assert learn_shapes(model)
    assert result.shape == ir.Shape([None, None])  # and not [3]


@pytest.mark.parametrize("places", [1, -2, [1], [1, 2]])
def test_known_lengths_beside_an_open_one_are_constants(places: object) -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 3, 4])
    found = b.node("Gather", b.node("Shape", x), b.constant(np.array(places, np.int64)))
    b.node("Mul", b.node("Cast", found, to=1), b.node("ReduceSum", x, keepdims=0), out="y")
    b.output("y")
    source = b.build()
    graph = normalize(source)
    assert not {"Shape", "Gather"} & {node.op_type for node in graph.nodes}
    feeds = models.random_inputs(source, batch=2)
    expected = models.run_model(source, feeds, ["y"])["y"]
    found_y = models.run_model(ir.to_proto(graph.model), feeds, ["y"])["y"]
    np.testing.assert_array_equal(found_y, expected)


def test_an_open_length_is_still_computed() -> None:
    b = ModelBuilder()
    x = b.input("x", ["batch", 3])
    found = b.node("Gather", b.node("Shape", x), b.ints(0, 1))
    b.node("Mul", b.node("Cast", found, to=1), b.node("ReduceSum", x, keepdims=0), out="y")
    b.output("y")
    assert {"Shape", "Gather"} <= {node.op_type for node in normalize(b.build()).nodes}
