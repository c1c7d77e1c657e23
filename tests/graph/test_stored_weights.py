"""Which constants can be stored as integers for nodes that compute in float."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from intact.graph import normalize
from intact.graph.stored_weights import stored_weight_axes
from tests.models import ModelBuilder


def axes_of(b: ModelBuilder) -> dict[int, int]:
    return stored_weight_axes(normalize(b.build()).node("node"))


def looked_up(*shape: int, axis: int = 0) -> dict[int, int]:
    b = ModelBuilder()
    ids = b.input("ids", ["batch", 3], onnx.TensorProto.INT64)
    b.node("Gather", b.weight(*shape), ids, axis=axis, out="y", name="node")
    b.output("y")
    return axes_of(b)


@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_weights_of_recurrent_operators_have_a_scale_for_each_row_of_a_gate(
    op_type: str, gates: int
) -> None:
    b = ModelBuilder()
    x = b.input("x", [5, "batch", 4])
    inputs = [x, b.weight(1, gates * 3, 4), b.weight(1, gates * 3, 3), b.weight(1, gates * 6)]
    b.node(op_type, *inputs, hidden_size=3, out="y", name="node")
    b.output("y")
    assert axes_of(b) == {1: 1, 2: 1}


def test_tables_have_a_scale_for_each_row_that_is_looked_up() -> None:
    assert looked_up(9, 16) == {0: 0}
    assert looked_up(16, 9, axis=1) == looked_up(16, 9, axis=-1) == {0: 1}
    assert looked_up(9, 4, 4) == {0: 0}


def test_tables_of_coordinates_stay_float() -> None:
    """Anchors of a detector are not embeddings."""
    assert looked_up(900, 4) == looked_up(900) == {}


def test_what_is_no_constant_of_floats_is_not_stored() -> None:
    b = ModelBuilder()
    table, ids = b.input("x", [9, 16]), b.constant(np.array([1, 2]))
    b.node("Gather", table, ids, out="y", name="node")
    b.output("y")
    assert axes_of(b) == {}
