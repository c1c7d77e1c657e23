"""Estimates a candidate's answers on samples that were not run, by the float model's.

The margin of a sample is the score of its right class less that of the best other class, in logits.
The float model's are known for all samples, a candidate's for the first ones. On those, the margins
of both differ by some noise; on each of the others the candidate is right unless such noise exceeds
the float model's margin. So the float outputs are a control variate: only samples whose margin is
small add to what is not known. Source: P. Glasserman, Monte Carlo Methods in Financial
Engineering, 2003, section 4.1.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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
