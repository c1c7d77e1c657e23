"""Searches greedily: lowers the width of one group after the other, as the score allows.

Source: [tvm], "Search": start at the default (the most bits), visit the edges in topological order,
    lower the bits of one until the accuracy falls below the best, then freeze it. What "falls
    below" means depends on the goal:

- No limits: below the best score so far (the rule of [tvm]).
- ``min_score``: below that limit. Where the default does not reach it, groups are first widened (to
  float, where possible) as long as the score rises, until it is reached. A trial ends once its
  result is foreseen; now and then the last one is measured on all samples, and steps that do not
  hold there are undone. When that changes nothing any more, steps are measured as they are.
- ``max_cost``, and the default costs more: every step loses some score, and the rule of [tvm] would
  stop at once. So a step may lose score up to an allowance per unit of cost saved. The allowance is
  0 in the first pass. Afterwards it is doubled, or raised to the median rate of the refused steps
  if that is more. The search ends when the limit is met; the rest of the cost is spent on widening
  groups.

Passes are repeated until one changes nothing. A step goes to the next choice that is cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from intact.search.samplers.base import (
    GeneratorSampler,
    SearchGenerator,
    TrialGenerator,
    TrialsGenerator,
    finite,
)
from intact.search.space import Candidate, Space
from intact.search.trial import Trial

Costing = Callable[[Candidate], float]

_UNSURE = 32
"""Steps of which only some samples were run, before the last is measured on all."""


def narrower(space: Space, cost: Costing, candidate: Candidate, index: int) -> Candidate | None:
    """Make one group narrower; None where no narrower choice is cheaper.

    Choices that are narrower but cost the same are skipped: they can only lose score. Examples are
    7 bits that are stored in a byte, and activations where the cost is the size of the model.
    """
    choices = space.groups[index].choices
    present = cost(candidate)
    for bits in choices[choices.index(candidate[index]) + 1 :]:
        changed = space.with_choice(candidate, index, bits)
        if cost(changed) < present:
            return changed
    return None


def wider(space: Space, candidate: Candidate, index: int) -> Candidate | None:
    """Move one group to its next wider choice; None where there is none."""
    choices = space.groups[index].choices
    place = choices.index(candidate[index])
    return space.with_choice(candidate, index, choices[place - 1]) if place else None


def combine(base: Candidate, changes: Sequence[Candidate]) -> Candidate:
    """Combine several candidates that each change one group."""
    merged = list(base)
    for change in changes:
        for index, bits in enumerate(change):
            if bits != base[index]:
                merged[index] = bits
    return tuple(merged)


def prefix_sizes(count: int) -> Iterator[int]:
    """Yield 2, 4, 8, ... and the count itself: the numbers of changes to combine.

    >>> list(prefix_sizes(11))
    [2, 4, 8, 11]
    >>> list(prefix_sizes(1))
    []
    """
    size = 2
    while size < count:
        yield size
        size *= 2
    if count > 1:
        yield count


def loss_ratio(loss: float, saved: float) -> float:
    """Compute the score lost per unit of cost saved; ``inf`` where nothing is saved.

    >>> loss_ratio(0.5, 2.0), loss_ratio(-0.5, 0.0)
    (0.25, inf)
    """
    if not saved > 0 or math.isnan(loss):
        return math.inf
    return loss / saved


def added_noise(base: Trial, trial: Trial) -> float:
    """Compute the noise that a change adds; it orders changes of equal score."""
    added = trial.measured.noise - base.measured.noise
    return math.inf if math.isnan(added) else added


class Greedy(GeneratorSampler):
    """The greedy search of [tvm]; measures one candidate at a time."""

    name = "greedy"

    def search(self, base: Trial) -> SearchGenerator:
        """Visit the groups in topological order."""
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

    def _lower(self, base: Trial, least: float | None = None) -> TrialGenerator:
        """Lower each group as long as the score reaches ``least``, or the best where it is None."""
        foresees = least is not None
        while True:
            start, steps = base, [base]
            for index in self.space.open:
                while (step := self._narrower(base, index)) is not None:
                    reached = self.score(base) if least is None else least
                    trial = yield from self._one(step, finite(reached), is_enough=foresees)
                    if not self.reaches(trial, reached):
                        break
                    steps.append(trial)
                    # Estimates err; the longer the row of them, the more would have to be undone.
                    if len(steps) > _UNSURE:
                        steps = yield from self._sure(steps, reached)
                    base = steps[-1]
            *_, base = yield from self._sure(steps, -math.inf if least is None else least)
            if base is start and not foresees:
                return base
            # One more pass, of measured trials only, before it ends.
            foresees = foresees and base is not start

    def _sure(self, steps: list[Trial], least: float) -> TrialsGenerator:
        """Return the last of some steps that reaches ``least`` on all samples.

        Args:
            steps: Each from the one before; the first one reaches it.
            least: The required score.
        """
        first, end = 0, len(steps)
        tried = end - 1  # most often the last one does
        while first + 1 < end:
            trial = yield from self.whole(steps[tried])
            if self.reaches(trial, least):
                first, steps[tried] = tried, trial
            else:
                end = tried
            # Bisection: a step below one that fails has most likely lost less.
            tried = (first + end) // 2
        return [steps[first]]

    def _widen(
        self, base: Trial, *, until: float = math.inf, limit: float = math.inf
    ) -> TrialGenerator:
        """Widen groups while the score rises, until it reaches ``until`` or the cost ``limit``."""
        start = None
        while start is not base:
            start = base
            for index in self.space.open:
                while self.score(base) < until:
                    step = wider(self.space, base.candidate, index)
                    if step is None or self.guess(step) > limit:
                        break
                    # The bar of the score so far, not of the goal: a step has to help.
                    trial = yield from self._one(step, finite(self.score(base)))
                    if not self.score(trial) > self.score(base):
                        break
                    base = trial
        return base

    def _squeeze(self, base: Trial, limit: float) -> TrialGenerator:
        """Lower groups until the cost is within its limit; steps that lose least score come
        first.
        """
        allowance = 0.0
        while True:
            start = base
            refused = []
            for index in self.space.open:
                while (step := self._narrower(base, index)) is not None:
                    # Without a bar: its loss is compared with what it saves, so it must be known.
                    trial = yield from self._one(step, None)
                    loss = self.score(base) - self.score(trial)
                    rate = loss_ratio(loss, base.cost - trial.cost)
                    # `not <=`, because a failed trial may give NaN.
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

    def _one(
        self, candidate: Candidate, bar: float | None, *, is_enough: bool = False
    ) -> TrialGenerator:
        return (yield from self.measure([candidate], bar, is_enough=is_enough))[0]


class BatchedGreedy(GeneratorSampler):
    """Greedy search that measures many candidates in parallel, in few rounds."""

    name = "batched-greedy"

    def search(self, base: Trial) -> SearchGenerator:
        """Lower groups; raise them first where the score is too low, last where cost is left."""
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

    def _lower(self, base: Trial, least: float | None = None) -> TrialGenerator:
        """Lower groups as long as the score reaches ``least``, or the best where it is None."""
        active: Iterable[int] = self.space.open
        while True:
            reached = self.score(base) if least is None else least
            bar = finite(reached)
            singles = yield from self.measure(self._narrower(base, active), bar)
            good = [trial for trial in singles if self.reaches(trial, reached)]
            if not good:
                return base
            # Groups that failed alone are not tried again: a narrower base only makes it worse.
            active = sorted(_changed_group(base, trial) for trial in good)
            ordered = self._by_loss(base, good)
            several = [combine(base.candidate, ordered[:n]) for n in prefix_sizes(len(ordered))]
            combined = yield from self.measure(several, bar)
            good += [trial for trial in combined if self.reaches(trial, reached)]
            base = max(good, key=self._rank)

    def _raise(
        self, base: Trial, *, until: float = math.inf, limit: float = math.inf
    ) -> TrialGenerator:
        """Widen groups while the score rises, until it reaches ``until`` or the cost ``limit``."""
        active: Iterable[int] = self.space.open
        while not self.reaches(base, until):
            bar = finite(self.score(base))
            steps = [step for index in active if (step := wider(self.space, base.candidate, index))]
            steps = [step for step in steps if self.guess(step) <= limit]
            singles = yield from self.measure(steps, bar)
            good = [trial for trial in singles if self.score(trial) > self.score(base)]
            if not good:
                return base
            active = sorted(_changed_group(base, trial) for trial in good)
            ordered = self._by_gain(base, good)
            several = [combine(base.candidate, ordered[:n]) for n in prefix_sizes(len(ordered))]
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

    def _squeeze(self, base: Trial, limit: float) -> TrialGenerator:
        """Lower groups until the cost is within its limit; steps that lose least score come
        first.
        """
        while base.cost > limit:
            singles = yield from self.measure(self._narrower(base, self.space.open))
            ordered = self._by_loss(base, [t for t in singles if self.score(t) > -math.inf])
            if not ordered:
                break
            whole = self._enough(base, ordered, limit)
            # Half of the way first: the losses were measured at this base and no longer hold at the
            # limit.
            half = combine(base.candidate, ordered[: (whole + 1) // 2])
            tried = yield from self.measure([half, combine(base.candidate, ordered[:whole])])
            sound = [trial for trial in tried if self.score(trial) > -math.inf]
            # Single steps were measured and are sound, so the search goes on.
            base = sound[0] if sound else self.trials[ordered[0]]
        return self.best or base

    def _enough(self, base: Trial, ordered: Sequence[Candidate], limit: float) -> int:
        """Count the steps needed to meet the limit; all of them where it cannot be met."""
        for count in range(1, len(ordered)):
            if self.guess(combine(base.candidate, ordered[:count])) <= limit:
                return count
        return len(ordered)

    def _narrower(self, base: Trial, indices: Iterable[int]) -> list[Candidate]:
        steps = (narrower(self.space, self.guess, base.candidate, index) for index in indices)
        return [step for step in steps if step is not None]

    def _by_loss(self, base: Trial, trials: Iterable[Trial]) -> list[Candidate]:
        """Order single steps by the score lost per cost saved, smallest first."""

        def key(trial: Trial) -> tuple[float, float]:
            saved = base.cost - trial.cost
            loss = self.score(base) - self.score(trial)
            return loss_ratio(loss, saved), loss_ratio(added_noise(base, trial), saved)

        return [trial.candidate for trial in sorted(trials, key=key)]

    def _by_gain(self, base: Trial, trials: Iterable[Trial]) -> list[Candidate]:
        """Order single steps by the score gained per cost added, largest first."""

        def key(trial: Trial) -> float:
            added = trial.cost - base.cost
            gain = self.score(trial) - self.score(base)
            return -gain / added if added > 0 else -math.inf

        return [trial.candidate for trial in sorted(trials, key=key)]

    def _rank(self, trial: Trial) -> tuple[float, float]:
        return self.goal.rank(self.score(trial), trial.cost)


def _changed_group(base: Trial, trial: Trial) -> int:
    """Find the group that a single step changes."""
    pairs = zip(base.candidate, trial.candidate, strict=True)
    return next(index for index, (old, new) in enumerate(pairs) if old != new)
