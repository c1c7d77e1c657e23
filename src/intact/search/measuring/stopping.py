"""Stops a trial once its score can no longer reach the required one (its bar).

Where it is enough to know whether it is reached, a trial ends once that is foreseen (`foresee`),
from the float model's margins on the samples that were not run (`expected_hits`).

The samples of a trial are the first ones of a finite set in pseudo-random order. So they are drawn
from that set without replacement, and the mean of the whole set is to be estimated. There are three
bounds, each with a one-sided error (a good trial is stopped):

* certain: the bar is missed even if every remaining sample contributes the maximum;
* counts (accuracy, agreement): the probability of so few hits among the drawn samples, if the whole
  set held just enough hits. It is the exact tail of the hypergeometric distribution: V. Chvatal,
  "The tail of the hypergeometric distribution", Discrete Mathematics 25, 1979. More hits in the set
  make few drawn hits less likely, so the least sufficient number is the worst case. Where the float
  model's hits are known, a second test counts the hits lost and gained against them (`PairedHits`):
  it decides earlier about candidates that are nearly as good.
* means without a useful range (divergence, cosine, noise): the normal approximation with the finite
  population correction, ``se = s sqrt((1 - n / N) / n)``, from 30 samples on: W. G. Cochran,
  Sampling Techniques, 3rd edition, 1977, equations 2.20 and 2.24. For skewed contributions the
  error can be larger than stated.

A trial is checked several times, so each check gets a share of the allowed error (Bonferroni), in
proportion to its samples. The allowed error is the probability, over the order of the samples, that
one trial is stopped wrongly.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intact.errors import UsageError

_OF_THE_LIMIT = 0.1

"""Share of the error for the upper limit of the gained hits."""


@dataclass(frozen=True)
class PairedHits:
    """Hits of a candidate, paired with those of the float model.

    Attributes:
        right: Samples of the whole set that the float model gets right.
        wrong: Samples of the whole set that it gets wrong.
        drawn_right: Drawn samples that it gets right.
        drawn_wrong: Drawn samples that it gets wrong.
        lost: Drawn samples that only the float model gets right.
        gained: Drawn samples that only the candidate gets right.
    """

    right: int
    wrong: int
    drawn_right: int
    drawn_wrong: int
    lost: int
    gained: int

    @staticmethod
    def of(base: npt.NDArray[np.bool_], own: npt.NDArray[np.bool_]) -> PairedHits:
        """Pair the float model's hits on all samples with a candidate's on the first ones."""
        drawn = base[: len(own)]
        right, drawn_right = int(base.sum()), int(drawn.sum())
        lost, gained = int((drawn & ~own).sum()), int((~drawn & own).sum())
        wrong, drawn_wrong = len(base) - right, len(own) - drawn_right
        return PairedHits(right, wrong, drawn_right, drawn_wrong, lost, gained)

    def can_reach(self, needed: int, error: float) -> bool:
        """Tell whether the candidate may have ``needed`` hits in the whole set.

        Args:
            needed: Required hits.
            error: Allowed probability of a wrong no; 0 leaves only what is certain.
        """
        spare = self.right - needed
        # At least those seen, and those that make good what was lost beyond the spare.
        fewest = max(self.gained, self.lost - spare)
        most = self.wrong - (self.drawn_wrong - self.gained)
        if fewest > most:
            return False
        if error == 0.0:
            return True
        unlikely = error * _OF_THE_LIMIT
        # The more samples are gained in all, the less likely so few of them are drawn.
        limit = fewest + bisect_left(
            range(fewest, most + 1),
            True,
            key=lambda gained: self._chance_of_few_gained(gained) <= unlikely,
        )
        # From the limit downwards: with many gained the chance is mostly the largest.
        likely = range(limit - 1, fewest - 1, -1)
        return any(self._chance(gained, spare) > error - unlikely for gained in likely)

    def _chance_of_few_gained(self, gained: int) -> float:
        """Compute the probability of so few gained ones among the drawn, with so many in all."""
        chances = _chances(gained, self.drawn_wrong, self.wrong)
        return float(chances[: self.gained + 1].sum())

    def _chance(self, gained: int, spare: int) -> float:
        """Compute the probability of a net loss as large as observed, if the needed hits are there.

        It is largest for the largest possible number of lost hits.
        """
        lost = min(self.right, spare + gained)
        by_gained = _chances(gained, self.drawn_wrong, self.wrong)
        at_least = np.cumsum(_chances(lost, self.drawn_right, self.right)[::-1])[::-1]
        first = self.lost - self.gained + np.arange(len(by_gained))
        tails = np.where(first < len(at_least), at_least[first.clip(0, len(at_least) - 1)], 0.0)
        return float(by_gained @ tails)


def _chances(marked: int, drawn: int, population: int) -> npt.NDArray[np.float64]:
    """Compute the probabilities of 0, 1, ... ``drawn`` marked samples among those drawn."""
    k = np.arange(drawn + 1)
    logs = _log_factorials(population)
    found = np.zeros(drawn + 1)
    possible = (k <= marked) & (drawn - k <= population - marked)
    k = k[possible]
    # In logarithms: the binomials of a few hundred samples exceed float64.
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
        # Kept for all trials: a check asks for the same factorials hundreds of times.
        known = np.array([math.lgamma(n + 1) for n in range(max(most + 1, 1024))])
        _KNOWN["logs"] = known
    return known


_KNOWN: dict[str, npt.NDArray[np.float64]] = {}

ERROR = 0.01

"""Probability of a wrong stop in all checks of a trial together."""

_LEAST_NORMAL = 30

"""Samples from which the normal approximation is used."""

_FORESEEN = 1.0

"""Standard deviations from the bar at which a result is foreseen."""

_LIKELY = 0.25

"""Share of the samples from which the likelier result is foreseen."""


@dataclass(frozen=True)
class Tally:
    """The contributions of the samples so far to a mean.

    Attributes:
        rows: One number per sample, float64 ``[n]``.
        population: Samples in the whole set, at least ``n``.
        highest: The largest contribution of a sample.
        is_count: Every contribution is 0 or ``highest``.
        base: For a count: which samples the float model gets right, bool ``[population]``.
        margins: For a count: the margins of the float model, ``[population]``, and those of the
            candidate, ``[n]``.
    """

    rows: npt.NDArray[np.float64]
    population: int
    highest: float
    is_count: bool = False
    base: npt.NDArray[np.bool_] | None = None
    margins: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None


def can_reach(tally: Tally, bar: float, *, share: float = 1.0, error: float = ERROR) -> bool:
    """Tell whether the mean of the whole set can still reach ``bar``.

    Args:
        tally: The samples so far, at least one.
        bar: The required mean.
        share: The part of the error that this check may use.
        error: Allowed probability of a wrong no in all checks; 0 leaves the certain bound.

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


