"""Declares the requests, results and goal of a search, and the interface of samplers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from intact.errors import UsageError
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
    """The executor that computed a result."""

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
class TrialResult:
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
    measured: TrialResult

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


def goal_of(
    float_score: float,
    widest_cost: float,
    *,
    max_drop: float | None = None,
    min_score: float | None = None,
    max_cost: float | str | None = None,
    least_cost: float = 0.0,
    highest_score: float = math.inf,
) -> Goal:
    """Build the goal of a search.

    Args:
        float_score: Score of the float model.
        widest_cost: Cost of the widest integers everywhere.
        max_drop: How far the score may fall below the float model's.
        min_score: The lowest score accepted.
        max_cost: The highest cost accepted; text like ``"60%"`` is a share of ``widest_cost``.
        least_cost: Lower bound of the cost of every candidate.
        highest_score: Upper bound of the score of every candidate.

    Raises:
        UsageError: A limit is negative, not a number, or cannot be met by any candidate.

    >>> goal_of(82.0, 500.0, max_drop=0.5, max_cost="60%")
    Goal(min_score=81.5, max_cost=300.0)
    """
    if max_drop is not None:
        if min_score is not None:
            raise UsageError("--max-drop and --min-score", remedy="give one of the two")
        # `not >=` refuses NaN as well.
        if not max_drop >= 0 or math.isinf(max_drop):
            raise UsageError(f"--max-drop {max_drop:g}", remedy="give 0 or more")
        # The SQNR of the float model against itself; infinity less anything is infinity.
        if math.isinf(float_score):
            raise UsageError(
                "--max-drop: the float model's score is infinite (it has no error)",
                remedy="give --min-score",
            )
        min_score = float_score - max_drop
    if min_score is not None and not math.isfinite(min_score):
        raise UsageError(f"--min-score {min_score:g}", remedy="give a number")
    if min_score is not None and min_score > highest_score:
        raise UsageError(
            f"--min-score {min_score:g} cannot be reached", remedy=f"the most is {highest_score:g}"
        )
    limit = None if max_cost is None else _cost(max_cost, widest_cost)
    if limit is not None and limit < least_cost:
        raise UsageError(
            f"--max-cost {max_cost}: no candidate costs less than {least_cost:g}"
            + (f" ({100 * least_cost / widest_cost:.1f}%)" if widest_cost else ""),
            remedy="raise the limit, or give other --widths, another --minimize or --format",
        )
    return Goal(min_score, limit)


def _cost(max_cost: float | str, widest_cost: float) -> float:
    text = str(max_cost).strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise UsageError(
            f"--max-cost {text!r}",
            remedy="give a cost above 0, or a share of the widest integers' like 60%",
        )
    return number * widest_cost / 100 if text.endswith("%") else number


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
