"""The Pareto front against brute force."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from intact.search.loop import best, front, nearest
from intact.search.trial import Goal, State, Trial, TrialResult

SAMPLES = 50


def trial(
    number: int,
    score: float,
    cost: float,
    state: State = State.COMPLETE,
    samples: int = SAMPLES,
) -> Trial:
    return Trial(number, (number,), cost, TrialResult(state, score, 0.1, samples))


scores = st.sampled_from([-math.inf, -2.0, 0.0, 0.5, 0.9, 1.0, math.inf, math.nan])
costs = st.sampled_from([-1.0, 0.0, 1.0, 2.0, 3.0, 10.0])
states = st.sampled_from([State.COMPLETE] * 4 + [State.STOPPED, State.FAILED])
counts = st.sampled_from([SAMPLES] * 4 + [10])
some_trials = st.lists(st.tuples(scores, costs, states, counts), max_size=12).map(
    lambda rows: [trial(number, *row) for number, row in enumerate(rows)]
)
limits = st.none() | st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.5])


def whole(trials: list[Trial]) -> list[Trial]:
    return [
        each
        for each in trials
        if each.measured.state is State.COMPLETE
        and each.measured.samples == SAMPLES
        and not math.isnan(each.score)
    ]


def dominates(one: Trial, other: Trial) -> bool:
    if one.score == other.score and one.cost == other.cost:
        return one.number < other.number
    return one.score >= other.score and one.cost <= other.cost


@given(some_trials, st.randoms())
def test_nothing_on_the_front_is_dominated_and_all_else_is(trials, random) -> None:  # type: ignore[no-untyped-def]
    expected = [
        each
        for each in whole(trials)
        if not any(dominates(other, each) for other in whole(trials) if other is not each)
    ]
    expected.sort(key=lambda each: each.cost)
    random.shuffle(trials)
    assert front(trials, SAMPLES) == expected


@given(some_trials, limits, limits)
def test_the_best_is_accepted_and_none_is_better(
    trials: list[Trial], least: float | None, most: float | None
) -> None:
    goal = Goal(least, most)
    found = best(trials, goal, SAMPLES)
    held = [
        each
        for each in whole(trials)
        if (least is None or each.score >= least) and (most is None or each.cost <= most)
    ]
    if found is None:
        assert not held
        return
    assert found in held
    if least is not None:
        assert found.cost == min(each.cost for each in held)
        held = [each for each in held if each.cost == found.cost]
    assert found.score == max(each.score for each in held)
    alike = [each for each in held if (each.score, each.cost) == (found.score, found.cost)]
    if least is None:
        assert found.cost == min(each.cost for each in held if each.score == found.score)
    assert found.number == min(each.number for each in alike)


@given(some_trials, limits, limits)
def test_the_nearest_are_the_extremes(
    trials: list[Trial], least: float | None, most: float | None
) -> None:
    found = nearest(trials, Goal(least, most), SAMPLES)
    kept = whole(trials)
    affordable = [each.score for each in kept if most is None or each.cost <= most]
    good = [each.cost for each in kept if least is None or each.score >= least]
    assert (found.affordable is None) == (not affordable)
    assert (found.good is None) == (not good)
    assert (found.cheapest is None) == (not kept)
    if found.affordable is not None:
        assert found.affordable.score == max(affordable)
    if found.good is not None:
        assert found.good.cost == min(good)
    if found.cheapest is not None:
        assert found.cheapest.cost == min(each.cost for each in kept)


def test_a_front_of_nothing_is_empty() -> None:
    assert front([], SAMPLES) == []
    assert best([], Goal(), SAMPLES) is None
    assert front([trial(0, 1.0, 1.0, samples=10)], SAMPLES) == []