def foresee(tally: Tally, bar: float, *, error: float = ERROR) -> bool | None:
    """Foresee whether the mean of the whole set reaches ``bar``, as well as a part of it can tell.

    Counts are judged by margins (`intact.search.measuring.stopping`), means by their normal
    approximation. From a quarter of the samples on the likelier answer is given: who goes on from
    it measures all samples in the end.

    Args:
        tally: The samples so far, at least one.
        bar: The required mean.
        error: 0 leaves what is certain.

    Returns:
        None where more samples are needed.
    """
    drawn, population = len(tally.rows), tally.population
    needed = bar
    if tally.is_count:
        needed = least_hits(bar, population, tally.highest)
        if int(np.count_nonzero(tally.rows)) >= needed:
            return True
    if error == 0.0 or drawn < _LEAST_NORMAL:
        return None
    if tally.margins is not None:
        mean, deviation = expected_hits(*tally.margins)
    elif not tally.is_count:
        mean, deviation = float(tally.rows.mean()), _deviation(tally)
    else:
        return None
    # Near the bar the deviation shrinks slowly; waiting for it would run nearly all samples.
    is_likely = drawn >= _LIKELY * population
    if is_likely or abs(mean - needed) > _FORESEEN * deviation:
        return mean >= needed
    return None


def _count_can_reach(tally: Tally, hits: int, needed: int, error: float) -> bool:
    """Test a count; where there are two tests, each has half of the error."""
    alone = error if tally.base is None else error / 2
    if lower_tail(hits, len(tally.rows), needed, tally.population) <= alone:
        return False
    if tally.base is None:
        return True
    return PairedHits.of(tally.base, tally.rows > 0.0).can_reach(needed, error / 2)


