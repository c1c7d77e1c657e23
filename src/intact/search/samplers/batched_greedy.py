"""Batched greedy search: a step of every group side by side, then those that go together.

Source: the facts, "HAGO, Search": candidates that share descriptions run on one compiled graph. A
round here has two batches. The first tries, alone, a step of each group that is not frozen; groups
whose step the goal refuses are frozen. The second tries the best 2, 4, 8, ... and all of the others
together, since what several steps lose together can only be measured. The search goes on from the
best of both batches; it is done when no step is good any more.

Steps are ordered by the score they lose for the cost they save, and by the noise that they add to
the outputs where that is the same: a metric on few samples has few values.

The goals are those of the greedy search: down as long as the score reaches a limit, or the best so
far; up first where the default does not reach it; down to a limit of cost, then up within it.
On the way to a limit of cost each round goes half of the way, so that the steps are measured again
from there, and tries the whole way beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from intact.search.samplers.base import Finding, Walk, WalkingSampler, finite
from intact.search.samplers.steps import (
    added_noise,
    loss_ratio,
    narrower,
    prefix_sizes,
    together,
    wider,
)
from intact.search.space import Candidate
from intact.search.trial import Trial


class BatchedGreedy(WalkingSampler):
    """Greedy search that asks for many candidates at once, so that there are few rounds."""

    name = "batched-greedy"

    def search(self, base: Trial) -> Walk:
        """Go down, and up where that is needed first or can be afforded afterwards."""
        goal = self.goal
        if goal.min_score is not None:
            base = yield from self._raise(base, until=goal.min_score)
            if self.reaches(base, goal.min_score):
                yield from self._lower(base, least=goal.min_score)
            return
        if goal.max_cost is not None and base.cost > goal.max_cost:
            base = yield from self._squeeze(base, goal.max_cost)
        else:
            base = yield from self._lower(base)
        if goal.max_cost is not None and base.cost <= goal.max_cost:
            yield from self._raise(base, limit=goal.max_cost)

    def _lower(self, base: Trial, least: float | None = None) -> Finding:
        """Lower groups as long as the score reaches ``least``, or the best where it is None."""
        active: Iterable[int] = self.space.open
        while True:
            reached = self.score(base) if least is None else least
            bar = finite(reached)
            singles = yield from self.measure(self._narrower(base, active), bar)
            good = [trial for trial in singles if self.reaches(trial, reached)]
            if not good:
                return base
            active = sorted(_changed(base, trial) for trial in good)
            ordered = self._by_loss(base, good)
            several = [together(base.candidate, ordered[:n]) for n in prefix_sizes(len(ordered))]
            combined = yield from self.measure(several, bar)
            good += [trial for trial in combined if self.reaches(trial, reached)]
            base = max(good, key=self._rank)

    def _raise(self, base: Trial, *, until: float = math.inf, limit: float = math.inf) -> Finding:
        """Widen groups while that raises the score, until it is reached or the cost would pass."""
        active: Iterable[int] = self.space.open
        while not self.reaches(base, until):
            bar = finite(self.score(base))
            steps = [step for index in active if (step := wider(self.space, base.candidate, index))]
            steps = [step for step in steps if self.guess(step) <= limit]
            singles = yield from self.measure(steps, bar)
            good = [trial for trial in singles if self.score(trial) > self.score(base)]
            if not good:
                return base
            active = sorted(_changed(base, trial) for trial in good)
            ordered = self._by_gain(base, good)
            several = [together(base.candidate, ordered[:n]) for n in prefix_sizes(len(ordered))]
            several = [candidate for candidate in several if self.guess(candidate) <= limit]
            combined = yield from self.measure(several, bar)
            good += [trial for trial in combined if self.score(trial) > self.score(base)]
            enough = [trial for trial in good if self.reaches(trial, until)]
            base = (
                min(enough, key=lambda trial: trial.cost)
                if enough
                else max(good, key=lambda trial: (self.score(trial), -trial.cost))
            )
        return base

    def _squeeze(self, base: Trial, limit: float) -> Finding:
        """Lower groups until the cost is within its limit, giving away the cheapest score first."""
        while base.cost > limit:
            singles = yield from self.measure(self._narrower(base, self.space.open))
            ordered = self._by_loss(base, [t for t in singles if self.score(t) > -math.inf])
            if not ordered:
                break
            whole = self._enough(base, ordered, limit)
            half = together(base.candidate, ordered[: (whole + 1) // 2])
            tried = yield from self.measure([half, together(base.candidate, ordered[:whole])])
            sound = [trial for trial in tried if self.score(trial) > -math.inf]
            base = sound[0] if sound else self.trials[ordered[0]]
        return self.best or base

    def _enough(self, base: Trial, ordered: Sequence[Candidate], limit: float) -> int:
        """Return how many steps it takes to hold the limit; all of them where they do not."""
        for count in range(1, len(ordered)):
            if self.guess(together(base.candidate, ordered[:count])) <= limit:
                return count
        return len(ordered)

    def _narrower(self, base: Trial, indices: Iterable[int]) -> list[Candidate]:
        steps = (narrower(self.space, self.guess, base.candidate, index) for index in indices)
        return [step for step in steps if step is not None]

    def _by_loss(self, base: Trial, trials: Iterable[Trial]) -> list[Candidate]:
        """Return single steps, those first that lose least for the cost they save."""

        def key(trial: Trial) -> tuple[float, float]:
            saved = base.cost - trial.cost
            loss = self.score(base) - self.score(trial)
            return loss_ratio(loss, saved), loss_ratio(added_noise(base, trial), saved)

        return [trial.candidate for trial in sorted(trials, key=key)]

    def _by_gain(self, base: Trial, trials: Iterable[Trial]) -> list[Candidate]:
        """Return single steps, those first that gain most for the cost they add."""

        def key(trial: Trial) -> float:
            added = trial.cost - base.cost
            gain = self.score(trial) - self.score(base)
            return -gain / added if added > 0 else -math.inf

        return [trial.candidate for trial in sorted(trials, key=key)]

    def _rank(self, trial: Trial) -> tuple[float, float]:
        return self.goal.rank(self.score(trial), trial.cost)


def _changed(base: Trial, trial: Trial) -> int:
    """Return the group in which a single step differs."""
    pairs = zip(base.candidate, trial.candidate, strict=True)
    return next(index for index, (old, new) in enumerate(pairs) if old != new)
