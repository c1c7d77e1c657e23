"""Inputs drawn from statistics look like those that were seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from intact.calibrate.collect import collect
from intact.calibrate.statistics import Statistics
from intact.calibrate.synthetic import any_sample, evenly_drawn_samples, synthetic_samples
from intact.data.sources import open_samples
from intact.errors import DataError
from intact.graph import Graph, normalize
from tests.formats.onnx_qdq.pairs import PairBuilder, read
from tests.models import ModelBuilder


def model(length: int | str = 6) -> Graph:
    b = ModelBuilder()
    rows = b.node("Gather", b.weight(20, 8), b.input("ids", ["n", length], TensorProto.INT64))
    b.node("Add", rows, b.input("shift", ["n", length, 8]), out="y")
    b.output("y")
    return normalize(b.build())


def test_inputs_follow_their_distribution_and_stay_in_range() -> None:
    graph = model()
    random = np.random.default_rng(0)
    seen: dict[str, np.ndarray] = {
        "ids": random.integers(3, 17, (50, 6)),
        "shift": random.normal(5, 2, (50, 6, 8)).astype(np.float32),
    }
    statistics = collect(graph, open_samples(seen, graph), ("ids", "shift"))
    drawn, count = next(synthetic_samples(graph, statistics, 200).batches(200))
    assert count == 200
    assert drawn["ids"].dtype == np.int64
    assert (drawn["ids"].min(), drawn["ids"].max()) == (3, 16)
    assert set(np.unique(drawn["ids"])) == set(range(3, 17))
    assert drawn["shift"].shape == (200, 6, 8)
    assert abs(drawn["shift"].mean() - 5) < 0.1
    assert abs(drawn["shift"].std() - 2) < 0.1
    again, _ = next(synthetic_samples(graph, statistics, 200).batches(200))
    np.testing.assert_array_equal(drawn["shift"], again["shift"])


def test_what_cannot_be_drawn_is_named() -> None:
    with pytest.raises(DataError, match="'ids' cannot be generated"):
        synthetic_samples(model(), Statistics("0"), 3)
    graph = model("length")
    seen: dict[str, Any] = {"ids": np.ones((2, 6), np.int64), "shift": np.ones((2, 6, 8))}
    statistics = collect(graph, open_samples(seen, graph), ("ids", "shift"))
    with pytest.raises(DataError, match="'ids' cannot be generated"):
        synthetic_samples(graph, statistics, 3)


def test_a_sample_of_which_only_types_and_shapes_are_known() -> None:
    b = ModelBuilder()
    x = b.node("Mul", b.input("x", ["n", 3, "length"]), b.input("gain", []))
    b.node("Gather", x, b.input("at", [2], TensorProto.INT64), out="y", axis=1)
    b.output("y")
    found = any_sample(normalize(b.build()))
    assert {name: array.shape for name, array in found.items()} == {
        "x": (1, 3, 32),
        "gain": (),
        "at": (2,),
    }
    assert found["gain"].dtype == np.float32
    assert set(found["at"].tolist()) <= {0, 1}


def test_inputs_of_a_plan_without_statistics_fill_its_ranges() -> None:
    b = PairBuilder()
    x = b.pair(b.input("x", ["n", 50]), 0.5, np.uint8(55))
    codes = b.dequantize(b.input("codes", ["n", 50], TensorProto.INT8), 0.1, np.int8(3))
    b.pair(b.node("Add", x, codes), 1.0, np.uint8(100), out="y")
    b.output("y")
    plan = read(b.build())
    drawn, _ = next(evenly_drawn_samples(plan, 100).batches(100))
    assert drawn["x"].dtype == np.float32
    assert -27.5 <= drawn["x"].min() < -27
    assert 99 < drawn["x"].max() <= 100
    assert abs(drawn["x"].mean() - 36.25) < 2
    assert drawn["codes"].dtype == np.int8
    assert (drawn["codes"].min(), drawn["codes"].max()) == (-128, 127)
    again, _ = next(evenly_drawn_samples(plan, 100).batches(100))
    np.testing.assert_array_equal(drawn["x"], again["x"])


@pytest.mark.parametrize(
    ("length", "reason"), [(6, "does not quantize it"), ("length", "a free dimension")]
)
def test_an_input_without_a_range_needs_samples(length: int | str, reason: str) -> None:
    b = PairBuilder()
    x = b.input("x", ["n", length])
    b.pair(b.node("Exp", x if length == 6 else b.pair(x)), out="y")
    b.output("y")
    with pytest.raises(DataError, match=f"'x' cannot be generated: .*{reason}"):
        evenly_drawn_samples(read(b.build()), 3)


def test_many_samples_take_no_memory_until_they_are_read() -> None:
    graph = model()
    seen: dict[str, Any] = {
        "ids": np.ones((2, 6), np.int64),
        "shift": np.ones((2, 6, 8), np.float32),
    }
    statistics = collect(graph, open_samples(seen, graph), ("ids", "shift"))
    drawn = synthetic_samples(graph, statistics, 10**12)
    assert drawn.count == 10**12
    assert next(drawn.batches(100))[0]["shift"].shape == (100, 6, 8)
