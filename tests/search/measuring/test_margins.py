"""Margins: what they foresee of samples that were not run."""

from __future__ import annotations

import numpy as np
import pytest

from intact.search.measuring.stopping import Tally, expected_hits, foresee, margins

POPULATION = 2000


def logits(seed: int, count: int = POPULATION) -> tuple[np.ndarray, np.ndarray]:
    """Scores of ten classes, of which the right one is mostly the best."""
    rng = np.random.default_rng(seed)
    right = rng.integers(0, 10, count)
    scores = rng.normal(size=(count, 10))
    scores[np.arange(count), right] += rng.gamma(2.0, 2.0, count)
    return scores, right


def tally(base: np.ndarray, own: np.ndarray, drawn: int) -> Tally:
    rows = np.where(own[:drawn] > 0, 100.0, 0.0)
    return Tally(rows, len(base), 100.0, True, base > 0, (base, own[:drawn]))


def test_a_margin_is_above_zero_where_the_class_is_right() -> None:
    scores, right = logits(0)
    found = margins(scores, right)
    np.testing.assert_array_equal(found > 0, scores.argmax(axis=1) == right)
    assert margins(np.array([[1.0, 3.0, 2.5]]), np.array([1])).tolist() == [0.5]
    assert margins(np.array([[1.0, 3.0, 2.5]]), np.array([0])).tolist() == [-2.0]


@pytest.mark.crossed
@pytest.mark.parametrize("noise", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("drawn", [32, 128, 500])
def test_hits_are_within_their_deviation(noise: float, drawn: int) -> None:
    away = []
    for seed in range(60):
        scores, right = logits(seed)
        worse = scores + noise * np.random.default_rng(seed + 1000).normal(size=scores.shape)
        base, own = margins(scores, right), margins(worse, right)
        found = expected_hits(base, own[:drawn])
        away.append(((own > 0).sum() - found.mean) / found.deviation)
        if noise < 0.1:  # a fifth of what counting alone would know
            share = (base > 0).mean()
            counted = np.sqrt(share * (1 - share) / drawn * (1 - drawn / POPULATION)) * POPULATION
            assert found.deviation < 0.2 * counted
    assert abs(np.mean(away)) < 0.6
    assert np.mean(np.abs(away) < 3) > 0.95


def test_equal_outputs_leave_no_doubt() -> None:
    scores, right = logits(3)
    base = margins(scores, right)
    found = expected_hits(base, base[:32])
    assert found.mean == pytest.approx((base > 0).sum(), abs=1e-6)
    assert found.deviation < 1e-6


def test_good_and_bad_candidates_are_foreseen_early() -> None:
    scores, right = logits(4)
    base = margins(scores, right)
    float_score = 100 * (base > 0).mean()
    noise = np.random.default_rng(5).normal(size=scores.shape)
    good = margins(scores + 0.02 * noise, right)
    bad = margins(scores + 3.0 * noise, right)
    assert foresee(tally(base, good, 32), float_score - 1) is True
    assert foresee(tally(base, bad, 32), float_score - 1) is False
    assert foresee(tally(base, good, 16), float_score - 1) is None
    assert foresee(tally(base, good, 32), float_score - 1, error=0.0) is None


def test_from_a_quarter_on_the_likelier_answer_is_given() -> None:
    scores, right = logits(6)
    base = margins(scores, right)
    noise = np.random.default_rng(7).normal(size=scores.shape)
    own = margins(scores + noise, right)
    assert foresee(tally(base, own, 400), _middle(base, own[:400])) is None
    assert foresee(tally(base, own, 500), _middle(base, own[:500]) - 0.01) is True
    assert foresee(tally(base, own, 500), _middle(base, own[:500]) + 0.1) is False


def _middle(base: np.ndarray, own: np.ndarray) -> float:
    """The score that is as likely reached as not."""
    return float(100 * np.floor(expected_hits(base, own).mean) / len(base))


@pytest.mark.parametrize(("bar", "answer"), [(-2.0, True), (-0.5, False), (-1.0, None)])
def test_means_are_foreseen(bar: float, answer: bool | None) -> None:
    rows = -1.0 + 0.3 * np.tile([1.0, -1.0], 32)
    assert foresee(Tally(rows, 1000, 0.0), bar) is answer


def test_counts_without_margins_are_not_guessed() -> None:
    rows = np.full(64, 100.0)
    assert foresee(Tally(rows, 1000, 100.0, is_count=True), 90.0) is None
    assert foresee(Tally(rows, 1000, 100.0, is_count=True), 6.0) is True
