"""Samplers that learn do better than chance; stopped and failed trials mislead none of them."""

from __future__ import annotations

import importlib.util
import itertools
import math

import pytest

from intact.errors import MissingExtraError, UsageError
from intact.search.loop import front
from intact.search.samplers import SAMPLERS, make_sampler
from intact.search.samplers.annealing import Annealing, Energy, neighbour_of
from intact.search.samplers.greedy import Greedy
from intact.search.trial import Ask, Goal, State, Trial, TrialResult
from tests.search.samplers.landscapes import SAMPLES, constant, mixed, search, space_of, winner


def best_cost(name: str, seed: int, budget: int) -> float:
    landscape = mixed(12, 11, choices=(8, 7, 6, 5, 4))
    goal = Goal(min_score=0.95)
    sampler = make_sampler(name, landscape.space, goal, landscape.cost, seed)
    best = winner(search(sampler, landscape, budget), goal)
    assert best is not None
    return best.cost


@pytest.mark.parametrize(("name", "budget"), [("annealing", 300), ("tpe", 40)])
def test_learning_beats_chance_at_an_equal_budget(name: str, budget: int) -> None:
    """Annealing has to cool first."""
    seeds = (0, 1)
    chance = sum(best_cost("random", seed, budget) for seed in seeds)
    assert sum(best_cost(name, seed, budget) for seed in seeds) < chance


def test_a_front_that_is_bred_beats_one_that_is_drawn() -> None:
    landscape = mixed(12, 11, choices=(8, 7, 6, 5, 4))
    areas = {"random": 0.0, "nsga2": 0.0}
    for name, seed in itertools.product(areas, (0, 1, 2)):
        sampler = make_sampler(name, landscape.space, Goal(), landscape.cost, seed)
        whole = front(search(sampler, landscape, 150), SAMPLES)
        ends = [*(trial.cost for trial in whole[1:]), landscape.cost.of(landscape.space.default)]
        widths = [end - trial.cost for end, trial in zip(ends, whole, strict=True)]
        areas[name] += sum(trial.score * width for trial, width in zip(whole, widths, strict=True))
    assert areas["nsga2"] > areas["random"]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_stopped_estimate_never_wins(name: str) -> None:
    """Estimates of stopped trials lie above the bar in the landscapes, and are not believed."""
    landscape = mixed(6, 9)
    goal = Goal(min_score=0.95)
    sampler = make_sampler(name, landscape.space, goal, landscape.cost, 0)
    trials = search(sampler, landscape, 50)
    assert any(trial.measured.state is State.STOPPED for trial in trials) or name == "sensitivity"
    best = winner(trials, goal)
    assert best is not None
    told = sampler.best  # type: ignore[attr-defined]
    assert told is None or landscape.score(told.candidate) >= 0.95


def test_scores_of_stopped_and_failed_trials_are_below_the_bar() -> None:
    landscape = constant()
    sampler = Greedy(landscape.space, Goal(), landscape.cost, 0)
    sampler.tell([Trial(0, landscape.space.default, 48.0, complete(0.5))])
    (ask,) = sampler.ask()
    assert ask.bar == 0.5
    stopped = Trial(1, ask.candidate, 46.0, TrialResult(State.STOPPED, 0.9, 0.1, 5))
    sampler.tell([stopped])
    assert sampler.score(stopped) == math.nextafter(0.5, 0)
    assert not sampler.accepts(stopped)
    failed = Trial(2, landscape.space.uniform(4), 1.0, TrialResult(State.FAILED, math.nan, 0.1, 0))
    assert sampler.score(failed) == -math.inf
    assert not sampler.reaches(failed, -math.inf)


def complete(score: float) -> TrialResult:
    return TrialResult(State.COMPLETE, score, 0.1, 100)


@pytest.mark.parametrize("goal", [Goal(), Goal(min_score=0.9), Goal(max_cost=30.0), Goal(0.9, 30)])
@pytest.mark.parametrize("cost", [10.0, 31.0, 60.0])
@pytest.mark.parametrize("most", [-5.0, 0.0, 0.1, 3.0])
def test_the_bar_of_an_energy_is_where_it_is_reached(goal: Goal, cost: float, most: float) -> None:
    energy = Energy(goal, score=0.95, cost=48.0, loss=0.5, saving=24.0, allowed=0.05, unit=0.25)
    bar = energy.bar(most, cost)
    if bar == math.inf:
        assert energy.of(1e9, cost) > most
        return
    assert energy.of(bar, cost) <= most + 1e-9
    assert energy.of(bar - 1e-3, cost) > most or goal.min_score is None
    assert energy.of(bar - 1e-3, cost) >= energy.of(bar, cost)


def test_moves_change_a_tenth_of_the_groups_by_two_places() -> None:
    import numpy as np

    space = space_of(*[(8, 7, 6, 5, 4)] * 30, (8,))
    generator = np.random.default_rng(0)
    for _ in range(200):
        changed = neighbour_of(space, space.uniform(6), generator)
        steps = [abs(bits - 6) for bits in changed[:-1] if bits != 6]
        assert len(steps) == 3
        assert set(steps) <= {1, 2}
        assert changed[-1] == 8


def test_annealing_asks_for_scores_that_matter_only() -> None:
    landscape = mixed(10, 12)
    sampler = Annealing(landscape.space, Goal(min_score=0.95), landscape.cost, 0)
    bars = []
    for _ in range(30):
        asks: list[Ask] = list(sampler.ask())
        bars += [ask.bar for ask in asks]
        trials = [
            Trial(n, ask.candidate, landscape.cost.of(ask.candidate), landscape.measured(ask))
            for n, ask in enumerate(asks)
        ]
        sampler.tell(trials)
    assert any(bar is not None for bar in bars)
    assert all(bar is None or bar <= 0.95 for bar in bars)


def test_an_unknown_sampler_is_refused_with_the_nearest_name() -> None:
    landscape = constant()
    with pytest.raises(UsageError, match="no sampler 'gredy'; did you mean 'greedy'"):
        make_sampler("gredy", landscape.space, Goal(), landscape.cost, 0)


@pytest.mark.parametrize("name", ["tpe", "nsga2"])
def test_a_missing_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    landscape = constant()
    with pytest.raises(
        MissingExtraError, match=r'needs optuna.*pip install "intact-quantizer\[search\]"'
    ):
        make_sampler(name, landscape.space, Goal(), landscape.cost, 0)
    assert SAMPLERS[name].extra == "search"


def test_optuna_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    landscape = constant()
    for name in ("tpe", "nsga2"):
        sampler = make_sampler(name, landscape.space, Goal(), landscape.cost, 0)
        search(sampler, landscape, 12)
    assert capfd.readouterr().err == ""
