"""Inputs drawn from statistics look like those that were seen."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from intact.calibrate.collect import collect
from intact.calibrate.statistics import Statistics
from intact.calibrate.synthetic import synthetic_samples
from intact.errors import DataError
from intact.graph import Graph, normalize
from intact.samples.stream import open_samples
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
    with pytest.raises(DataError, match="'ids' cannot be drawn"):
        synthetic_samples(model(), Statistics("0"), 3)
    graph = model("length")
    seen = {"ids": np.ones((2, 6), np.int64), "shift": np.ones((2, 6, 8))}
    statistics = collect(graph, open_samples(seen, graph), ("ids", "shift"))
    with pytest.raises(DataError, match="'ids' cannot be drawn"):
        synthetic_samples(graph, statistics, 3)
