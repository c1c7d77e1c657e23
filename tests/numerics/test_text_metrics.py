"""Figures of language models against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from intact.numerics.text_metrics import (
    rank_correlation,
    row_cosines,
    token_scores,
    weighted_mean_interval,
)
from tests.statistics import log_softmax, spearman, students_interval

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("positions", [1, 32, 70])
def test_token_scores_are_those_of_the_definition(positions: int) -> None:
    first, second = RANDOM.normal(0, 4, (2, positions, 9)).astype(np.float32)
    following = RANDOM.integers(0, 9, positions)
    a, b = (log_softmax(each) for each in (first, second))
    found = token_scores(first, second, following)
    rows = np.arange(positions)
    assert found.losses == pytest.approx([-each[rows, following].sum() for each in (a, b)])
    assert found.divergence == pytest.approx((np.exp(a) * (a - b)).sum())
    assert found.flips == (first.argmax(axis=1) != second.argmax(axis=1)).sum()
    assert found.positions == positions


def test_scores_that_leave_out_tokens_are_no_nan() -> None:
    scores = np.array([[0.0, -np.inf, 3.4e38]], np.float32)
    found = token_scores(scores, scores, np.array([2]))
    assert found == ((0.0, 0.0), 0.0, 0, 1)


@pytest.mark.parametrize("count", [2, 3, 11, 12, 40, 1000])
def test_an_interval_of_equal_weights_is_students(count: int) -> None:
    values = RANDOM.normal(2, 1, count)
    mean, low, high = weighted_mean_interval(values, np.full(count, 7.0))
    expected = students_interval(values)
    assert mean == pytest.approx(values.mean())
    assert (low, high) == pytest.approx(expected, rel=1e-3)


def test_weights_count_as_so_many_tokens() -> None:
    mean, low, high = weighted_mean_interval([1.0, 2.0, 4.0], [10.0, 10.0, 1.0])
    assert mean == pytest.approx(34 / 21)
    assert low < mean < high
    assert math.isnan(weighted_mean_interval([1.0], [3.0]).low)


def test_rank_correlation_is_spearmans_with_ties() -> None:
    first, second = RANDOM.integers(0, 5, 50), RANDOM.normal(0, 1, 50)
    expected = spearman(first, second)
    assert rank_correlation(first.astype(float), second) == pytest.approx(expected)
    assert math.isnan(rank_correlation(np.zeros(3), np.arange(3.0)))


def test_cosines_of_rows() -> None:
    found = row_cosines(np.array([[1.0, 0.0], [2.0, 2.0], [0.0, 0.0]]), np.eye(3, 2))
    assert found == pytest.approx([1.0, math.sqrt(0.5), 0.0])
