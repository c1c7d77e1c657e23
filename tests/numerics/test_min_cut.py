"""The labels of least cost are those that trying all finds."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from intact.numerics.min_cut import cheapest_labels

Edges = list[tuple[int, int, float]]


def _cost(costs: npt.NDArray[np.float64], edges: Edges, labels: tuple[bool, ...]) -> float:
    own = sum(costs[thing, int(label)] for thing, label in enumerate(labels))
    return float(own) + sum(cost for a, b, cost in edges if labels[a] and not labels[b])


@pytest.mark.parametrize("seed", range(25))
def test_labels_cost_as_little_as_any(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 9))
    costs = random.uniform(0, 1e-3, (count, 2))  # seconds
    edges: Edges = [
        (int(a), int(b), float(random.choice([random.uniform(0, 1e-3), math.inf])))
        for a, b in random.integers(0, count, (2 * count, 2))
        if a != b
    ]
    found = cheapest_labels(costs, edges)
    every = product([False, True], repeat=count)
    least = min(_cost(costs, edges, labels) for labels in every)
    assert _cost(costs, edges, tuple(found)) == pytest.approx(least, abs=1e-9)


def test_nothing_to_label_and_nothing_that_costs() -> None:
    assert cheapest_labels(np.zeros((0, 2)), []).size == 0
    assert not cheapest_labels(np.zeros((3, 2)), [(0, 1, 0.0)]).any()


def test_ruled_out_labels_are_not_given() -> None:
    costs = np.array([[math.inf, 5.0], [1.0, math.inf]])
    assert cheapest_labels(costs, [(0, 1, 2.0)]).tolist() == [True, False]
