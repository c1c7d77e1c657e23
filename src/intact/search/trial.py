"""Requests, results and goal of a search, and the interface of samplers."""

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
    """All requested samples were run."""
    STOPPED = "stopped"
    """Ended early: it does not reach the required score."""
    REACHED = "reached"
    """Ended early: it is foreseen to reach the required score, which is enough."""
    FAILED = "failed"
    """The metric or a runtime failed, or a worker was lost; ``reason`` says why."""


class Executor(StrEnum):
    """What computed a result."""

    SIMULATE = "simulate"
    """The float32 simulation: the same numbers as the hardware where float32 is provably exact."""
    INTEGER = "integer"
    """The integer engine."""


@dataclass(frozen=True)
class Ask:
    """A request to measure a candidate.

    Attributes:
        candidate: The choices.
        samples: Run only the first so many samples; None for all.
        bar: The required score: the trial may stop once it cannot reach it. None runs all samples.
        is_enough: Whether it reaches the bar is all that is asked: it may stop once that is
            foreseen.
    """

    candidate: Candidate
    samples: int | None = None
    bar: float | None = None
    is_enough: bool = False


@dataclass(frozen=True)
class Measured:
    """The measured result of a candidate.

    Attributes:
        state: How it ended.
        score: Over the samples run, higher is better; NaN where it failed.
        noise: Power of the error of the model's outputs over their power (0 is exact; SQNR in dB
            is ``-10 log10(noise)``); NaN where it failed.
        samples: Number of samples run.
        seconds: Time taken.
        reason: Why it failed, or why it was simulated and not run by the integer engine.
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
        number: From 0, in the order in which the sampler received the results.
        candidate: The choices.
        cost: Lower is better.
        measured: The result.
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
        """Tell whether the trial ran all samples: only then can it be the best."""
        measured = self.measured
        return measured.state is State.COMPLETE and measured.samples == samples


@dataclass(frozen=True)
class Goal:
    """The definition of the best trial.

    With ``min_score``: the cheapest that reaches it. With ``max_cost``: the one of the highest
    score that does not cost more. With both: the cheapest of those within both limits. With
    neither: the highest score, and the cheapest of equals ([tvm] ranks so, with the sum of bits as
    cost).

    Attributes:
        min_score: Lowest accepted score.
        max_cost: Highest accepted cost.
    """

    min_score: float | None = None
    max_cost: float | None = None

    def accepts(self, trial: Trial) -> bool:
        """Tell whether a complete trial is within the limits."""
        if math.isnan(trial.score):
            return False
        scored = self.min_score is None or trial.score >= self.min_score
        return scored and (self.max_cost is None or trial.cost <= self.max_cost)

    def rank(self, score: float, cost: float) -> tuple[float, float]:
        """Return a sort key: the better of two accepted results has the greater one."""
        return (score, -cost) if self.min_score is None else (-cost, score)

    def bar(self, best: Trial | None, cost: float) -> float | None:
        """Compute the score that a candidate of a given cost must reach to become the best.

        Args:
            best: The best accepted trial so far.
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
    """Chooses candidates; an ask-and-tell interface, as Optuna's.

    Every decision depends only on the seed and on the results it received. So an interrupted search
    continues from its log: the sampler receives the logged results again. The batch size is chosen
    by the sampler and does not depend on the number of workers.
    """

    name: str

    def ask(self) -> Sequence[Ask]:
        """Return the next batch of candidates; empty when the search is done."""

    def tell(self, trials: Sequence[Trial]) -> None:
        """Receive the results of the last ``ask``, in its order."""
