"""Second names of inputs and outputs, in a model's metadata."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from intact.data.sources import open_samples
from intact.errors import DataError, ModelError
from intact.graph import Graph, normalize
from intact.graph.aliases import METADATA_KEY
from tests.models import ModelBuilder

SECOND = "serving_default_x:0"


def named(aliases: object) -> onnx.ModelProto:
    b = ModelBuilder()
    b.node("Relu", b.input("x", ["batch", 3]), out="y")
    b.output("y")
    model = b.build()
    text = aliases if isinstance(aliases, str) else json.dumps(aliases)
    onnx.helper.set_model_props(model, {METADATA_KEY: text})
    return model


def graph() -> Graph:
    return normalize(named({SECOND: "x", "StatefulPartitionedCall:0": "y", "y": "x"}))


def test_names_of_the_model_are_no_second_names() -> None:
    assert dict(graph().aliases) == {SECOND: "x", "StatefulPartitionedCall:0": "y"}


@pytest.mark.parametrize("text", ["[", "[]", '{"a": "none"}', '{"a": 3}', "[" * 9999])
def test_damaged_ones_are_an_error(text: str) -> None:
    with pytest.raises(ModelError, match="aliases"):
        _ = normalize(named(text)).aliases


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("key", ["x", SECOND])
@pytest.mark.parametrize("lazily", [False, True])
def test_samples_may_have_either(key: str, lazily: bool) -> None:
    batch = {key: ARRAY, "labels": np.array([0, 1])}
    samples = open_samples(iter([batch]) if lazily else batch, graph())
    ((found, count),) = samples.batches(2)
    assert count == 2
    np.testing.assert_array_equal(found["x"], ARRAY)


def test_both_are_refused() -> None:
    with pytest.raises(DataError, match=f"'x' and '{SECOND}' are one tensor; give one"):
        next(open_samples({"x": ARRAY, SECOND: ARRAY}, graph()).batches(2))


def test_a_mask_may_have_either() -> None:
    samples = open_samples({SECOND: ARRAY}, graph(), mask=SECOND)
    assert samples.mask == "x"
