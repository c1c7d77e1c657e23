"""Every sampler, on every kind of landscape, for every kind of goal."""

from __future__ import annotations

import pytest

from intact.search.samplers import SAMPLERS
from intact.search.trial import Goal
from tests.search.samplers import contract

names = pytest.mark.parametrize("name", SAMPLERS)


@names
@pytest.mark.parametrize("goal", contract.GOALS)
@pytest.mark.parametrize("landscape", contract.LANDSCAPES)
def test_a_search_is_sound_and_replays(name: str, landscape: str, goal: str) -> None:
    scape = contract.LANDSCAPES[landscape]()
    contract.check(SAMPLERS[name].make, scape, contract.GOALS[goal](scape))


@names
def test_small_spaces_are_exhausted(name: str) -> None:
    contract.check_small_spaces(SAMPLERS[name].make)


@names
def test_huge_spaces_are_searched(name: str) -> None:
    contract.check_huge_spaces(SAMPLERS[name].make)


@names
def test_results_that_were_not_asked_for_are_refused(name: str) -> None:
    contract.check_refusals(SAMPLERS[name].make)


@names
@pytest.mark.parametrize("goal", [Goal(min_score=0.97), Goal(max_cost=2000.0), Goal(0.9, 2500.0)])
def test_something_better_than_the_default_is_found(name: str, goal: Goal) -> None:
    contract.check_finds(SAMPLERS[name].make, goal)
