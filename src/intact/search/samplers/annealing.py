"""Searches widths by simulated annealing.

Source: [tvm], "Search": temperature from .5 to .0005, times .99 a trial; a move changes
10 % of the groups by up to 2 bits. There the energy is the accuracy; here it follows from the goal:

- ``min_score``: the cost, plus the shortfall of the score.
- ``max_cost``: the loss of score, plus the excess of the cost.
- Neither: the loss of score, plus a thousandth of the cost.

Score and cost are normalized: differences to the default candidate, divided by the difference
between it and the narrowest candidate, which is the second trial. The shortfall of the score is
divided by the allowed loss. All is divided by the share of groups that a move changes, so that a
temperature means the same for any score, cost and number of groups.

A move is accepted if the energy rises by at most ``-T log u`` for a uniform ``u``. That number is
drawn before the trial, so the score that the trial must reach is known; moves that no score could
justify cost no trial. Several moves are measured in parallel, and the search goes on from the best
accepted one. At the lowest temperature it restarts from the best trial.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from intact.search.samplers.base import Bar, GeneratorSampler, SearchGenerator, finite
from intact.search.space import Candidate, Space
from intact.search.trial import Goal, Trial

HOTTEST, COLDEST, COOLING = 0.5, 0.0005, 0.99
SHARE, REACH = 0.1, 2
BATCH = 4
DRAWS = 200
"""Batches of moves without a new candidate after which the search ends."""


@dataclass(frozen=True)
class Energy:
    """The energy to minimize.

    Attributes:
        goal: The limits.
        score: Score of the default candidate.
        cost: Cost of the default candidate.
        loss: Difference in score between the default and the narrowest candidate; positive.
        saving: Difference in cost between them; positive.
        allowed: Unit of the shortfall of the score; positive.
        unit: Share of groups that a move changes.
    """

    goal: Goal
    score: float
    cost: float
    loss: float
    saving: float
    allowed: float
    unit: float

    def of(self, score: float, cost: float) -> float:
        """Compute the energy of a result."""
        least = self.goal.min_score
        if least is None:
            return self._of_cost(cost) + (self.score - score) / self.loss / self.unit
        return self._of_cost(cost) + max(0.0, least - score) / self.allowed / self.unit

    def bar(self, most: float, cost: float) -> float:
        """Compute the least score for which the energy is at most ``most``, at a given cost."""
        left = (most - self._of_cost(cost)) * self.unit
        least = self.goal.min_score
        if least is None:
            return self.score - left * self.loss
        return math.inf if left < 0 else least - left * self.allowed

    def _of_cost(self, cost: float) -> float:
        share = (cost - self.cost) / self.saving
        limit = self.goal.max_cost
        over = 0.0 if limit is None else max(0.0, cost - limit) / self.saving
        if self.goal.min_score is not None:
            return (share + over) / self.unit
        # A thousandth orders candidates of equal score; ten times the excess outweighs any gain in
        # score.
        return (1e-3 * share + (10 * over)) / self.unit


class Annealing(GeneratorSampler):
    """Simulated annealing with the parameters of [tvm]."""

    name = "annealing"

    def search(self, base: Trial) -> SearchGenerator:
        """Cool and restart until no new candidate is found."""
        generator = np.random.default_rng(self.seed)
        narrowest = tuple(group.choices[-1] for group in self.space.groups)
        # On all samples, since both ends of the scale follow from it.
        (end,) = yield from self.measure([narrowest])
        energy = self._energy(base, end)
        temperature, here, idle = HOTTEST, base, 0
        while idle < DRAWS:
            start = self._of(energy, here)
            most: dict[Candidate, float] = {}
            for _ in range(BATCH):
                candidate = neighbour_of(self.space, here.candidate, generator)
                # `random` may return 0 and never 1: `log1p(-u)` is finite, `log(u)` would not be.
                allowed = start - temperature * math.log1p(-generator.random())
                # A candidate that was drawn twice has two chances, so the larger allowance holds.
                most[candidate] = max(allowed, most.get(candidate, -math.inf))
                temperature = max(COLDEST, temperature * COOLING)
            bars = {each: energy.bar(most[each], self.guess(each)) for each in most}
            # Known candidates cost no trial, so they stay whatever their bar.
            tried = [each for each in most if not self.is_new(each) or bars[each] < math.inf]
            idle = 0 if any(self.is_new(each) for each in tried) else idle + 1
            trials = yield from self.measure(tried, self._lowest(bars))
            taken = [trial for trial in trials if self._of(energy, trial) <= most[trial.candidate]]
            here = min(taken, key=lambda trial: self._of(energy, trial), default=here)
            if temperature == COLDEST:
                # From the best and not from the start: what was found is not thrown away.
                temperature, here = HOTTEST, self.best or here

    def _energy(self, base: Trial, end: Trial) -> Energy:
        score, lowest = self.score(base), self.score(end)
        # Where the default failed, any number does: only differences to it are used.
        score = 0.0 if score == -math.inf else score
        loss = score - lowest
        # The narrowest candidate may fail, or be as good: each unit has to be positive and finite.
        loss = loss if 0 < loss < math.inf else abs(score) or 1.0
        saving = base.cost - end.cost
        least = self.goal.min_score
        allowed = 0.0 if least is None else abs(score - least)
        return Energy(
            self.goal,
            score=score,
            cost=base.cost,
            loss=loss,
            saving=saving if saving > 0 else abs(base.cost) or 1.0,
            # Where next to nothing may be lost, a shortfall would otherwise count without end.
            allowed=max(allowed, 0.01 * loss),
            unit=_changed_count(self.space) / len(self.space.open),
        )

    def _of(self, energy: Energy, trial: Trial) -> float:
        return energy.of(self.score(trial), trial.cost)

    def _lowest(self, bars: Mapping[Candidate, float]) -> Bar:
        """Return the bar of each candidate: below it neither the move nor the goal accepts it."""

        def bar(candidate: Candidate) -> float | None:
            goal = self.bar(candidate)
            return None if goal is None else finite(min(goal, bars[candidate]))

        return bar


def neighbour_of(space: Space, candidate: Candidate, generator: np.random.Generator) -> Candidate:
    """Make a random neighbour: a tenth of the open groups, each up to two choices wider or
    narrower.
    """
    changed = list(candidate)
    for index in generator.choice(len(space.open), _changed_count(space), replace=False):
        choices = space.groups[space.open[index]].choices
        place = choices.index(candidate[space.open[index]])
        others = [each for each in range(place - REACH, place + REACH + 1) if each != place]
        others = [each for each in others if 0 <= each < len(choices)]
        changed[space.open[index]] = choices[others[generator.integers(len(others))]]
    return tuple(changed)


def _changed_count(space: Space) -> int:
    return max(1, round(SHARE * len(space.open)))
