"""Greedy search: one group after the other, as narrow as the score allows.

Source: the facts, "HAGO, Search": start at the default (the most bits), walk the edges in
topological order, lower the bits of one until the accuracy falls below the best, then freeze it.
What "falls below" means follows from the goal:

- No limits: below the best score so far (HAGO's rule).
- ``min_score``: below that limit. Where the default does not reach it, groups are first widened
  (to float, where that is a choice) as long as the score rises, until it is reached.
- ``max_cost``, and the default is dearer: every step loses something, and HAGO's rule would stop
  at once. So the walk is given an allowance, the score that may be lost per unit of cost saved: 0
  in the first pass, afterwards twice what it was, or the median rate of the steps that the last
  pass refused where that is more. It ends when the limit is met; what is left of it is spent on
  widening groups.

Passes are repeated until one changes nothing. A step goes to the next choice that is cheaper.
"""

from __future__ import annotations

import math

from intact.search.samplers.base import Finding, Walk, WalkingSampler, finite
from intact.search.samplers.steps import loss_ratio, narrower, wider
from intact.search.space import Candidate
from intact.search.trial import Trial


class Greedy(WalkingSampler):
    """HAGO's greedy search; asks one candidate at a time."""

    name = "greedy"

    def search(self, base: Trial) -> Walk:
        """Walk the groups in topological order."""
        goal = self.goal
        if goal.min_score is not None:
            least = goal.min_score
            base = yield from self._widen(base, until=least)
            if self.reaches(base, least):
                yield from self._lower(base, least=least)
            return
        if goal.max_cost is not None and base.cost > goal.max_cost:
            base = yield from self._squeeze(base, goal.max_cost)
        else:
            base = yield from self._lower(base)
        if goal.max_cost is not None and base.cost <= goal.max_cost:
            yield from self._widen(base, limit=goal.max_cost)

    def _lower(self, base: Trial, least: float | None = None) -> Finding:
        """Lower each group as long as the score reaches ``least``, or the best where it is None."""
        start = None
        while start is not base:
            start = base
            for index in self.space.open:
                while (step := self._narrower(base, index)) is not None:
                    reached = self.score(base) if least is None else least
                    trial = yield from self._one(step, finite(reached))
                    if not self.reaches(trial, reached):
                        break
                    base = trial
        return base

    def _widen(self, base: Trial, *, until: float = math.inf, limit: float = math.inf) -> Finding:
        """Widen groups while that raises the score, until it is reached or the cost would pass."""
        start = None
        while start is not base:
            start = base
            for index in self.space.open:
                while self.score(base) < until:
                    step = wider(self.space, base.candidate, index)
                    if step is None or self.guess(step) > limit:
                        break
                    trial = yield from self._one(step, finite(self.score(base)))
                    if not self.score(trial) > self.score(base):
                        break
                    base = trial
        return base

    def _squeeze(self, base: Trial, limit: float) -> Finding:
        """Lower groups until the cost is within its limit, giving away the cheapest score first."""
        allowance = 0.0
        while True:
            start = base
            refused = []
            for index in self.space.open:
                while (step := self._narrower(base, index)) is not None:
                    trial = yield from self._one(step, None)
                    loss = self.score(base) - self.score(trial)
                    rate = loss_ratio(loss, base.cost - trial.cost)
                    if not rate <= allowance:
                        refused.append(rate)
                        break
                    base = trial
                    if base.cost <= limit:
                        return base
            rates = sorted(rate for rate in refused if rate < math.inf)
            if rates:
                allowance = max(2 * allowance, rates[(len(rates) - 1) // 2])
            elif base is start:
                return base

    def _narrower(self, base: Trial, index: int) -> Candidate | None:
        return narrower(self.space, self.guess, base.candidate, index)

    def _one(self, candidate: Candidate, bar: float | None) -> Finding:
        return (yield from self.measure([candidate], bar))[0]
