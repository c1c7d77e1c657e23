from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from intact.errors import DataError
from intact.numerics.error_sums import ErrorSums
from intact.numerics.metrics import (
    accuracy_difference,
    agreement,
    cosine,
    in_top_k,
    max_abs,
    mse,
    sqnr_db,
    top_k,
)
from tests.numerics.arrays import float32


def test_distances_by_hand() -> None:
    first, second = float32(3.0, 4.0), float32(3.0, 3.0)
    assert mse(first, second) == 0.5
    assert max_abs(first, second) == 1.0
    assert sqnr_db(first, second) == pytest.approx(10 * math.log10(25))
    assert cosine(first, second) == pytest.approx(21 / (5 * math.sqrt(18)))


def test_equal_opposite_and_zero_vectors() -> None:
    vector, zero = float32(1.0, -2.0), float32(0.0, 0.0)
    assert sqnr_db(vector, vector) == math.inf
    assert sqnr_db(zero, zero) == math.inf
    assert sqnr_db(zero, vector) == -math.inf
    assert sqnr_db(vector, zero) == 0.0
    assert cosine(vector, -vector) == pytest.approx(-1.0)
    assert cosine(vector, vector) == pytest.approx(1.0)
    assert cosine(zero, zero) == 1.0
    assert cosine(zero, vector) == 0.0


def test_differences_of_float32_extremes_do_not_overflow() -> None:
    first, second = float32(3e38, 1e-45), float32(-3e38, -1e-45)
    assert max_abs(first, second) == pytest.approx(6e38)
    assert math.isfinite(mse(first, second))
    assert cosine(float32(1e-45), float32(3e38)) == pytest.approx(1.0)


FLOATS = hnp.arrays(np.float32, (6, 2), elements=st.floats(-(2.0**126), 2.0**126, width=32))


@settings(max_examples=100, deadline=None)
@given(FLOATS, FLOATS, st.integers(0, 6))
def test_sums_of_pieces_are_the_errors_of_the_whole(
    first: np.ndarray, second: np.ndarray, cut: int
) -> None:
    sums = ErrorSums()
    for rows in (slice(0, cut), slice(cut, 6)):
        sums.add(first[rows], second[rows])
    assert sums.sqnr_db == pytest.approx(sqnr_db(first, second), rel=1e-6, abs=1e-6)
    assert sums.cosine == pytest.approx(cosine(first, second), rel=1e-6, abs=1e-6)


def test_sums_of_pieces_that_cannot_be_compared_are_nan() -> None:
    for first, second in (
        (np.ones(2), np.ones(3)),
        (np.array(["a"]), np.array(["a"])),
        (np.ones(0), np.ones(0)),
    ):
        sums = ErrorSums()
        sums.add(first, second)
        assert math.isnan(sums.sqnr_db)
        assert math.isnan(sums.cosine)
    sums.add(np.ones(1), np.ones(1))
    assert sums.sqnr_db == math.inf


def test_top_k_counts_ties_like_argmax() -> None:
    scores = np.array([[0.1, 0.9, 0.0], [0.5, 0.5, 0.5], [0.0, 0.0, 1.0]])
    assert in_top_k(scores, np.array([1, 0, 2])).tolist() == [True, True, True]
    assert in_top_k(scores, np.array([0, 1, 0])).tolist() == [False, False, False]
    assert in_top_k(scores, np.array([0, 1, 1]), 2).tolist() == [True, True, False]
    assert top_k(scores, np.array([1, 1, 1])) == pytest.approx(1 / 3)
    assert top_k(scores, np.array([1, 1, 1]), 100) == 1.0


@pytest.mark.parametrize(
    ("scores", "labels", "k", "message"),
    [
        (np.zeros((2, 3)), np.array([0, 3]), 1, "3 classes"),
        (np.zeros((2, 3)), np.array([0, -1]), 1, "3 classes"),
        (np.zeros((2, 3)), np.array([0]), 1, "shape"),
        (np.zeros((0, 3)), np.zeros(0, dtype=np.int64), 1, "shape"),
        (np.zeros((2, 3)), np.array([0, 1]), 0, "top-0"),
        (np.full((2, 3), np.nan), np.array([0, 1]), 1, "NaN"),
    ],
)
def test_top_k_refuses_what_does_not_fit(
    scores: np.ndarray, labels: np.ndarray, k: int, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        top_k(scores, labels, k)


def test_agreement_compares_the_first_choice() -> None:
    first = np.array([[1.0, 2.0], [3.0, 0.0], [1.0, 1.0]])
    second = np.array([[0.0, 9.0], [0.0, 1.0], [5.0, 5.0]])
    assert agreement(first, second) == pytest.approx(2 / 3)
    with pytest.raises(DataError, match="classes"):
        agreement(np.zeros(3), np.zeros(3))


@pytest.mark.parametrize("function", [mse, max_abs, sqnr_db, cosine])
def test_shapes_must_agree_and_hold_something(function: object) -> None:
    for shapes in [((2,), (3,)), ((0,), (0,)), ((2, 1), (1, 2))]:
        with pytest.raises(DataError, match="compare"):
            function(np.zeros(shapes[0]), np.zeros(shapes[1]))  # type: ignore[operator]


def test_accuracy_difference_by_hand() -> None:
    first = np.array([True] * 90 + [False] * 10)
    second = np.array([True] * 80 + [False] * 10 + [True] * 4 + [False] * 6)
    found = accuracy_difference(first, second)
    centre = -6 / 102
    margin = 1.959964 * math.sqrt((15 / 102 - centre**2) / 102)
    assert found.difference == pytest.approx(-0.06)
    assert found.low == pytest.approx(centre - margin, abs=1e-6)
    assert found.high == pytest.approx(centre + margin, abs=1e-6)
    assert not found.significant


def test_equal_results_still_leave_room_for_doubt() -> None:
    right = np.ones(50, dtype=bool)
    found = accuracy_difference(right, right)
    assert found.difference == 0.0
    assert found.low < 0.0 < found.high
    assert accuracy_difference(right, ~right).significant


def test_the_interval_covers_the_truth_about_95_percent_of_the_time() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        outcome = rng.choice(4, size=200, p=[0.7, 0.08, 0.05, 0.17])  # both, lost, gained, neither
        found = accuracy_difference(outcome <= 1, (outcome == 0) | (outcome == 2))
        covered += found.low <= -0.03 <= found.high
    assert 925 <= covered <= 975


def test_unpaired_results_are_refused() -> None:
    with pytest.raises(DataError, match="paired"):
        accuracy_difference(np.ones(2, dtype=bool), np.ones(3, dtype=bool))
    with pytest.raises(DataError, match="paired"):
        accuracy_difference(np.ones(0, dtype=bool), np.ones(0, dtype=bool))
