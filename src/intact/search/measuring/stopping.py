"""When a trial may stop: once its score can no longer reach what it has to.

The samples of a trial are the first of a finite set in a fixed pseudo-random order, so they are
drawn from that set without replacement, and what is to be known is the mean of the whole set.
Three bounds, each one-sided (the trial is held for too bad although it is not):

* certain: even if every remaining sample contributed the most that one can, the bar is missed;
* counts (accuracy, agreement): if the whole set held just enough hits, so few of them among those
  drawn would be unlikely. The exact tail of the hypergeometric distribution, which is what drawing
  without replacement follows: V. Chvatal, "The tail of the hypergeometric distribution", Discrete
  Mathematics 25, 1979, states it (and a looser closed form); more hits in the set only make few
  among the drawn less likely, so the least number that reaches the bar is the worst case. Beside
  it, where the float model's hits are known, what is lost and gained against them
  (`intact.search.measuring.paired`): that decides earlier about candidates that are nearly as good.
* means without useful limits (divergence, cosine, noise): the normal approximation with the
  correction for finite populations, ``se = s sqrt((1 - n / N) / n)``, from 30 samples on:
  W. G. Cochran, Sampling Techniques, 3rd edition, 1977, equations 2.20 and 2.24. It is an
  approximation; skewed contributions can miss the stated error.

A trial is looked at several times, so each look has its share of the error allowed (Bonferroni), in
proportion to its samples: what is far too bad is found early with hardly any.
What is allowed is the chance, over the order of the samples, that one trial is stopped wrongly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from intact.errors import UsageError
from intact.search.measuring.paired import Pairs

ERROR = 0.01
"""Chance of a wrong stop in all looks at a trial together."""

_LEAST_NORMAL = 30
"""Samples from which the normal approximation is used."""


@dataclass(frozen=True)
class Tally:
    """What the samples so far contributed to a mean.

    Attributes:
        rows: A number a sample, float64 ``[n]``.
        population: Samples in the whole set, at least ``n``.
        highest: The most that a sample contributes.
        is_count: Each contributes 0 or ``highest``.
        base: Of a count, where the float model has a hit in the whole set, bool ``[population]``.
    """

    rows: npt.NDArray[np.float64]
    population: int
    highest: float
    is_count: bool = False
    base: npt.NDArray[np.bool_] | None = None


def can_reach(tally: Tally, bar: float, *, share: float = 1.0, error: float = ERROR) -> bool:
    """Tell whether the mean of the whole set may still be ``bar`` or more.

    Args:
        tally: The samples so far, at least one.
        bar: What has to be reached.
        share: Of the error, for this look at the trial.
        error: Chance allowed in all looks to say no although it would be reached; 0 leaves the
            certain bound.

    Raises:
        UsageError: ``bar`` is NaN, there are no samples, or ``error`` or ``share`` is outside 0..1.
    """
    if math.isnan(bar) or not 0.0 <= error < 1.0 or not 0.0 < share <= 1.0:
        raise UsageError(f"a bar of {bar} with the share {share} of an error of {error}")
    drawn = len(tally.rows)
    if not 0 < drawn <= tally.population:
        raise UsageError(f"{drawn} of {tally.population} samples")
    if bar == -math.inf:
        return True
    if tally.is_count:
        hits = int(np.count_nonzero(tally.rows))
        needed = least_hits(bar, tally.population, tally.highest)
        if needed > hits + tally.population - drawn:
            return False
        return error == 0.0 or _count_can_reach(tally, hits, needed, error * share)
    most = tally.rows.sum() + tally.highest * (tally.population - drawn)
    if most / tally.population < bar:
        return False
    return _normal_upper(tally, error * share) >= bar


def _count_can_reach(tally: Tally, hits: int, needed: int, error: float) -> bool:
    """Hold a count against its bounds; where there are two, each has half of the error."""
    alone = error if tally.base is None else error / 2
    if lower_tail(hits, len(tally.rows), needed, tally.population) <= alone:
        return False
    if tally.base is None:
        return True
    return Pairs.of(tally.base, tally.rows > 0.0).can_reach(needed, error / 2)


def least_hits(bar: float, population: int, highest: float = 100.0) -> int:
    """Return the least number of hits whose score reaches the bar; above all samples if none does.

    >>> least_hits(91.5, 512)
    469
    """
    if bar == math.inf:
        return population + 1
    hits = min(max(math.ceil(bar / highest * population), 0), population + 1)
    # The comparison of the score itself decides, whatever the quotient was rounded to.
    while hits > 0 and highest * (hits - 1) / population >= bar:
        hits -= 1
    while hits <= population and highest * hits / population < bar:
        hits += 1
    return hits


def lower_tail(hits: int, drawn: int, marked: int, population: int) -> float:
    """Return the chance of at most ``hits`` marked ones among those drawn without replacement.

    ``sum over k <= hits of C(marked, k) C(population - marked, drawn - k) / C(population, drawn)``,
    added from the largest term downwards.
    """
    low, high = max(0, drawn + marked - population), min(drawn, marked)
    if hits >= high:
        return 1.0
    if hits < low:
        return 0.0
    if hits * population > drawn * marked:  # the other tail is the smaller one
        return 1.0 - lower_tail(drawn - hits - 1, drawn, population - marked, population)
    term = math.exp(
        _log_choose(marked, hits)
        + _log_choose(population - marked, drawn - hits)
        - _log_choose(population, drawn)
    )
    total = 0.0
    for k in range(hits, low - 1, -1):
        total += term
        if term < 1e-18 * total:
            break
        # From C(m, k) C(u, d - k) to the same for k - 1.
        term *= k * (population - marked - drawn + k) / ((marked - k + 1) * (drawn - k + 1))
    return min(total, 1.0)


def _log_choose(number: int, chosen: int) -> float:
    return math.lgamma(number + 1) - math.lgamma(chosen + 1) - math.lgamma(number - chosen + 1)


def _normal_upper(tally: Tally, error: float) -> float:
    """Return the upper confidence limit of the mean of the whole set."""
    drawn, population = len(tally.rows), tally.population
    mean = float(tally.rows.mean())
    if drawn == population:
        return mean
    if drawn < _LEAST_NORMAL or error == 0.0:
        return math.inf
    variance = float(tally.rows.var(ddof=1)) * (1.0 - drawn / population) / drawn
    return mean + NormalDist().inv_cdf(1.0 - error) * math.sqrt(variance)
