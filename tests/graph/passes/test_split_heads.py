"""Queries, keys and values are sliced from the last axis, with the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from intact.engines.session import FloatModel
from intact.graph import Graph, normalize
from tests.models import ModelBuilder


def packed(
    take: str,
    *,
    order: tuple[int, ...] = (2, 0, 3, 1, 4),
    batch: int | str = "batch",
    first: int = 0,
) -> ModelBuilder:
    """Three parts of 2 heads of 4 in 24 numbers, for each of 5 positions."""
    b = ModelBuilder(17)
    x = b.input("x", [batch, 5, 24])
    split = b.node("Reshape", x, b.ints(first, 5, 3, 2, 4))
    moved = b.node("Transpose", split, perm=list(order))
    for index in (0, 1, -1):
        if take == "Gather":
            part = b.node("Gather", moved, b.constant(np.array(index)), axis=0)
        else:
            start = index % 3
            part = b.node("Slice", moved, b.ints(start), b.ints(start + 1), b.ints(0))
            part = b.node("Squeeze", part, b.ints(0))
        b.node("Relu", part, out=f"y{index % 3}")
        b.output(f"y{index % 3}")
    return b


def ranks(graph: Graph) -> set[int]:
    return {len(value.shape) for value in graph.values if value.shape is not None}


@pytest.mark.crossed
@pytest.mark.parametrize("take", ["Gather", "Slice"])
@pytest.mark.parametrize(("batch", "first"), [("batch", 0), ("batch", -1), (1, 1)])
@pytest.mark.parametrize("order", [(2, 0, 3, 1, 4), (2, 0, 3, 4, 1)])
def test_parts_have_four_axes_and_the_same_numbers(
    take: str, batch: int | str, first: int, order: tuple[int, ...]
) -> None:
    graph = normalize(packed(take, order=order, batch=batch, first=first).build())
    assert 5 not in ranks(graph)
    x = np.arange(120, dtype=np.float32).reshape(1, 5, 24)
    x = np.repeat(x, 1 if batch == 1 else 2, axis=0)
    found = FloatModel(graph, threads=1).run({"x": x})
    wanted = x.reshape(-1, 5, 3, 2, 4).transpose(order)
    for index in range(3):
        np.testing.assert_array_equal(found[f"y{index}"], wanted[index])


def test_other_orders_and_readers_stay() -> None:
    assert 5 in ranks(normalize(packed("Gather", order=(2, 3, 0, 1, 4)).build()))
    b = packed("Gather")
    moved = next(node for node in b.nodes if node.op_type == "Transpose").output[0]
    b.node("Relu", moved, out="whole")
    b.output("whole")
    assert 5 in ranks(normalize(b.build()))


def test_parts_across_samples_stay() -> None:
    """Rows would be shared out to more samples: shapes that follow would be wrong."""
    b = ModelBuilder(17)
    split = b.node("Reshape", b.input("x", ["batch", 6, 24]), b.ints(-1, 3, 3, 2, 4))
    moved = b.node("Transpose", split, perm=[2, 0, 3, 1, 4])
    b.node("Relu", b.node("Gather", moved, b.constant(np.array(1)), axis=0), out="y")
    b.output("y")
    graph = normalize(b.build())
    assert 5 in ranks(graph)
    x = np.arange(288, dtype=np.float32).reshape(2, 6, 24)
    wanted = x.reshape(-1, 3, 3, 2, 4).transpose(2, 0, 3, 1, 4)[1]
    np.testing.assert_array_equal(FloatModel(graph, threads=1).run({"x": x})["y"], wanted)


@pytest.mark.parametrize("batch", ["batch", 1])
@pytest.mark.parametrize("joined", [-1, 2])
def test_heads_are_transposed_where_they_are(batch: int | str, joined: int) -> None:
    b = ModelBuilder(17)
    keys = b.node("Relu", b.input("x", [batch, 2, 5, 4]))
    keys = b.node("Transpose", b.node("Reshape", keys, b.ints(joined, 5, 4)), perm=[0, 2, 1])
    b.node("Relu", b.node("Reshape", keys, b.ints(-1, 2, 4, 5)), out="y")
    b.output("y")
    graph = normalize(b.build())
    assert [node.op_type for node in graph.nodes] == ["Relu", "Transpose", "Relu"]
    x = np.arange(40, dtype=np.float32).reshape(1, 2, 5, 4)
    np.testing.assert_array_equal(FloatModel(graph, threads=1).run({"x": x})["y"], x.swapaxes(2, 3))


def test_a_transposition_that_others_read_stays() -> None:
    b = ModelBuilder(17)
    keys = b.node("Reshape", b.input("x", [1, 2, 5, 4]), b.ints(2, 5, 4))
    turned = b.node("Transpose", keys, perm=[0, 2, 1])
    b.node("Relu", turned, out="z")
    b.node("Relu", b.node("Reshape", turned, b.ints(1, 2, 4, 5)), out="y")
    b.output("y")
    b.output("z")
    assert 3 in ranks(normalize(b.build()))
