"""The base of samplers: a search written as a generator, with a memory of all trials.

A sampler is written as a generator: it yields what it asks and is sent the trials. So its state is
where it stands in its own loops, and everything in it follows from the seed and the trials.
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
    """What candidates cost; lower is better."""

    def of(self, candidate: Candidate) -> float:
        """Return the cost of a candidate."""


Walk: TypeAlias = Generator[Sequence[Ask], Sequence[Trial], None]
"""A search: yields what it asks, is sent the trials in the order asked."""

Measuring: TypeAlias = Generator[Sequence[Ask], Sequence[Trial], list[Trial]]
"""A part of a search that returns trials."""

Finding: TypeAlias = Generator[Sequence[Ask], Sequence[Trial], Trial]
"""A part of a search that returns where it ended."""

Bar: TypeAlias = Callable[[Candidate], float | None]
"""The score below which the result of a candidate does not matter."""


class WalkingSampler(ABC):
    """A sampler whose search is a walk; the default candidate is measured whole before it.

    Attributes:
        name: As users write it.
        trials: The trials so far, by candidate.
        best: The best trial so far that the goal accepts.
        to_undercut: Its cost, as it is guessed.
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
        self._per_guess = 1.0
        self.to_undercut = math.inf
        self._walk = self._whole_walk()
        self._asked: Sequence[Ask] = next(self._walk)

    def ask(self) -> Sequence[Ask]:
        """Return the next candidates, to be tried side by side; none when it is done."""
        return self._asked

    def tell(self, trials: Sequence[Trial]) -> None:
        """Learn what the candidates of the last ``ask`` gave.

        Raises:
            UsageError: They are not the candidates that were asked for, in their order.
        """
        if [trial.candidate for trial in trials] != [ask.candidate for ask in self._asked]:
            raise UsageError(
                f"{self.name}: results of other candidates than were asked for",
                remedy="tell the results of the last ask, all of them and in its order",
            )
        if not trials:
            return
        for ask, trial in zip(self._asked, trials, strict=True):
            self.trials[trial.candidate] = trial
            self._bars[trial.candidate] = ask.bar
            self._remember(trial)
        try:
            self._asked = self._walk.send(trials)
        except StopIteration:
            self._asked = ()

    @abstractmethod
    def search(self, base: Trial) -> Walk:
        """Search from the default candidate's trial."""

    def score(self, trial: Trial) -> float:
        """Return a score to compare: the lowest of failures, below the bar of stopped trials.

        A stopped trial's score is an estimate from some of the samples, and may lie above a bar
        that it was proved not to reach.
        """
        if math.isnan(trial.score):
            return -math.inf
        bar = self._bars.get(trial.candidate)
        if trial.measured.state is State.STOPPED and bar is not None:
            return min(trial.score, math.nextafter(bar, -math.inf))
        return trial.score

    def reaches(self, trial: Trial, score: float) -> bool:
        """Tell whether a trial reaches a score; failures never do."""
        return self.score(trial) >= score and not math.isnan(trial.score)

    def accepts(self, trial: Trial) -> bool:
        """Tell whether a trial is whole and holds the limits."""
        return trial.measured.state is State.COMPLETE and self.goal.accepts(trial)

    def bar(self, candidate: Candidate) -> float | None:
        """Return the score that a candidate must reach to become the best."""
        return self.goal.bar(self.best, self.cost.of(candidate))

    def guess(self, candidate: Candidate) -> float:
        """Compute a candidate's cost without measuring it.

        Where the cost is measured: what its tables tell, in proportion to the default's cost.
        """
        if isinstance(self.cost, CostModel) and self.cost.measure is not None:
            return self.cost.estimate(candidate) * self._per_guess
        return self.cost.of(candidate)

    def may_win(self, candidate: Candidate) -> bool:
        """Tell whether a candidate's cost, as far as it can be guessed, lets it become the best."""
        cost, limit = self.guess(candidate), self.goal.max_cost
        if limit is not None and cost > limit:
            return False
        return cost <= self.to_undercut or self.goal.min_score is None

    def stops_below(self, candidate: Candidate) -> float | None:
        """Return the bar of what is asked to learn from: whole where it cannot win anyway."""
        bar = self.bar(candidate)
        return None if bar == math.inf else bar

    def is_new(self, candidate: Candidate) -> bool:
        """Tell whether a candidate has no trial yet."""
        return candidate not in self.trials

    def measure(self, candidates: Iterable[Candidate], bar: Bar | float | None = None) -> Measuring:
        """Return the trials of candidates, in their order; only new ones are asked.

        Args:
            candidates: May be empty, and may repeat each other.
            bar: Of all, or of each; None asks for whole scores.
        """
        wanted = list(candidates)
        new = [candidate for candidate in dict.fromkeys(wanted) if self.is_new(candidate)]
        if new:
            bars = [bar(candidate) if callable(bar) else bar for candidate in new]
            yield [Ask(candidate, bar=least) for candidate, least in zip(new, bars, strict=True)]
        return [self.trials[candidate] for candidate in wanted]

    def _whole_walk(self) -> Walk:
        (base,) = yield from self.measure([self.space.default])
        guess = self.guess(base.candidate)
        self._per_guess = base.cost / guess if guess > 0 else 1.0
        if self.space.open:
            yield from self.search(base)

    def _remember(self, trial: Trial) -> None:
        if not self.accepts(trial):
            return
        best = self.best
        rank = self.goal.rank
        if best is None or rank(trial.score, trial.cost) > rank(best.score, best.cost):
            self.best = trial
            self.to_undercut = self.guess(trial.candidate)


def finite(score: float) -> float | None:
    """Return a score as a bar: none where anything is better than what there is."""
    return None if score == -math.inf else score
