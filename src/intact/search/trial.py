"""Requests, results and goal of a search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from intact.search.space import Candidate


class State(StrEnum):
    """How a trial ended."""

    COMPLETE = "complete"
    """All samples that were asked for were run."""
    STOPPED = "stopped"
    """Ended early: it could not reach the score that was to be reached."""
    FAILED = "failed"
    """The metric or a runtime failed, or a worker was lost; ``reason`` says why."""


class Executor(StrEnum):
    """What computed a result."""

    SIMULATE = "simulate"
    """Float32 between quantizers: the same numbers wherever float32 is provably exact."""
    INTEGER = "integer"
    """The integer engine."""


@dataclass(frozen=True)
class Ask:
    """A candidate to be tried.

    Attributes:
        candidate: The choices.
        samples: Run only so many samples, the first ones; None for all.
        bar: The score below which the result does not matter: the trial may be stopped once it
            cannot reach it. None asks for the whole score.
    """

    candidate: Candidate
    samples: int | None = None
    bar: float | None = None


@dataclass(frozen=True)
class Measured:
    """What running a candidate gave.

    Attributes:
        state: How it ended.
        score: Higher is better; NaN where it failed. Of the samples run.
        noise: Power of the error of the model's outputs over their power (0 is exact; SQNR in dB
            is ``-10 log10(noise)``); NaN where it failed.
        samples: Samples run.
        seconds: Time taken.
        reason: Of a failure, or why a simulation had to do where integers were wanted.
        executor: What computed it.
    """

    state: State
    score: float
    noise: float
    samples: int
    seconds: float = 0.0
    reason: str = ""
    executor: Executor = Executor.SIMULATE


@dataclass(frozen=True)
class Trial:
    """A candidate with its result.

    Attributes:
        number: From 0, in the order in which samplers got the results.
        candidate: The choices.
        cost: Lower is better.
        measured: What it gave.
    """

    number: int
    candidate: Candidate
    cost: float
    measured: Measured

    @property
    def score(self) -> float:
        """Higher is better; NaN where it failed."""
        return self.measured.score

    def counts(self, samples: int) -> bool:
        """Tell whether the score is that of all the samples: only then can it be the best."""
        measured = self.measured
        return measured.state is State.COMPLETE and measured.samples == samples


@dataclass(frozen=True)
class Goal:
    """What the best trial is.

    With ``min_score``: the cheapest that reaches it. With ``max_cost``: the one of the highest
    score that is not dearer. With both: the cheapest of those that hold both. With neither: the
    highest score, and the cheapest of those (HAGO ranks so, with the sum of bits as cost).

    Attributes:
        min_score: Lowest score that is accepted.
        max_cost: Highest cost that is accepted.
    """

    min_score: float | None = None
    max_cost: float | None = None

    def accepts(self, trial: Trial) -> bool:
        """Tell whether a complete trial holds the limits."""
        if math.isnan(trial.score):
            return False
        scored = self.min_score is None or trial.score >= self.min_score
        return scored and (self.max_cost is None or trial.cost <= self.max_cost)

    def rank(self, score: float, cost: float) -> tuple[float, float]:
        """Return a key by which the better of two accepted results is the greater."""
        return (score, -cost) if self.min_score is None else (-cost, score)

    def bar(self, best: Trial | None, cost: float) -> float | None:
        """Return the score that a candidate of a cost must reach to become the best.

        Args:
            best: The best so far that is accepted.
            cost: The candidate's.

        Returns:
            ``inf`` where it cannot become the best, None where any score will do.
        """
        if self.max_cost is not None and cost > self.max_cost:
            return math.inf
        if self.min_score is not None:
            return math.inf if best is not None and cost > best.cost else self.min_score
        return None if best is None else best.score


class Sampler(Protocol):
    """Chooses candidates by ask and tell; trials are told in the order asked.

    Everything it decides follows from its seed and from the trials told, so that a search that
    was cut off can be led to where it was by telling it the logged results again. How many are
    asked at once is the sampler's own affair and does not depend on the number of workers.
    """

    name: str

    def ask(self) -> Sequence[Ask]:
        """Return the next candidates, to be tried side by side; none when it is done."""

    def tell(self, trials: Sequence[Trial]) -> None:
        """Learn what the candidates of the last ``ask`` gave."""
