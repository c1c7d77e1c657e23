"""What every sampler must do, whatever it searches: `check` runs all of it for one constructor."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from intact.errors import UsageError
from intact.search.samplers import Cost
from intact.search.space import Candidate, Space
from intact.search.trial import Ask, Goal, Sampler, State, Trial, TrialResult
from tests.search.samplers import landscapes
from tests.search.samplers.landscapes import SAMPLES, Landscape, search, space_of, winner

Make = Callable[[Space, Goal, Cost, int], Sampler]

LANDSCAPES: dict[str, Callable[[], Landscape]] = {
    "additive": lambda: landscapes.additive(
        space_of(*[(32, 8, 7, 6, 5, 4)] * 5), [0.01, 0.2, 0.03, 0.0, 0.1], [3, 1, 4, 1, 5]
    ),
    "mixed": lambda: landscapes.mixed(9, 1),
    "constant": landscapes.constant,
    "failing": landscapes.failing,
    "sometimes failing": landscapes.sometimes_failing,
    "infinite": landscapes.infinite,
    "one group": lambda: landscapes.additive(space_of((32, 8, 4)), [0.1], [1]),
    "some closed": lambda: landscapes.additive(
        space_of((8,), (8, 4), (6,), (32, 8, 4), (32,)), [0.1] * 5, [1] * 5
    ),
    "free": lambda: landscapes.additive(space_of(*[(8, 6, 4)] * 3), [0.1, 0.2, 0.3], [0, 0, 0]),
}
GOALS: dict[str, Callable[[Landscape], Goal]] = {
    "none": lambda _: Goal(),
    "score": lambda _: Goal(min_score=0.9),
    "cost": lambda scape: Goal(max_cost=0.7 * scape.cost.of(scape.space.default)),
    "both": lambda scape: Goal(0.8, 0.9 * scape.cost.of(scape.space.default)),
    "impossible score": lambda _: Goal(min_score=1e9),
    "impossible cost": lambda _: Goal(max_cost=-1.0),
}
BUDGET = 16


def check(make: Make, landscape: Landscape, goal: Goal, seed: int = 0) -> list[Trial]:
    """Run a search of a sampler, and hold it to all that may be expected of it."""
    trials = search(make(landscape.space, goal, landscape.cost, seed), landscape, BUDGET)
    _asks_are_sound(trials, landscape.space)
    _replays(make, landscape, goal, seed, trials)
    return trials


def check_small_spaces(make: Make) -> None:
    """Hold a sampler to ending, in spaces that are soon exhausted."""
    small: list[list[tuple[int, ...]]] = [
        [],
        [(8,)],
        [(8,), (32,)],
        [(8, 4)],
        [(32, 8)],
        [(32, 8, 4), (8, 4)],
    ]
    for choices in small:
        landscape = landscapes.additive(
            space_of(*choices), [0.1] * len(choices), [1] * len(choices)
        )
        for goal in [Goal(), Goal(min_score=0.5), Goal(max_cost=6.0)]:
            sampler = make(landscape.space, goal, landscape.cost, 0)
            trials = search(sampler, landscape, 100)
            _asks_are_sound(trials, landscape.space)
            assert sum(trial.counts(SAMPLES) for trial in trials) <= landscape.space.size
            assert list(sampler.ask()) == []
            assert list(sampler.ask()) == []


def check_refusals(make: Make) -> None:
    """Hold a sampler to refusing results that it did not ask for."""
    landscape = landscapes.constant()
    sampler = make(landscape.space, Goal(), landscape.cost, 0)
    (ask,) = sampler.ask()
    assert sampler.ask() == [ask]
    assert ask == Ask(landscape.space.default)
    measured = TrialResult(State.COMPLETE, 0.5, 0.1, 10)
    for told in [[], [Trial(0, landscape.space.uniform(4), 1.0, measured)]]:
        with pytest.raises(UsageError, match="not the results of the last ask"):
            sampler.tell(told)
    assert sampler.ask() == [ask]


def check_huge_spaces(make: Make) -> None:
    """Hold a sampler to working with a hundred groups, more candidates than can be counted."""
    landscape = landscapes.mixed(100, 5)
    trials = search(make(landscape.space, Goal(0.9), landscape.cost, 0), landscape, BUDGET)
    _asks_are_sound(trials, landscape.space)


def check_finds(make: Make, goal: Goal, budget: int = 60) -> Trial:
    """Return what a sampler finds on an easy landscape, where it must find something better."""
    landscape = landscapes.mixed(8, 2)
    trials = search(make(landscape.space, goal, landscape.cost, 0), landscape, budget)
    found = winner(trials, goal)
    assert found is not None
    default = trials[0]
    if goal.accepts(default):
        rank = goal.rank(found.score, found.cost)
        assert rank > goal.rank(default.score, default.cost)
    return found


def _asks_are_sound(trials: list[Trial], space: Space) -> None:
    """No candidate is illegal or asked again; the default is the first, and whole.

    One that ran on fewer samples, or was stopped, may be asked once more.
    """
    assert trials
    assert trials[0].candidate == space.default
    assert trials[0].measured.state is not State.STOPPED
    for trial in trials:
        space.check(trial.candidate)
        assert all(type(bits) is int for bits in trial.candidate)
    seen: dict[Candidate, list[bool]] = {}
    for trial in trials:
        seen.setdefault(trial.candidate, []).append(trial.counts(SAMPLES))
    assert all(len(each) <= 2 and sum(each) <= 1 for each in seen.values())


def _replays(make: Make, landscape: Landscape, goal: Goal, seed: int, trials: list[Trial]) -> None:
    """The same results lead to the same asks, bars too: also when they come from a log."""
    again = make(landscape.space, goal, landscape.cost, seed)
    left = list(trials)
    while left:
        asks = list(again.ask())
        told = left[: len(asks)]
        assert [ask.candidate for ask in asks[: len(told)]] == [each.candidate for each in told]
        for ask, trial in zip(asks, told, strict=False):
            assert ask.bar is None or not math.isnan(ask.bar)
            assert _same(landscape.measured(ask), trial.measured)
        del left[: len(asks)]
        if len(told) == len(asks):
            again.tell(told)


def _same(one: TrialResult, other: TrialResult) -> bool:
    return repr(one) == repr(other)  # NaN is not itself
