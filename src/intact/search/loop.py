"""The search itself: ask, measure, write down, tell."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Protocol

from intact.errors import SearchError
from intact.search.goals import Budget
from intact.search.measuring.objective import KINDS
from intact.search.space import Candidate
from intact.search.trial import Ask, Goal, Sampler, State, Trial
from intact.search.workers.pool import Pool


def front(trials: Iterable[Trial], samples: int) -> list[Trial]:
    """Return the trials that no other is both as cheap and as good as, and better in one of them.

    Args:
        trials: In any order; only those on all samples count.
        samples: How many all samples are.

    Returns:
        By rising cost, and so by rising score. Of several with the same cost and score the first.
    """
    whole = [trial for trial in trials if _counts(trial, samples)]
    whole.sort(key=lambda trial: (trial.cost, -trial.score, trial.number))
    found: list[Trial] = []
    for trial in whole:
        if not found or trial.score > found[-1].score:
            found.append(trial)
    return found


def best(trials: Iterable[Trial], goal: Goal, samples: int) -> Trial | None:
    """Return the best trial that holds the limits; the first of equals, None where none does."""
    accepted = (trial for trial in trials if _counts(trial, samples) and goal.accepts(trial))
    return max(
        accepted,
        key=lambda trial: (goal.rank(trial.score, trial.cost), -trial.number),
        default=None,
    )


@dataclass(frozen=True)
class Nearest:
    """How near a search came to limits that it did not reach.

    Attributes:
        affordable: The highest score within the limit of cost, at any cost where there is none.
        good: The lowest cost that reaches the limit of the score; None where none reaches it.
        cheapest: The lowest cost at any score.
    """

    affordable: Trial | None
    good: Trial | None
    cheapest: Trial | None


def nearest(trials: Iterable[Trial], goal: Goal, samples: int) -> Nearest:
    """Describe how near the trials came to the limits of a goal."""
    whole = front(trials, samples)
    limit = math.inf if goal.max_cost is None else goal.max_cost
    least = -math.inf if goal.min_score is None else goal.min_score
    affordable = [trial for trial in whole if trial.cost <= limit]
    good = [trial for trial in whole if trial.score >= least]
    return Nearest(
        affordable=affordable[-1] if affordable else None,
        good=good[0] if good else None,
        cheapest=whole[0] if whole else None,
    )


def _counts(trial: Trial, samples: int) -> bool:
    return trial.counts(samples) and not math.isnan(trial.score) and not math.isnan(trial.cost)


class Record(Protocol):
    """Where trials are written down: each is durable when the call returns."""

    @property
    def trials(self) -> Sequence[Trial]:
        """Those of the run that is resumed, in order."""

    @property
    def confirmed(self) -> Mapping[int, Trial]:
        """Those that were run again already, by number."""

    def append(self, trial: Trial) -> None:
        """Write one trial."""

    def confirm(self, trial: Trial) -> None:
        """Write that a trial was run again, to give what the hardware computes."""


class Cost(Protocol):
    """What a candidate costs."""

    def of(self, candidate: Candidate) -> float:
        """Return the cost; lower is better."""

    def estimate(self, candidate: Candidate) -> float:
        """Return about the same without measuring anything."""


@dataclass
class Standing:
    """How far a search is.

    Attributes:
        goal: What it is after.
        samples: How many all samples are.
        budget: What it may spend.
        trials: In the order told.
        seconds: Since it began.
        resumed: How many of the trials came from the log.
        shown: Turns a score into what the user calls it.
    """

    goal: Goal
    samples: int
    budget: Budget
    trials: list[Trial] = field(default_factory=list)
    seconds: float = 0.0
    resumed: int = 0
    shown: Callable[[float], float] = float

    @property
    def best(self) -> Trial | None:
        """The best so far that holds the limits."""
        return best(self.trials, self.goal, self.samples)

    @property
    def front(self) -> list[Trial]:
        """The trials that none is both cheaper and better than."""
        return front(self.trials, self.samples)

    @property
    def evaluations(self) -> float:
        """Samples run over all samples: trials on few samples, or stopped early, count as less."""
        return sum(trial.measured.samples for trial in self.trials) / max(self.samples, 1)

    @property
    def spent(self) -> float:
        """Trials in terms of the budget: one on some of the samples counts as that part of one."""
        return sum(self.share(trial) for trial in self.trials)

    def share(self, trial: Trial) -> float:
        """Return a trial's share of the budget; a stopped or failed trial counts as a whole one."""
        is_whole = trial.measured.state is not State.COMPLETE
        return 1.0 if is_whole else trial.measured.samples / max(self.samples, 1)

    @property
    def seconds_left(self) -> float | None:
        """An estimate, from the budget that is left and the pace so far; None while unknown."""
        fresh = sum(self.share(trial) for trial in self.trials[self.resumed :])
        estimates = []
        if self.budget.seconds is not None:
            estimates.append(self.budget.seconds - self.seconds)
        if self.budget.trials is not None and fresh:
            estimates.append((self.budget.trials - self.spent) * self.seconds / fresh)
        return max(0.0, min(estimates)) if estimates else None


