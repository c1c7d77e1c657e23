"""A Gather by a table of indices is one by a list, and a Reshape."""

from __future__ import annotations

import numpy as np
import pytest

from intact.engines.session import FloatModel
from intact.graph import normalize
from tests.models import ModelBuilder
from tests.plans import op_types

WINDOWS = np.array([[0, 2, 4, 6], [1, 3, 5, -1]])


def gathered(shape: list[int | str], axis: int, table: np.ndarray) -> ModelBuilder:
    b = ModelBuilder()
    x = b.input("x", shape)
    b.node("Gather", x, b.constant(table.astype(np.int64)), axis=axis, out="y")
    b.output("y")
    return b


@pytest.mark.parametrize(
    ("shape", "axis"),
    [([2, 8, 5], 1), (["n", "c", 8], -1), (["n", 8, "w"], 1), ([8], 0)],
)
def test_tables_become_lists(shape: list[int | str], axis: int) -> None:
    builder = gathered(shape, axis, WINDOWS)
    graph = normalize(builder.build())
    assert op_types(graph) == ["Gather", "Reshape"]
    x = np.random.default_rng(0).normal(size=[n if isinstance(n, int) else 3 for n in shape])
    found = FloatModel(graph, threads=1).run({"x": x.astype(np.float32)})["y"]
    np.testing.assert_array_equal(found, np.take(x.astype(np.float32), WINDOWS, axis))


@pytest.mark.parametrize(
    ("shape", "table"),
    [
        ([2, 8, 5], np.array([1, 0])),
        ([2, 8, 5], np.array(3)),
        ([2, 8, "h", "w"], WINDOWS),  # two lengths behind are open
        ([2, 8, 0], WINDOWS),
        ([2, 8, 5], np.zeros((2, 0))),
    ],
)
def test_other_gathers_stay(shape: list[int | str], table: np.ndarray) -> None:
    assert op_types(normalize(gathered(shape, 1, table).build())) == ["Gather"]


def test_all_elements_in_their_order_are_a_reshape() -> None:
    places = np.stack(np.broadcast_arrays([[0], [1]], np.arange(3)), axis=-1)
    for table, expected in ((places, "Reshape"), (places[:, ::-1], "GatherND")):
        b = ModelBuilder()
        x = b.input("x", [2, 3])
        b.node("GatherND", x, b.constant(table.reshape(2, 1, 3, 2).astype(np.int64)), out="y")
        b.output("y")
        graph = normalize(b.build())
        assert op_types(graph) == [expected]
        data = np.arange(6, dtype=np.float32).reshape(2, 3)
        found = FloatModel(graph, threads=1).run({"x": data})["y"]
        np.testing.assert_array_equal(found, data[table[..., 0], table[..., 1]].reshape(2, 1, 3))


def test_elements_of_constants_are_a_constant() -> None:
    b = ModelBuilder()
    ids = b.node("GatherElements", b.ints(*range(8)), b.ints(3, 1, 0))
    table = b.weight(8, 4)
    b.node("Add", b.input("x", ["n", 3, 4]), b.node("Gather", table, ids), out="y")
    b.output("y")
    assert op_types(normalize(b.build())) == ["Add"]
