"""Bounds: valid as often as they say, exact where they are certain."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.errors import UsageError
from intact.search.measuring.stopping import ERROR, Tally, can_reach, least_hits, lower_tail

LOOKS = (32, 64, 128, 256)
POPULATION = 512


def hits(right: int, drawn: int, population: int = POPULATION) -> Tally:
    rows = np.where(np.arange(drawn) < right, 100.0, 0.0)
    return Tally(rows, population, 100.0, is_count=True)


@given(data=st.data())
def test_the_tail_is_that_of_drawing_without_replacement(data: st.DataObject) -> None:
    population = data.draw(st.integers(1, 60))
    drawn, marked = (data.draw(st.integers(0, population)) for _ in range(2))
    right = data.draw(st.integers(-1, population))
    ways = sum(
        comb(marked, k) * comb(population - marked, drawn - k) for k in range(min(right, drawn) + 1)
    )
    exact = float(Fraction(ways, comb(population, drawn)))
    assert lower_tail(right, drawn, marked, population) == pytest.approx(exact, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("right", [0, 4000, 8000, 8990, 9000])
def test_the_tail_of_many_samples_is_a_probability(right: int) -> None:
    values = [lower_tail(right, 9000, marked, 10_000) for marked in range(0, 10_001, 500)]
    assert all(0.0 <= value <= 1.0 for value in values)
    assert values == sorted(values, reverse=True)  # more marked ones make few drawn less likely


@given(population=st.integers(1, 3000), bar=st.floats(-10, 110))
def test_least_hits_are_the_least_whose_score_reaches_the_bar(population: int, bar: float) -> None:
    needed = least_hits(bar, population)
    assert needed == 0 or 100.0 * (needed - 1) / population < bar
    assert needed > population or 100.0 * needed / population >= bar


@given(data=st.data())
def test_the_certain_bound_is_exact(data: st.DataObject) -> None:
    population = data.draw(st.integers(1, 200))
    drawn = data.draw(st.integers(1, population))
    right, wanted = data.draw(st.integers(0, drawn)), data.draw(st.integers(0, population))
    bar = 100.0 * wanted / population
    possible = right + population - drawn >= wanted
    assert can_reach(hits(right, drawn, population), bar, error=0.0) is possible


@pytest.mark.parametrize("right", [0, 16, 32])
def test_bars_that_need_no_counting(right: int) -> None:
    tally = hits(right, 32)
    assert can_reach(tally, -math.inf)
    assert can_reach(tally, 0.0)
    assert not can_reach(tally, math.inf)
    assert not can_reach(tally, 100.1)
    rows = Tally(np.full(32, -1.0), 64, 0.0)
    assert can_reach(rows, -math.inf)
    assert not can_reach(rows, math.inf)


def test_all_samples_leave_no_doubt() -> None:
    assert can_reach(hits(400, 512), 100.0 * 400 / 512)
    assert not can_reach(hits(400, 512), 100.0 * 401 / 512)
    rows = Tally(np.array([-1.0, -3.0]), 2, 0.0)
    assert can_reach(rows, -2.0)
    assert not can_reach(rows, -1.999)


def test_one_sample() -> None:
    assert can_reach(hits(0, 1), 50.0)
    assert not can_reach(hits(0, 1, population=1), 0.1)
    assert can_reach(Tally(np.array([-5.0]), 100, 0.0), -1.0)


def test_contributions_that_are_all_alike_decide_only_with_enough_samples() -> None:
    few, many = (Tally(np.full(n, -1.0), 1000, 0.0) for n in (29, 30))
    assert can_reach(few, -0.5)
    assert not can_reach(many, -0.5)
    assert can_reach(many, -1.0)


def wrong_stops(score: np.ndarray, bar: float, tries: int, *, is_count: bool, seed: int) -> float:
    """The share of orders in which a candidate that does reach the bar is stopped."""
    random = np.random.default_rng(seed)
    stopped = 0
    for _ in range(tries):
        rows = score[random.permutation(len(score))]
        stopped += any(
            not can_reach(
                Tally(rows[:n], len(rows), float(score.max()), is_count), bar, share=n / sum(LOOKS)
            )
            for n in LOOKS
        )
    return stopped / tries


@pytest.mark.parametrize("accuracy", [0.1, 0.5, 0.9, 0.99])
def test_counts_are_wrongly_stopped_less_often_than_allowed(accuracy: float) -> None:
    right = round(accuracy * POPULATION)
    score = np.where(np.arange(POPULATION) < right, 100.0, 0.0)
    found = wrong_stops(score, 100.0 * right / POPULATION, 2000, is_count=True, seed=7)
    assert found <= ERROR


def test_counts_are_stopped_wrongly_about_as_often_as_allowed_when_the_error_is_large() -> None:
    # Not more careful than it has to be: one look, 20 %.
    random = np.random.default_rng(1)
    score = np.where(np.arange(POPULATION) < 400, 100.0, 0.0)
    stops = sum(
        not can_reach(
            Tally(score[random.permutation(POPULATION)][:256], POPULATION, 100.0, is_count=True),
            100.0 * 400 / POPULATION,
            error=0.2,
        )
        for _ in range(2000)
    )
    assert 0.1 < stops / 2000 <= 0.2


@pytest.mark.parametrize("shape", ["normal", "exponential", "two values"])
def test_means_are_wrongly_stopped_less_often_than_allowed(shape: str) -> None:
    random = np.random.default_rng(5)
    score = {
        "normal": -10 - random.normal(size=POPULATION),
        "exponential": -random.exponential(size=POPULATION),  # a divergence looks like that
        "two values": np.where(random.random(POPULATION) < 0.3, -1.0, 0.0),
    }[shape]
    found = wrong_stops(score, float(score.mean()), 2000, is_count=False, seed=11)
    assert found <= ERROR * 1.5  # an approximation


def test_what_is_far_too_bad_is_stopped_at_once() -> None:
    assert not can_reach(hits(16, 32), 91.0, share=32 / 480)
    assert can_reach(hits(28, 32), 91.0, share=32 / 480)


@pytest.mark.parametrize("bar", [math.nan])
def test_a_bar_that_is_no_number_is_refused(bar: float) -> None:
    with pytest.raises(UsageError):
        can_reach(hits(1, 2), bar)


@pytest.mark.parametrize(("drawn", "population"), [(0, 5), (6, 5)])
def test_samples_that_cannot_be_are_refused(drawn: int, population: int) -> None:
    with pytest.raises(UsageError, match="samples"):
        can_reach(hits(0, drawn, population), 1.0)


@pytest.mark.parametrize(("error", "share"), [(1.0, 1.0), (-0.1, 1.0), (0.1, 0.0), (0.1, 1.1)])
def test_errors_that_cannot_be_are_refused(error: float, share: float) -> None:
    with pytest.raises(UsageError):
        can_reach(hits(1, 2), 1.0, error=error, share=share)


def test_what_is_nearly_all_is_nearly_known() -> None:
    rows = np.tile([0.0, 2.0], 50)[:99]  # mean 0.99, deviation 1; of one more 1000 may come
    tally = Tally(rows, 100, 1000.0)
    assert can_reach(tally, 1.0)
    assert not can_reach(tally, 1.15)  # 0.99 + 2.33 * 0.1 without the finite population
    assert can_reach(replace(tally, population=100_000), 1.15)