Report = Callable[[Standing], None]


@dataclass
class Search:
    """One search.

    Attributes:
        sampler: Chooses.
        pool: Measures.
        cost: Of candidates.
        record: The log.
        standing: How far it is; read it when ``run`` has ended, however it did.
        report: Told after every trial.
        clock: Seconds, for the time that it may take.
    """

    sampler: Sampler
    pool: Pool
    cost: Cost
    record: Record
    standing: Standing
    report: Report | None = None
    clock: Callable[[], float] = time.monotonic

    def run(self) -> None:
        """Search until the sampler is done or the budget is spent.

        Raises:
            SearchError: The log that is resumed is not one of this search.
        """
        began = self.clock()
        logged = list(self.record.trials)
        self.standing.resumed = len(logged)
        while not self._is_over(self.clock() - began):
            asks = self.sampler.ask()
            if not asks:
                return
            told = []
            for trial in self._batch(asks, logged):
                told.append(trial)
                self.standing.trials.append(trial)
                self.standing.seconds = self.clock() - began
                if self.report is not None:
                    self.report(self.standing)
                if len(told) < len(asks) and self._is_over(self.standing.seconds):
                    return
            self.sampler.tell(told)

    def _batch(self, asks: Sequence[Ask], logged: list[Trial]) -> Iterator[Trial]:
        """Yield the trials of a batch: from the log as long as it lasts, then fresh ones."""
        known = min(len(asks), len(logged))
        for ask in asks[:known]:
            yield self._recalled(ask, logged.pop(0))
        fresh = self._affordable(asks[known:])
        costs = [self._cost(ask) for ask in fresh]
        results = self.pool.evaluate(fresh)
        for ask, cost, measured in zip(fresh, costs, results, strict=True):
            trial = Trial(len(self.standing.trials), ask.candidate, cost, measured)
            self.record.append(trial)
            yield trial

    def _affordable(self, asks: Sequence[Ask]) -> Sequence[Ask]:
        """Return the asks that begin before the budget is spent, if none of them is stopped."""
        most, samples = self.standing.budget.trials, self.standing.samples
        if most is None:
            return asks
        shares = (1.0 if ask.samples is None else ask.samples / samples for ask in asks)
        before = accumulate(shares, initial=self.standing.spent)
        return [ask for ask, spent in zip(asks, before, strict=False) if spent < most]

    def _cost(self, ask: Ask) -> float:
        """Return the cost of a candidate; a trial on few samples only ranks, and times nothing."""
        return (self.cost.of if ask.samples is None else self.cost.estimate)(ask.candidate)

    def _recalled(self, ask: Ask, trial: Trial) -> Trial:
        if ask.candidate != trial.candidate:
            raise SearchError(
                f"trial {trial.number} of the log is not what the sampler asks for now",
                remedy="start a new log: it was written by another version, or changed by hand",
            )
        return trial

    def _is_over(self, seconds: float) -> bool:
        budget = self.standing.budget
        spent = budget.trials is not None and self.standing.spent >= budget.trials
        return spent or (budget.seconds is not None and seconds >= budget.seconds)

    def confirmed(self, *, most: int = 8) -> Trial:
        """Return the best trial with the score of the hardware's own integers on all samples.

        Winners are run again, the best first, until one holds the limits then too.

        Args:
            most: How many are run at most.

        Raises:
            SearchError: None holds the limits; it says how near the nearest came.
        """
        goal, samples = self.standing.goal, self.standing.samples
        rivals = [
            trial for trial in self.standing.trials if trial.counts(samples) and goal.accepts(trial)
        ]
        rivals.sort(key=lambda trial: (goal.rank(trial.score, trial.cost), -trial.number))
        tried: list[Trial] = []
        while rivals and len(tried) < most:
            trial = rivals.pop()
            confirmed = self._confirmed(trial)
            if confirmed.measured.state is State.COMPLETE and goal.accepts(confirmed):
                return confirmed
            tried.append(confirmed)
        if tried:
            raise _nothing_found(goal, tried, samples, self.standing.shown, by="by its integers ")
        raise _nothing_found(goal, self.standing.trials, samples, self.standing.shown)

    def _confirmed(self, trial: Trial) -> Trial:
        """Run a trial again, unless the log that is resumed has that already."""
        known = self.record.confirmed.get(trial.number)
        if known is not None and known.candidate == trial.candidate:
            return known
        measured = next(iter(self.pool.confirm([trial.candidate])))
        confirmed = replace(trial, measured=measured)
        self.record.confirm(confirmed)
        return confirmed


