"""The goal and the budget of a search, from what a user allows to be lost or spent."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

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
        if not max_drop >= 0 or math.isinf(max_drop):
            raise UsageError(f"--max-drop {max_drop:g}", remedy="give 0 or more")
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


_SECONDS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}

_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(trials?|[a-z]+)?")

_REMEDY = "write for instance 200trials, 90s, 10min or 2h"


@dataclass(frozen=True)
class Budget:
    """The number of trials and the time that a search may take, whichever ends first.

    Attributes:
        trials: Maximum number of trials, including those of a resumed run. A trial on a tenth of
            the samples counts as a tenth of one. None for no limit.
        seconds: No trial starts after this many seconds; None for no limit.

    >>> Budget.parse("10min").seconds
    600.0
    """

    trials: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Check that there is a limit, and that it is above zero."""
        if self.trials is None and self.seconds is None:
            raise UsageError("the budget has no limit", remedy=_REMEDY)
        if (self.trials is not None and self.trials < 1) or (
            self.seconds is not None and not self.seconds > 0
        ):
            raise UsageError("a budget of zero allows no trial", remedy=_REMEDY)

    @staticmethod
    def parse(text: str) -> Budget:
        """Read ``200trials``, ``200``, ``90s``, ``10min``, ``2h``, or two with a comma.

        Raises:
            UsageError: The text has another form, or the budget is zero.
        """
        trials: int | None = None
        seconds: float | None = None
        for part in text.split(","):
            found = _FORM.fullmatch(part.strip().lower())
            unit = None if found is None else found[2]
            if found is None or (unit is not None and unit not in {"trial", "trials", *_SECONDS}):
                raise UsageError(f"--budget {text!r}", remedy=_REMEDY)
            if unit in _SECONDS:
                seconds = float(found[1]) * _SECONDS[unit]
            elif "." in found[1]:
                raise UsageError(
                    f"--budget {text!r}: the number of trials is not whole", remedy=_REMEDY
                )
            else:
                trials = int(found[1])
        return Budget(trials, seconds)