def least_hits(bar: float, population: int, highest: float = 100.0) -> int:
    """Compute the least number of hits that reaches the bar; population + 1 if none does.

    >>> least_hits(91.5, 512)
    469
    """
    if bar == math.inf:
        return population + 1
    # Near the right number; the quotient may be off by one.
    hits = min(max(math.ceil(bar / highest * population), 0), population + 1)
    # The comparison of the score itself decides, whatever the quotient was rounded to.
    while hits > 0 and highest * (hits - 1) / population >= bar:
        hits -= 1
    while hits <= population and highest * hits / population < bar:
        hits += 1
    return hits


def lower_tail(hits: int, drawn: int, marked: int, population: int) -> float:
    """Compute the probability of at most ``hits`` marked samples, drawn without replacement.

    ``sum over k <= hits of C(marked, k) C(population - marked, drawn - k) / C(population, drawn)``,
    summed from the largest term downwards.
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
    # Each term from the one before: no factorials in the loop.
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
    """Compute the upper confidence limit of the mean of the whole set."""
    mean = float(tally.rows.mean())
    if len(tally.rows) == tally.population:
        return mean
    if len(tally.rows) < _LEAST_NORMAL or error == 0.0:
        return math.inf
    return mean + NormalDist().inv_cdf(1.0 - error) * _deviation(tally)


def _deviation(tally: Tally) -> float:
    """Compute the standard error of the mean of the whole set."""
    drawn = len(tally.rows)
    variance = float(tally.rows.var(ddof=1)) * (1.0 - drawn / tally.population) / drawn
    return math.sqrt(variance)


# Estimates a candidate's answers on samples that were not run, by the float model's.
#
# The margin of a sample is the score of its right class less that of the best other class, in
# logits. The float model's are known for all samples, a candidate's for the first ones. On those,
# the margins of both differ by some noise; on each of the others the candidate is right unless
# such noise exceeds the float model's margin. So the float outputs are a control variate: only
# samples whose margin is small add to what is not known. Source: P. Glasserman, Monte Carlo
# Methods in Financial Engineering, 2003, section 4.1.

Rows = npt.NDArray[np.float64]

_ROUND = 1e-9
"""Noise in logits that is always expected."""


def margins(scores: npt.NDArray[np.floating], right: npt.NDArray[np.integer]) -> Rows:
    """Compute the margin of each sample.

    Args:
        scores: Logits, ``[samples, classes]``.
        right: The right class of each sample.

    Returns:
        float64 ``[samples]``; above 0 where the right class is the best.
    """
    wide = np.asarray(scores, np.float64)
    rows = np.arange(len(wide))
    others = wide.copy()
    # Never the best other class, also where all scores are negative.
    others[rows, right] = -math.inf
    return np.asarray(wide[rows, right] - others.max(axis=1))


class Hits(NamedTuple):
    """How many samples a candidate gets right.

    Attributes:
        mean: Expected number, of all samples.
        deviation: Its standard deviation.
    """

    mean: float
    deviation: float


def expected_hits(base: Rows, own: Rows) -> Hits:
    """Estimate how many samples of all are right.

    Args:
        base: The float model's margins of all samples.
        own: The candidate's of the first ones, two at least.
    """
    drawn = len(own)
    noise = own - base[:drawn]
    # A candidate that answers as the float model does has no spread to divide by.
    shift, spread = float(noise.mean()), max(float(noise.std(ddof=1)), _ROUND)
    distance = (base[drawn:] + shift) / spread
    right = np.array([_NORMAL.cdf(each) for each in distance])
    density = np.exp(-(distance**2) / 2) / math.sqrt(2 * math.pi)
    # The shift and the spread are estimates themselves, with these relative errors of the spread.
    of_shift = float(density.sum()) / math.sqrt(drawn)
    of_spread = float((density * distance).sum()) / math.sqrt(2 * drawn)
    variance = float((right * (1 - right)).sum()) + of_shift**2 + of_spread**2
    return Hits(float((own > 0).sum() + right.sum()), math.sqrt(variance))


_NORMAL = NormalDist()
