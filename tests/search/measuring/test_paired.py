"""Paired bounds: exact where it can be counted, and wrong as seldom as they say."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.search.measuring.stopping import ERROR, PairedHits, Tally, _chances, can_reach

LOOKS = (32, 64, 128, 256)


@given(data=st.data())
def test_chances_are_those_of_drawing_without_replacement(data: st.DataObject) -> None:
    population = data.draw(st.integers(0, 50))
    marked, drawn = (data.draw(st.integers(0, population)) for _ in range(2))
    exact = [
        float(
            Fraction(
                comb(marked, k) * comb(population - marked, drawn - k), comb(population, drawn)
            )
        )
        for k in range(drawn + 1)
    ]
    np.testing.assert_allclose(_chances(marked, drawn, population), exact, atol=1e-12)


@given(data=st.data())
def test_pairs_are_counted(data: st.DataObject) -> None:
    base = data.draw(st.lists(st.booleans(), min_size=1, max_size=30))
    own = data.draw(st.lists(st.booleans(), min_size=1, max_size=len(base)))
    pairs = PairedHits.of(np.array(base), np.array(own))
    assert (pairs.right, pairs.wrong) == (sum(base), len(base) - sum(base))
    assert pairs.drawn_right + pairs.drawn_wrong == len(own)
    both = list(zip(base, own, strict=False))
    assert pairs.lost == both.count((True, False))
    assert pairs.gained == both.count((False, True))


@given(data=st.data())
def test_without_an_error_only_what_is_certain_is_denied(data: st.DataObject) -> None:
    base = np.array(data.draw(st.lists(st.booleans(), min_size=1, max_size=30)))
    own = np.array(data.draw(st.lists(st.booleans(), min_size=1, max_size=len(base))))
    needed = data.draw(st.integers(0, len(base) + 1))
    possible = int(own.sum()) + len(base) - len(own) >= needed
    assert PairedHits.of(base, own).can_reach(needed, 0.0) is possible


def candidate(lost: int, gained: int, right: int = 420) -> tuple[np.ndarray, np.ndarray]:
    base = np.arange(512) < right
    own = base.copy()
    own[:lost] = False
    own[right : right + gained] = True
    return base, own


def stops(base: np.ndarray, own: np.ndarray, bar: float, *, paired: bool) -> list[int]:
    """After how many samples a candidate is stopped, in 200 orders; all of them if it is not."""
    random = np.random.default_rng(2)
    found = []
    for _ in range(200):
        order = random.permutation(len(base))
        rows, hits = np.where(own[order], 100.0, 0.0), base[order]
        looks = (
            n
            for n in LOOKS
            if not can_reach(
                Tally(rows[:n], len(base), 100.0, True, hits if paired else None),
                bar,
                share=n / sum(LOOKS),
            )
        )
        found.append(next(looks, len(base)))
    return found


@pytest.mark.parametrize(("lost", "gained"), [(5, 0), (30, 25), (60, 55), (0, 3)])
def test_what_reaches_the_bar_is_seldom_stopped(lost: int, gained: int) -> None:
    base, own = candidate(lost, gained)
    bar = 100.0 * int(own.sum()) / 512
    assert np.mean(np.array(stops(base, own, bar, paired=True)) < 512) <= ERROR


def test_it_decides_earlier_than_the_candidate_alone() -> None:
    base, own = candidate(50, 15)
    bar = 100.0 * 417 / 512
    both = [np.mean(stops(base, own, bar, paired=paired)) for paired in (True, False)]
    assert both[0] < 0.97 * both[1]


@pytest.mark.parametrize("right", [0, 512])
def test_float_models_that_are_always_right_or_wrong(right: int) -> None:
    base = np.arange(512) < right
    own = np.zeros(64, np.bool_)
    pairs = PairedHits.of(base, own)
    assert not pairs.can_reach(500, 0.01)
    assert pairs.can_reach(0, 0.01)


def test_the_limit_of_the_gained_ones_takes_its_part_of_the_error() -> None:
    pairs, needed = PairedHits(90, 10, 45, 5, 5, 0), 88
    chance = max(pairs._chance(gained, 90 - needed) for gained in range(3, 6))
    assert 0.0 < chance < 0.1
    for factor, may in ((0.99, True), (1.05, True), (1.2, False)):
        assert pairs.can_reach(needed, chance * factor) is may
