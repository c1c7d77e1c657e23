"""Lets a sampler be written as a generator that asks for trials.

The generator yields requests (`Ask`) and receives their trials. So the state of a sampler is the
position in its own loops, and its decisions depend only on the seed and the trials.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Protocol, TypeAlias

from intact.errors import UsageError
from intact.search.cost import CostModel
from intact.search.space import Candidate, Space
from intact.search.trial import Ask, Goal, State, Trial


class Cost(Protocol):
    """The cost of candidates; lower is better."""

    def of(self, candidate: Candidate) -> float:
        """Return the cost of a candidate."""


SearchGenerator: TypeAlias = Generator[Sequence[Ask], Sequence[Trial], None]
"""A search: yields requests, receives their trials in the same order."""

TrialsGenerator: TypeAlias = Generator[Sequence[Ask], Sequence[Trial], list[Trial]]
"""A part of a search that returns trials."""

TrialGenerator: TypeAlias = Generator[Sequence[Ask], Sequence[Trial], Trial]
"""A part of a search that returns the trial where it ended."""

Bar: TypeAlias = Callable[[Candidate], float | None]
"""The required score of a candidate: its trial may stop once it cannot reach it."""


class GeneratorSampler(ABC):
    """A sampler whose search is a generator; it starts with the default candidate on all samples.

    Attributes:
        name: The name on the command line.
        trials: The trials so far, by candidate.
        best: The best accepted trial so far.
        to_undercut: Its estimated cost.
    """

    name: str

    def __init__(self, space: Space, goal: Goal, cost: Cost, seed: int) -> None:
        self.space = space
        self.goal = goal
        self.cost = cost
        self.seed = seed
        self.trials: dict[Candidate, Trial] = {}
        self.best: Trial | None = None
        self._bars: dict[Candidate, float | None] = {}
        self._foreseen: set[Candidate] = set()
        self._per_guess = 1.0
        self.to_undercut = math.inf
        self._walk = self._whole_walk()
        # The first request is always the default candidate, so the walk has one.
        self._asked: Sequence[Ask] = next(self._walk)

    def ask(self) -> Sequence[Ask]:
        """Return the next batch of candidates; empty when the search is done."""
        return self._asked

    def tell(self, trials: Sequence[Trial]) -> None:
        """Receive the results of the last ``ask``.

        Raises:
            UsageError: They are not the results of the last ``ask``, in its order.
        """
        if [trial.candidate for trial in trials] != [ask.candidate for ask in self._asked]:
            raise UsageError(
                f"{self.name}: these are not the results of the last ask",
                remedy="pass the results of the last ask, all of them and in its order",
            )
        if not trials:
            return
        for ask, trial in zip(self._asked, trials, strict=True):
            self.trials[trial.candidate] = trial
            # A trial on all samples replaces one that was only foreseen.
            self._foreseen.discard(trial.candidate)
            if ask.is_enough and trial.measured.state in (State.STOPPED, State.REACHED):
                self._foreseen.add(trial.candidate)
            self._bars[trial.candidate] = ask.bar
            self._remember(trial)
        try:
            self._asked = self._walk.send(trials)
        except StopIteration:
            self._asked = ()

    @abstractmethod
    def search(self, base: Trial) -> SearchGenerator:
        """Search, starting from the trial of the default candidate."""

    def score(self, trial: Trial) -> float:
        """Return a score for comparisons: ``-inf`` for a failure, below its bar for a stopped
        trial, not below it for one that reached it.

        The score of a trial that ended early is an estimate from some samples. It may be on the
        other side of the bar than the trial was found to be.
        """
        if math.isnan(trial.score):
            return -math.inf
        bar = self._bars.get(trial.candidate)
        if trial.measured.state is State.STOPPED and bar is not None:
            # The next float below the bar: as near as the estimate allows, and surely refused.
            return min(trial.score, math.nextafter(bar, -math.inf))
        if trial.measured.state is State.REACHED and bar is not None:
            return max(trial.score, bar)
        return trial.score

    def reaches(self, trial: Trial, score: float) -> bool:
        """Tell whether a trial reaches a score; failures never do."""
        # A failure has the score -inf, which reaches a bar of -inf.
        return self.score(trial) >= score and not math.isnan(trial.score)

    def accepts(self, trial: Trial) -> bool:
        """Tell whether a trial is complete and within the limits."""
        return trial.measured.state is State.COMPLETE and self.goal.accepts(trial)

    def bar(self, candidate: Candidate) -> float | None:
        """Compute the score that a candidate must reach to become the best."""
        return self.goal.bar(self.best, self.cost.of(candidate))

    def guess(self, candidate: Candidate) -> float:
        """Estimate the cost of a candidate without measuring it.

        A measured cost is estimated from its tables, scaled to the default candidate's cost.
        """
        if isinstance(self.cost, CostModel) and self.cost.measure is not None:
            return self.cost.estimate(candidate) * self._per_guess
        return self.cost.of(candidate)

    def may_win(self, candidate: Candidate) -> bool:
        """Tell whether a candidate can become the best, judged by its estimated cost."""
        cost, limit = self.guess(candidate), self.goal.max_cost
        if limit is not None and cost > limit:
            return False
        return cost <= self.to_undercut or self.goal.min_score is None

    def stops_below(self, candidate: Candidate) -> float | None:
        """Return the bar of an informative trial: none where the candidate cannot become the
        best.
        """
        bar = self.bar(candidate)
        return None if bar == math.inf else bar

    def is_new(self, candidate: Candidate, *, is_enough: bool = True) -> bool:
        """Tell whether a candidate has no trial yet, or only a foreseen one where more is asked."""
        return candidate not in self.trials or (not is_enough and candidate in self._foreseen)

    def measure(
        self,
        candidates: Iterable[Candidate],
        bar: Bar | float | None = None,
        *,
        is_enough: bool = False,
    ) -> TrialsGenerator:
        """Return the trials of candidates, in their order; only new ones are requested.

        Args:
            candidates: May be empty and may contain duplicates.
            bar: One for all, or a function of the candidate; None runs all samples.
            is_enough: A trial may end once it is foreseen whether it reaches its bar.
        """
        wanted = list(candidates)
        new = [each for each in dict.fromkeys(wanted) if self.is_new(each, is_enough=is_enough)]
        if new:
            bars = [bar(candidate) if callable(bar) else bar for candidate in new]
            yield [
                Ask(candidate, bar=least, is_enough=is_enough)
                for candidate, least in zip(new, bars, strict=True)
            ]
        return [self.trials[candidate] for candidate in wanted]

    def whole(self, trial: Trial) -> TrialGenerator:
        """Return the trial of the same candidate on all samples."""
        return (yield from self.measure([trial.candidate]))[0]

    def _whole_walk(self) -> SearchGenerator:
        (base,) = yield from self.measure([self.space.default])
        guess = self.guess(base.candidate)
        # One measurement gives the unit of the tables; their proportions are all that is used.
        self._per_guess = base.cost / guess if guess > 0 else 1.0
        if self.space.open:
            yield from self.search(base)

    def _remember(self, trial: Trial) -> None:
        if not self.accepts(trial):
            return
        best = self.best
        rank = self.goal.rank
        # Of equals the first stays, as in `intact.search.loop.best`.
        if best is None or rank(trial.score, trial.cost) > rank(best.score, best.cost):
            self.best = trial
            self.to_undercut = self.guess(trial.candidate)


def finite(score: float) -> float | None:
    """Convert a score to a bar: None where any score is better."""
    return None if score == -math.inf else score
