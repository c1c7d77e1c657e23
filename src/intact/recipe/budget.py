"""Declares the budget of a search: trials and time."""

from __future__ import annotations

import re
from dataclasses import dataclass

from intact.errors import UsageError

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
            # A number alone is one of trials.
            if unit in _SECONDS:
                seconds = float(found[1]) * _SECONDS[unit]
            elif "." in found[1]:
                raise UsageError(
                    f"--budget {text!r}: the number of trials is not whole", remedy=_REMEDY
                )
            else:
                trials = int(found[1])
        return Budget(trials, seconds)
