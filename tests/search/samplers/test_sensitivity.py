"""Sensitivity on made-up noise that adds up, as it assumes, against trying everything."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from intact.search.cost import CostModel, Term
from intact.search.samplers.probes import NoiseModel, rounding_power
from intact.search.samplers.sensitivity import Sensitivity, lower_noise
from intact.search.space import FLOAT, Candidate, Space
from intact.search.trial import Ask, Goal, State, Trial, TrialResult
from tests.search.samplers.landscapes import space_of

SAMPLES = 512
CHOICES = (FLOAT, 8, 6, 4)


@dataclass(frozen=True)
class Additive:
    """Groups whose noises add; the score falls with the noise."""

    space: Space
    cost: CostModel
    units: tuple[float, ...]
    fails: Callable[[Candidate], bool] = lambda _: False

    def noise(self, candidate: Candidate) -> float:
        pairs = zip(self.units, candidate, strict=True)
        return sum(unit * rounding_power(bits) for unit, bits in pairs)

    def score(self, candidate: Candidate) -> float:
        return 1.0 / (1.0 + 20 * self.noise(candidate))

    def measured(self, ask: Ask) -> TrialResult:
        if self.fails(ask.candidate):
            return TrialResult(State.FAILED, math.nan, math.nan, 0, reason="made up")
        score, noise = self.score(ask.candidate), self.noise(ask.candidate)
        if ask.bar is not None and score < ask.bar:
            return TrialResult(State.STOPPED, score, noise, 100)
        return TrialResult(State.COMPLETE, score, noise, ask.samples or SAMPLES)

    def search(self, goal: Goal, most: int = 2000) -> list[Trial]:
        sampler = Sensitivity(self.space, goal, self.cost, 0)
        trials: list[Trial] = []
        while (asks := sampler.ask()) and len(trials) < most:
            told = [
                Trial(len(trials) + k, ask.candidate, self.cost.of(ask.candidate), measured)
                for k, ask in enumerate(asks)
                for measured in [self.measured(ask)]
            ]
            trials += told
            sampler.tell(told)
        assert len(trials) < most
        return trials

    def every(self) -> list[Candidate]:
        return list(product(*(group.choices for group in self.space.groups)))


def additive(count: int, seed: int, *, pairs: bool = False) -> Additive:
    generator = np.random.default_rng(seed)
    choices = (CHOICES,) * count
    weights = generator.integers(1, 100, count)
    terms = [
        Term((k,), np.array([float(weight * bits) for bits in CHOICES]))
        for k, weight in enumerate(weights)
    ]
    if pairs:
        table = np.outer(CHOICES, CHOICES).astype(np.float64)
        terms += [Term((k, k + 1), int(weights[k]) * table) for k in range(0, count - 1, 2)]
    units = tuple(float(each) for each in generator.lognormal(0.0, 1.5, count))
    cost = CostModel("made up", "", 5.0, tuple(terms), choices)
    return Additive(space_of(*choices), cost, units)


def best(trials: list[Trial], goal: Goal) -> Trial | None:
    whole = [each for each in trials if each.counts(SAMPLES) and goal.accepts(each)]
    return max(whole, key=lambda each: goal.rank(each.score, each.cost), default=None)


def optimum(scape: Additive, goal: Goal) -> tuple[float, float]:
    """Return score and cost of the best candidate there is."""
    every = scape.every()
    scores = [scape.score(each) for each in every]
    measured = list(zip(scores, scape.cost.of_many(every).tolist(), strict=True))
    held = [
        (score, cost)
        for score, cost in measured
        if (goal.min_score is None or score >= goal.min_score)
        and (goal.max_cost is None or cost <= goal.max_cost)
    ]
    return max(held, key=lambda each: goal.rank(*each))


cases = pytest.mark.parametrize(("seed", "pairs"), [(0, False), (1, False), (2, True), (3, True)])


@cases
def test_with_a_limit_of_the_score_it_comes_near_the_cheapest(seed: int, pairs: bool) -> None:
    scape = additive(6, seed, pairs=pairs)
    goal = Goal(min_score=0.9)
    found = best(scape.search(goal), goal)
    assert found is not None
    assert found.cost <= optimum(scape, goal)[1] * 1.05


@cases
def test_with_a_limit_of_the_cost_it_finds_the_best(seed: int, pairs: bool) -> None:
    scape = additive(6, seed, pairs=pairs)
    goal = Goal(max_cost=0.7 * scape.cost.of(scape.space.default))
    found = best(scape.search(goal), goal)
    assert found is not None
    assert found.score >= optimum(scape, goal)[0] - 0.002


@cases
def test_with_both_limits_the_score_comes_first_and_then_the_cost(seed: int, pairs: bool) -> None:
    scape = additive(6, seed, pairs=pairs)
    cheapest = optimum(scape, Goal(min_score=0.9))[1]
    goal = Goal(0.9, 1.05 * cheapest)
    assert best(scape.search(goal), goal) is not None


def test_a_default_that_is_not_good_enough_is_widened() -> None:
    scape = additive(6, 4)
    goal = Goal(min_score=(1 + scape.score(scape.space.default)) / 2)
    found = best(scape.search(goal), goal)
    assert found is not None
    assert FLOAT in found.candidate


def test_without_limits_it_follows_the_front() -> None:
    scape = additive(6, 5)
    whole = [each for each in scape.search(Goal()) if each.counts(SAMPLES)]
    costs = [each.cost for each in whole]
    assert min(costs) == scape.cost.of(scape.space.uniform(4))
    for trial in whole[1:]:
        better = [
            each for each in whole if each.score > trial.score + 0.001 and each.cost < trial.cost
        ]
        assert not better


@pytest.mark.parametrize("goal", [Goal(min_score=2.0), Goal(max_cost=1.0), Goal(2.0, 1.0)])
def test_impossible_limits_end(goal: Goal) -> None:
    scape = additive(6, 6)
    assert best(scape.search(goal), goal) is None


def test_an_impossible_cost_is_shown_how_near_it_came() -> None:
    scape = additive(6, 6)
    trials = scape.search(Goal(max_cost=1.0))
    assert scape.space.uniform(4) in {each.candidate for each in trials}


def test_groups_that_fail_are_left_alone() -> None:
    whole = additive(6, 7)
    scape = Additive(whole.space, whole.cost, whole.units, lambda each: each[2] < 8)
    goal = Goal(min_score=0.8)
    trials = scape.search(goal)
    found = best(trials, goal)
    assert found is not None
    assert found.candidate[2] >= 8
    assert found.cost < trials[0].cost
    assert sum(each.measured.state is State.FAILED for each in trials) <= 2


def test_a_measured_cost_holds_its_limit() -> None:
    whole = additive(6, 8)
    guess = whole.cost

    def measure(candidate: Candidate) -> float:
        return float(3.0 * guess.of(candidate) ** 1.1)

    cost = CostModel("latency", "s", guess.constant, guess.terms, guess.choices, measure)
    scape = Additive(whole.space, cost, whole.units)
    goal = Goal(max_cost=0.7 * cost.of(scape.space.default))
    found = best(scape.search(goal), goal)
    assert found is not None
    assert found.cost > 0.5 * cost.of(scape.space.default)


def test_many_groups_take_few_evaluations() -> None:
    scape = additive(50, 9)
    goal = Goal(min_score=0.9)
    trials = scape.search(goal)
    samples = 0
    for trial in trials:
        samples += trial.measured.samples
        if trial.counts(SAMPLES) and trial.score >= 0.9 and trial.cost < 0.75 * trials[0].cost:
            break
    assert samples / SAMPLES < 15  # greedy takes more than 50


def test_the_same_seed_asks_the_same() -> None:
    first, second = (additive(12, 10).search(Goal(min_score=0.9)) for _ in range(2))
    assert [each.candidate for each in first] == [each.candidate for each in second]


def test_noise_goes_with_the_rounding_power() -> None:
    model = NoiseModel(space_of((FLOAT, 8, 6, 4)))
    model.learn(0, 4, 255.0)
    row = model.table()[0]
    assert row.tolist() == [-1.0, 0.0, 15.0, 255.0]


def test_negative_noise_of_integers_is_none_of_floats_stays() -> None:
    model = NoiseModel(space_of((FLOAT, 8, 4)))
    model.learn(0, 4, -0.5)
    model.learn(0, FLOAT, -0.25)
    assert model.table()[0].tolist() == [-0.25, 0.0, 0.0]


@pytest.mark.parametrize("added", [math.nan, math.inf])
def test_a_group_that_failed_keeps_its_default(added: float) -> None:
    model = NoiseModel(space_of((FLOAT, 8, 6, 4)))
    model.learn(0, 4, added)
    assert model.table()[0].tolist() == [0.0, 0.0, math.inf, math.inf]
    model.learn(0, FLOAT, added)
    assert model.table()[0].tolist() == [math.inf, 0.0, math.inf, math.inf]


def corrected(added: float, present: float, samples: int = 16) -> float:
    """What a step from 8 to 4 bits is taken to add, where 1 was expected."""
    model = NoiseModel(space_of((8, 4)))
    model.learn(0, 4, 1.0)
    model.correct(0, 8, 4, added, present=present, samples=samples)
    return float(model.table()[0][1])


def test_corrections_are_believed_where_little_else_is_wrong() -> None:
    assert corrected(3.0, present=0.0) == pytest.approx(3.0)
    assert corrected(3.0, present=4.0, samples=16) == pytest.approx(2.0)  # as likely either way
    assert corrected(3.0, present=1e9) == pytest.approx(1.0)


def test_corrections_are_bounded() -> None:
    assert corrected(1000.0, present=0.0) == pytest.approx(16.0)
    assert corrected(-1.0, present=0.0) == pytest.approx(1 / 16)
    assert corrected(math.nan, present=0.0) == math.inf


@pytest.mark.parametrize(
    ("points", "wanted"),
    [
        ([(8.0, 0.68)], 2.5),
        ([(7.0, 0.89)], 5.0),  # a near miss may be bad luck: only a little less
        ([(8.0, -99.0)], 0.5),  # at least a sixteenth
        ([(8.0, 1.5)], 0.5),  # no fall: nothing is known
        ([(8.0, math.nan)], 0.5),
        ([(9.0, -math.inf), (4.0, 0.8)], 2.0),
        ([(8.0, 0.6), (4.0, 0.7)], 80 / 44),  # least squares: (8 .4 + 4 .3) / 80 a unit
    ],
)
def test_less_noise_is_looked_for_where_a_line_meets_the_limit(
    points: list[tuple[float, float]], wanted: float
) -> None:
    assert lower_noise(points, (0.0, 1.0), 0.9) == pytest.approx(wanted)
