"""Which trials are worth having: the Pareto front of score and cost, the best, and the nearest."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from intact.search.trial import Goal, Trial


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
    """Return how near the trials came to the limits of a goal."""
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
