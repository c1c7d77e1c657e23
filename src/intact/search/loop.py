"""Runs the search loop: ask the sampler, measure, log, tell the sampler."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Protocol

from intact.errors import SearchError
from intact.recipe.kinds import Budget
from intact.search.measuring.objective import KINDS
from intact.search.space import Candidate
from intact.search.trial import Ask, Goal, Sampler, State, Trial, TrialResult


def front(trials: Iterable[Trial], samples: int) -> list[Trial]:
    """Compute the Pareto front: the trials that no other one beats in score and cost.

    Args:
        trials: Trials in any order; those on some of the samples are left out.
        samples: Number of all samples.

    Returns:
        Trials by rising cost, and so by rising score. Of equal ones only the first.
    """
    whole = [trial for trial in trials if _counts(trial, samples)]
    whole.sort(key=lambda trial: (trial.cost, -trial.score, trial.number))
    found: list[Trial] = []
    for trial in whole:
        if not found or trial.score > found[-1].score:
            found.append(trial)
    return found


def best(trials: Iterable[Trial], goal: Goal, samples: int) -> Trial | None:
    """Return the best trial within the limits: the first of equal ones, None where none is."""
    accepted = (trial for trial in trials if _counts(trial, samples) and goal.accepts(trial))
    return max(
        accepted,
        key=lambda trial: (goal.rank(trial.score, trial.cost), -trial.number),
        default=None,
    )


@dataclass(frozen=True)
class Nearest:
    """The trials that came nearest to limits that no trial met.

    Attributes:
        affordable: The highest score within the limit on the cost.
        good: The lowest cost of those that reach the limit on the score; None where none does.
        cheapest: The lowest cost.
    """

    affordable: Trial | None
    good: Trial | None
    cheapest: Trial | None


def nearest(trials: Iterable[Trial], goal: Goal, samples: int) -> Nearest:
    """Find the trials that came nearest to the limits of a goal."""
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
    # NaN compares as False with everything: as the cheapest trial it would hide all others.
    return trial.counts(samples) and not math.isnan(trial.score) and not math.isnan(trial.cost)


class Record(Protocol):
    """The storage of trials: each is on the disk when the call returns."""

    @property
    def trials(self) -> Sequence[Trial]:
        """Trials of the resumed run, in order."""

    @property
    def confirmed(self) -> Mapping[int, Trial]:
        """Trials that were measured again as the hardware computes them, by number."""

    def append(self, trial: Trial) -> None:
        """Write one trial."""

    def confirm(self, trial: Trial) -> None:
        """Write the result of a trial that was measured again as the hardware computes it."""


class Measuring(Protocol):
    """What measures candidates: a `intact.search.pool.TrialPool`."""

    def evaluate(self, asks: Sequence[Ask]) -> Iterator[TrialResult]:
        """Measure candidates; yield the results in the order of the requests."""

    def confirm(self, candidates: Sequence[Candidate]) -> Iterator[TrialResult]:
        """Measure candidates on all samples, as the hardware computes them."""


class Cost(Protocol):
    """The cost of candidates."""

    def of(self, candidate: Candidate) -> float:
        """Return the cost; lower is better."""

    def estimate(self, candidate: Candidate) -> float:
        """Estimate the cost without measuring anything."""


@dataclass
class SearchProgress:
    """The state of a running or ended search.

    Attributes:
        goal: The goal of the search.
        samples: Number of all samples.
        budget: Trials and time that it may take.
        trials: Trials in the order in which the sampler received them.
        seconds: Since the start.
        resumed: Number of trials that came from the log.
        shown: Converts a score to the user's figure.
        is_exhausted: The sampler has nothing more to try; else the budget or the user ended it.
    """

    goal: Goal
    samples: int
    budget: Budget
    trials: list[Trial] = field(default_factory=list)
    seconds: float = 0.0
    resumed: int = 0
    shown: Callable[[float], float] = float
    is_exhausted: bool = False

    @property
    def best(self) -> Trial | None:
        """The best trial within the limits so far."""
        return best(self.trials, self.goal, self.samples)

    @property
    def front(self) -> list[Trial]:
        """The Pareto front of score and cost; see the function `front`."""
        return front(self.trials, self.samples)

    @property
    def evaluations(self) -> float:
        """Samples run, in multiples of all samples: trials that stopped early count as less."""
        return sum(trial.measured.samples for trial in self.trials) / max(self.samples, 1)

    @property
    def spent(self) -> float:
        """Trials as the budget counts them: one on a tenth of the samples is a tenth of one."""
        return sum(self.share(trial) for trial in self.trials)

    def share(self, trial: Trial) -> float:
        """Compute what a trial takes of the budget; stopped and failed ones count as whole ones."""
        is_whole = trial.measured.state is not State.COMPLETE
        return 1.0 if is_whole else trial.measured.samples / max(self.samples, 1)

    @property
    def seconds_left(self) -> float | None:
        """The estimated time to the end of the budget, at the pace so far; None while unknown."""
        # Trials of the log took no time now and would make the pace look too fast.
        fresh = sum(self.share(trial) for trial in self.trials[self.resumed :])
        estimates = []
        if self.budget.seconds is not None:
            estimates.append(self.budget.seconds - self.seconds)
        if self.budget.trials is not None and fresh:
            estimates.append((self.budget.trials - self.spent) * self.seconds / fresh)
        return max(0.0, min(estimates)) if estimates else None


Report = Callable[[SearchProgress], None]


@dataclass
class Search:
    """One search.

    Attributes:
        sampler: Chooses candidates.
        pool: Measures them.
        cost: The cost of candidates.
        record: The log.
        progress: The state; valid also after ``run`` was interrupted.
        report: Called after every trial.
        clock: Returns seconds; measures the time of the budget.
    """

    sampler: Sampler
    pool: Measuring
    cost: Cost
    record: Record
    progress: SearchProgress
    report: Report | None = None
    clock: Callable[[], float] = time.monotonic

    def run(self) -> None:
        """Search until the sampler has no more candidates or the budget is spent.

        Raises:
            SearchError: The resumed log belongs to another search.
        """
        began = self.clock()
        logged = list(self.record.trials)
        self.progress.resumed = len(logged)
        while not self._is_over(self.clock() - began):
            asks = self.sampler.ask()
            if not asks:
                self.progress.is_exhausted = True
                return
            told = []
            for trial in self._batch(asks, logged):
                told.append(trial)
                self.progress.trials.append(trial)
                self.progress.seconds = self.clock() - began
                if self.report is not None:
                    self.report(self.progress)
                # A batch that is whole is told, even where the budget is spent: the sampler then is
                # where its log is. One that the budget cuts is not told, for a sampler takes whole
                # batches.
                if len(told) < len(asks) and self._is_over(self.progress.seconds):
                    return
            self.sampler.tell(told)

    def _batch(self, asks: Sequence[Ask], logged: list[Trial]) -> Iterator[Trial]:
        """Yield the trials of a batch: those in the log first, then new ones."""
        # A batch that was interrupted is in the log in part: the rest of it is measured now.
        known = min(len(asks), len(logged))
        for ask in asks[:known]:
            yield self._recall(ask, logged.pop(0))
        fresh = self._affordable(asks[known:])
        costs = [self._cost(ask) for ask in fresh]
        results = self.pool.evaluate(fresh)
        for ask, cost, measured in zip(fresh, costs, results, strict=True):
            trial = Trial(len(self.progress.trials), ask.candidate, cost, measured)
            # Written before it is yielded: whatever the caller does with it, a killed search has
            # it.
            self.record.append(trial)
            yield trial

    def _affordable(self, asks: Sequence[Ask]) -> Sequence[Ask]:
        """Select the asks that start before the budget is spent, if none of them stops early."""
        most, samples = self.progress.budget.trials, self.progress.samples
        if most is None:
            return asks
        shares = (1.0 if ask.samples is None else ask.samples / samples for ask in asks)
        # Decided by what is asked and not by what trials turn out to take, because a pool starts
        # several at once: the same asks start whatever the number of workers.
        before = accumulate(shares, initial=self.progress.spent)
        return [ask for ask, spent in zip(asks, before, strict=False) if spent < most]

    def _cost(self, ask: Ask) -> float:
        """Return the cost of a candidate; for a trial on few samples, an estimate is enough."""
        return (self.cost.of if ask.samples is None else self.cost.estimate)(ask.candidate)

    def _recall(self, ask: Ask, trial: Trial) -> Trial:
        if ask.candidate != trial.candidate:
            raise SearchError(
                f"trial {trial.number} of the log is not what the sampler asks for",
                remedy="start a new log: this one is of another version, or changed by hand",
            )
        return trial

    def _is_over(self, seconds: float) -> bool:
        budget = self.progress.budget
        spent = budget.trials is not None and self.progress.spent >= budget.trials
        return spent or (budget.seconds is not None and seconds >= budget.seconds)

    def confirm_best(self, *, most: int = 8) -> Trial:
        """Find the best trial within the limits as the hardware computes it.

        Trials are measured again on all samples, the best first. Where float32 is not exact the
        integer engine runs them. If the budget ended the search, those that are only foreseen to
        be within the limits come before: the best, then further and further from it.

        Args:
            most: Maximum number of trials to measure again.

        Raises:
            SearchError: None is within the limits; the message has the nearest ones.
        """
        goal, samples = self.progress.goal, self.progress.samples
        rivals = [
            trial for trial in self.progress.trials if trial.counts(samples) and goal.accepts(trial)
        ]
        rivals.sort(key=self._rank)
        tried: list[Trial] = []
        # These do not count towards `most`: their number is logarithmic already.
        for trial in self._foreseen_trials(rivals[-1:]):
            confirmed = self._confirm(trial)
            if confirmed.measured.state is State.COMPLETE and goal.accepts(confirmed):
                return confirmed
        while rivals and len(tried) < most:
            trial = rivals.pop()
            confirmed = self._confirm(trial)
            if confirmed.measured.state is State.COMPLETE and goal.accepts(confirmed):
                return confirmed
            tried.append(confirmed)
        if tried:
            raise _nothing_found(self.progress, tried, by="by its integers ")
        raise _nothing_found(self.progress, self.progress.trials)

    def _rank(self, trial: Trial) -> tuple[tuple[float, float], int]:
        return self.progress.goal.rank(trial.score, trial.cost), -trial.number

    def _foreseen_trials(self, best: Sequence[Trial]) -> Iterator[Trial]:
        """Yield trials that would be better than the best, but did not run all samples."""
        progress, goal = self.progress, self.progress.goal
        if progress.is_exhausted:  # the sampler has measured what it wanted to
            return
        known = {trial.candidate for trial in progress.trials if trial.counts(progress.samples)}
        limit = math.inf if goal.max_cost is None else goal.max_cost
        found = [
            trial
            for trial in progress.trials
            if trial.measured.state is State.REACHED
            and trial.candidate not in known
            and trial.cost <= limit
            and all(self._rank(trial) > self._rank(each) for each in best)
        ]
        # Doubling steps: the further from the best, the surer that a foreseen trial holds; a search
        # over all of them would measure nearly every one again.
        found.sort(key=self._rank, reverse=True)
        step = 1
        while step <= len(found):
            yield found[step - 1]
            step *= 2

    def _confirm(self, trial: Trial) -> Trial:
        """Measure a trial again, unless the resumed log has the result."""
        # A log may be edited: a result is only that of the trial if the candidate is the same.
        known = self.record.confirmed.get(trial.number)
        if known is not None and known.candidate == trial.candidate:
            return known
        measured = next(iter(self.pool.confirm([trial.candidate])))
        confirmed = replace(trial, measured=measured)
        self.record.confirm(confirmed)
        return confirmed


def _nothing_found(progress: SearchProgress, trials: Sequence[Trial], by: str = "") -> SearchError:
    """Make the error that says how near the trials came to the limits.

    Args:
        progress: The search when it ended. Where its sampler would have tried more, the error says
            how far it came.
        trials: Its trials, or those of them that were measured again.
        by: What computed the trials, if not the simulation.
    """
    goal, samples, shown = progress.goal, progress.samples, progress.shown
    near = nearest(trials, goal, samples)
    so_far, ended, more = "", "", ""
    if not progress.is_exhausted:
        done = len(progress.trials)
        so_far, more = " so far", "more --budget, "
        ended = f", after {done} trial{'' if done == 1 else 's'} in {progress.seconds:.3g} s"
    if near.cheapest is None:
        reasons = [trial.measured.reason for trial in trials if trial.measured.reason]
        return SearchError(
            f"no trial was run on all samples{so_far}{ended}"
            + (f": {reasons[0]}" if reasons else ""),
            remedy="fix the failure" if reasons else "give a larger --budget",
        )
    count = sum(trial.counts(samples) for trial in trials)
    if near.affordable is None:
        return SearchError(
            f"no strategy{so_far} costs {goal.max_cost:g} or less{ended}: the cheapest of {count} "
            f"that were run on all samples costs {near.cheapest.cost:g} "
            f"(score {shown(near.cheapest.score):g})",
            remedy=f"allow {more}a higher cost, or narrower widths",
        )
    least = math.nan if goal.min_score is None else goal.min_score
    at_most = "" if goal.max_cost is None else f" within a cost of {goal.max_cost:g}"
    dearer = "" if near.good is None else f"; it is reached at a cost of {near.good.cost:g}"
    return SearchError(
        f"no strategy{so_far} reaches a score of {shown(least):g}{at_most}{ended}: the best of "
        f"{count} that were run on all samples has {by}{shown(near.affordable.score):g} "
        f"at a cost of {near.affordable.cost:g}{dearer}",
        remedy=f"allow {more}a larger drop, or more of the model in float",
    )


def warning_lines(
    progress: SearchProgress, best: Trial, base: Trial | None, kind: str, max_drop: float | None
) -> Iterator[str]:
    """Yield one line for each result that a user may not expect.

    Args:
        progress: The search when it ended.
        best: The best trial, measured as the hardware computes it.
        base: The trial of the widest integers everywhere.
        kind: Name of the objective in ``KINDS``.
        max_drop: The loss of score that the user allows.
    """
    row = KINDS[kind]
    step = row.highest / progress.samples
    # Below two samples the limit is decided by whether one sample happens to flip.
    if row.is_count and max_drop is not None and max_drop < 2 * step:
        yield (
            f"one of the {progress.samples} samples is {step:.2g} points: a drop of {max_drop:g} "
            "depends on single samples; give more --samples, or an objective like kl"
        )
    if base is not None and not progress.goal.accepts(base):
        yield "the widest integers alone are not within the limits"
    if base is not None and best.cost >= base.cost and progress.goal.max_cost is None:
        yield "nothing cheaper than the widest integers is within the limits"
    lost = [trial for trial in progress.trials if trial.measured.state is State.FAILED]
    if lost:
        yield f"{len(lost)} trial(s) failed, the first: {lost[0].measured.reason}"
