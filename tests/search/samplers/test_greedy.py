"""The greedy searches against all candidates, where damage adds up."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from intact.search.samplers import SAMPLERS
from intact.search.trial import Goal, State
from tests.search.samplers.landscapes import (
    SAMPLES,
    Landscape,
    additive,
    mixed,
    search,
    space_of,
    winner,
)

GREEDY = ("greedy", "batched-greedy")
names = pytest.mark.parametrize("name", GREEDY)


def found(name: str, landscape: Landscape, goal: Goal, budget: int = 5000):  # type: ignore[no-untyped-def]
    sampler = SAMPLERS[name].make(landscape.space, goal, landscape.cost, 0)
    trials = search(sampler, landscape, budget)
    assert not sampler.ask()
    return trials, winner(trials, goal)


def cheapest(landscape: Landscape, least: float) -> float:
    candidates = itertools.product(*(group.choices for group in landscape.space.groups))
    return min(landscape.cost.of(each) for each in candidates if landscape.score(each) >= least)


@names
def test_the_cheapest_is_found_where_groups_do_not_compete(name: str) -> None:
    # damage is 1 at 4 bits and 1/4 at 5: groups are harmless down to a width, or ruinous
    landscape = additive(
        space_of(*[(8, 7, 6, 5, 4)] * 5), [0.0, 4.0, 0.0, 64.0, 0.001], [7, 3, 1, 2, 5]
    )
    goal = Goal(min_score=0.7)
    _, best = found(name, landscape, goal)
    assert best is not None
    assert best.cost == cheapest(landscape, 0.7)


@names
def test_hagos_rule_without_limits_loses_nothing(name: str) -> None:
    landscape = additive(space_of(*[(8, 6, 4)] * 4), [0.0, 0.5, 0.0, 0.5], [1, 1, 1, 1])
    _, best = found(name, landscape, Goal())
    assert best is not None
    assert best.candidate == (4, 8, 4, 8)


@names
def test_a_default_that_is_not_good_enough_is_widened(name: str) -> None:
    landscape = additive(space_of(*[(32, 8, 4)] * 4), [0.0, 64.0, 0.0, 32.0], [1, 1, 1, 1])
    least = 0.85  # the default loses 96 / 256
    _, best = found(name, landscape, Goal(min_score=least))
    assert best is not None
    assert best.cost == cheapest(landscape, least) == 32 + 4 + 4 + 8


@names
def test_a_cost_is_met_where_it_hurts_least(name: str) -> None:
    landscape = additive(space_of(*[(8, 4)] * 6), [0.3, 0.01, 0.2, 0.02, 0.1, 0.03], [1] * 6)
    trials, best = found(name, landscape, Goal(max_cost=36.0))
    assert best is not None
    assert best.candidate == (8, 4, 8, 4, 8, 4)
    assert len(trials) < 30


@names
def test_rounds_end_with_a_cost_that_cannot_be_met(name: str) -> None:
    landscape = mixed(6, 3)
    _, best = found(name, landscape, Goal(max_cost=1.0))
    assert best is None


def test_steps_that_save_nothing_are_not_tried() -> None:
    landscape = additive(space_of(*[(8, 6, 4)] * 4), [0.0] * 4, [0, 1, 0, 0])
    trials, best = found("greedy", landscape, Goal())
    assert best is not None
    assert best.candidate == (8, 4, 8, 8)
    assert len(trials) == 3


def test_the_batched_search_needs_fewer_rounds() -> None:
    landscape = mixed(40, 6, choices=(8, 6, 4))
    goal = Goal(min_score=0.97)
    rounds, costs = {}, {}
    for name in GREEDY:
        sampler = SAMPLERS[name].make(landscape.space, goal, landscape.cost, 0)
        tell, count = sampler.tell, [0]

        def counted(trials, tell=tell, count=count):  # type: ignore[no-untyped-def]
            count[0] += 1
            tell(trials)

        sampler.tell = counted  # type: ignore[method-assign]
        best = winner(search(sampler, landscape, 5000), goal)
        assert best is not None
        rounds[name], costs[name] = count[0], best.cost
    assert rounds["batched-greedy"] * 4 < rounds["greedy"]
    assert costs["batched-greedy"] <= costs["greedy"]


@pytest.mark.parametrize("seed", range(8))
def test_greedy_undoes_what_was_foreseen_wrongly(seed: int) -> None:
    whole = mixed(12, seed, choices=(8, 7, 6, 5, 4))
    least = 0.5 * (1 + whole.score(whole.space.uniform(5)))
    wrong = replace(whole, is_misjudged=lambda candidate: sum(candidate[::2]) % 5 == 0)
    trials, best = found("greedy", wrong, Goal(min_score=least))
    assert best is not None
    assert whole.score(best.candidate) >= least
    assert best.measured.state is State.COMPLETE
    part = sum(trial.measured.samples for trial in trials) / len(trials)
    assert part < 0.5 * SAMPLES
    _, right = found("greedy", whole, Goal(min_score=least))
    assert right is not None
    assert best.cost <= 1.2 * right.cost
