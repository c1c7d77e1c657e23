"""The goal of a search, from what a user allows to be lost."""

from __future__ import annotations

import math

from intact.errors import UsageError
from intact.search.trial import Goal


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