def _nothing_found(
    goal: Goal,
    trials: Sequence[Trial],
    samples: int,
    shown: Callable[[float], float],
    by: str = "",
) -> SearchError:
    """Say how near the trials came to the limits.

    Args:
        goal: The limits.
        trials: What was tried.
        samples: How many all are.
        shown: Turns a score into what the user calls it.
        by: What computed the trials, where others than these simulations held the limits.
    """
    near = nearest(trials, goal, samples)
    if near.cheapest is None:
        reasons = [trial.measured.reason for trial in trials if trial.measured.reason]
        return SearchError(
            "no trial was run on all samples" + (f": {reasons[0]}" if reasons else ""),
            remedy="mend what failed" if reasons else "give a larger --budget",
        )
    count = sum(trial.counts(samples) for trial in trials)
    if near.affordable is None:
        return SearchError(
            f"no strategy costs {goal.max_cost:g} or less: the cheapest of {count} that were tried "
            f"costs {near.cheapest.cost:g} (score {shown(near.cheapest.score):g})",
            remedy="allow a higher cost, more --budget, or narrower widths",
        )
    least = math.nan if goal.min_score is None else goal.min_score
    at_most = "" if goal.max_cost is None else f" within a cost of {goal.max_cost:g}"
    dearer = "" if near.good is None else f"; it is reached at a cost of {near.good.cost:g}"
    return SearchError(
        f"no strategy reaches a score of {shown(least):g}{at_most}: the best of {count} that were "
        f"tried has {by}{shown(near.affordable.score):g} "
        f"at a cost of {near.affordable.cost:g}{dearer}",
        remedy="allow a larger drop, more --budget, or more of the model in float",
    )


def remarks(
    standing: Standing, best: Trial, base: Trial | None, kind: str, max_drop: float | None
) -> Iterator[str]:
    """Yield one line for each thing that may surprise.

    Args:
        standing: The search when it ended.
        best: What it found, confirmed.
        base: The trial of the widest integers everywhere.
        kind: Of the objective, by its name in ``KINDS``.
        max_drop: What the user allows to be lost.
    """
    row = KINDS[kind]
    step = row.highest / standing.samples
    if row.is_count and max_drop is not None and max_drop < 2 * step:
        yield (
            f"one of the {standing.samples} samples is {step:.2g} points: a drop of {max_drop:g} "
            "hangs on single samples; give more --samples, or an objective like kl"
        )
    if base is not None and not standing.goal.accepts(base):
        yield "the widest integers alone do not hold the limits"
    if base is not None and best.cost >= base.cost and standing.goal.max_cost is None:
        yield "nothing that is cheaper than the widest integers holds the limits"
    lost = [trial for trial in standing.trials if trial.measured.state is State.FAILED]
    if lost:
        yield f"{len(lost)} trial(s) failed, the first: {lost[0].measured.reason}"
