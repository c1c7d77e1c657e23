"""States of a model of streams, in its metadata."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intact.errors import ModelError
from intact.graph import normalize
from intact.graph.states import METADATA_KEY, State, set_states
from tests.models import ModelBuilder


def stream() -> onnx.ModelProto:
    b = ModelBuilder()
    b.node("Relu", b.input("before", ["batch", 3]), out="after")
    b.output("after")
    return b.build()


def stored(text: str) -> onnx.ModelProto:
    model = stream()
    onnx.helper.set_model_props(model, {METADATA_KEY: text})
    return model


@pytest.mark.parametrize("first", [np.zeros((1, 3)), np.array([[1.0, -2.0, 0.5]])])
def test_states_are_kept(first: np.ndarray) -> None:
    model = ir.from_proto(stream())
    set_states(model, [State("before", "after", first.astype(np.float32))])
    (state,) = normalize(model).states.values()
    assert (state.before, state.after) == ("before", "after")
    np.testing.assert_array_equal(state.first, first)


def entry(**changes: object) -> str:
    return json.dumps({"before": {"after": "after", "shape": [1, 3], "first": [0.0]} | changes})


@pytest.mark.parametrize(
    "text",
    [
        *("[", "[]", "3", "[" * 9999, '{"before": 3}', '{"none": {}}', '{"before": {}}'),
        entry(after="none"),
        entry(shape=[1, 4]),
        entry(shape=[2, 3]),
        entry(shape=[3]),
        entry(shape=["a", 3]),
        entry(first=[0.0, 1.0]),
        entry(first=["x"]),
        entry(first=None),
    ],
)
def test_damaged_ones_are_an_error(text: str) -> None:
    with pytest.raises(ModelError, match=r"'intact\.states' cannot be read; remove that entry"):
        _ = normalize(stored(text)).states


def test_there_need_not_be_any() -> None:
    assert normalize(stream()).states == {}
    assert METADATA_KEY not in normalize(stream()).model.metadata_props
