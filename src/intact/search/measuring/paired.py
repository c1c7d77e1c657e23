"""Hits of two models on the same samples: what the first ones say of all, tighter than one alone.

The float model's hits are known on every sample. A candidate loses some of them (``lost``) and
gains others; what has to be bounded is lost minus gained, to which the many samples that both get
right add nothing. Among the drawn samples, lost and gained ones are hypergeometric and independent,
given how many of the drawn the float model gets right. How many are gained in all is not known:
the test holds for every number up to an upper limit of it, which has a tenth of the error (R. L.
Berger, D. D. Boos, "P values maximized over a confidence set for the nuisance parameter", Journal
of the American Statistical Association 89, 1994).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_OF_THE_LIMIT = 0.1
"""Share of the error that the limit of the gained ones has."""


@dataclass(frozen=True)
class Pairs:
    """Hits of a candidate beside the float model's.

    Attributes:
        right: Samples that the float model gets right, in the whole set.
        wrong: The others.
        drawn_right: Of the samples drawn, those that it gets right.
        drawn_wrong: The others drawn.
        lost: Of the drawn, those that only the float model gets right.
        gained: Those that only the candidate gets right.
    """

    right: int
    wrong: int
    drawn_right: int
    drawn_wrong: int
    lost: int
    gained: int

    @staticmethod
    def of(base: npt.NDArray[np.bool_], own: npt.NDArray[np.bool_]) -> Pairs:
        """Return the pairs of the float model's hits on all samples and those on the first ones."""
        drawn = base[: len(own)]
        right, drawn_right = int(base.sum()), int(drawn.sum())
        lost, gained = int((drawn & ~own).sum()), int((~drawn & own).sum())
        wrong, drawn_wrong = len(base) - right, len(own) - drawn_right
        return Pairs(right, wrong, drawn_right, drawn_wrong, lost, gained)

    def can_reach(self, needed: int, error: float) -> bool:
        """Tell whether the candidate may have ``needed`` hits in the whole set.

        Args:
            needed: Hits.
            error: Chance allowed to say no although it has them; 0 leaves what is certain.
        """
        spare = self.right - needed
        fewest = max(self.gained, self.lost - spare)
        most = self.wrong - (self.drawn_wrong - self.gained)
        if fewest > most:
            return False
        if error == 0.0:
            return True
        unlikely = error * _OF_THE_LIMIT
        # The more are gained in all, the less likely are so few among the drawn.
        limit = fewest + bisect_left(
            range(fewest, most + 1), True, key=lambda gained: self._few_gained(gained) <= unlikely
        )
        # From the limit downwards: with many gained the chance is mostly the largest.
        likely = range(limit - 1, fewest - 1, -1)
        return any(self._chance(gained, spare) > error - unlikely for gained in likely)

    def _few_gained(self, gained: int) -> float:
        """Return the chance of so few gained ones among the drawn, with so many in all."""
        chances = _chances(gained, self.drawn_wrong, self.wrong)
        return float(chances[: self.gained + 1].sum())

    def _chance(self, gained: int, spare: int) -> float:
        """Return the chance of a net loss as large as the one seen, if the needed hits are there.

        The most that may be lost with that many gained make it the likeliest.
        """
        lost = min(self.right, spare + gained)
        by_gained = _chances(gained, self.drawn_wrong, self.wrong)
        at_least = np.cumsum(_chances(lost, self.drawn_right, self.right)[::-1])[::-1]
        first = self.lost - self.gained + np.arange(len(by_gained))
        tails = np.where(first < len(at_least), at_least[first.clip(0, len(at_least) - 1)], 0.0)
        return float(by_gained @ tails)


def _chances(marked: int, drawn: int, population: int) -> npt.NDArray[np.float64]:
    """Return the chances of 0, 1, ... ``drawn`` marked ones among those drawn."""
    k = np.arange(drawn + 1)
    logs = _log_factorials(population)
    found = np.zeros(drawn + 1)
    possible = (k <= marked) & (drawn - k <= population - marked)
    k = k[possible]
    others = population - marked
    found[possible] = np.exp(
        (logs[marked] - logs[k] - logs[marked - k])
        + (logs[others] - logs[drawn - k] - logs[others - drawn + k])
        - (logs[population] - logs[drawn] - logs[population - drawn])
    )
    return found


def _log_factorials(most: int) -> npt.NDArray[np.float64]:
    known = _KNOWN.get("logs")
    if known is None or len(known) <= most:
        known = np.array([math.lgamma(n + 1) for n in range(max(most + 1, 1024))])
        _KNOWN["logs"] = known
    return known


_KNOWN: dict[str, npt.NDArray[np.float64]] = {}
