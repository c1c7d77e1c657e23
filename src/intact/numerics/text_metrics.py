"""Figures of language models: losses of tokens, divergence, rank correlation, intervals."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating[Any]]

_ROWS = 32
"""Positions whose scores are turned into float64 at once."""
_STUDENT_95 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""97.5 % quantiles of Student's distribution with 1 to 10 degrees of freedom."""
_NORMAL_95 = 1.959963984540054


class TokenScores(NamedTuple):
    """What two models say of the tokens of one text.

    Attributes:
        losses: Negative logarithm of the probability that each gives to the next token, in nats,
            summed over the positions: of the reference and of the other.
        divergence: Kullback-Leibler divergence of the other's next token from the reference's, in
            nats, summed.
        flips: At how many positions their most probable tokens differ.
        positions: How many positions there are.
    """

    losses: tuple[float, float]
    divergence: float
    flips: int
    positions: int


def token_scores(
    reference: FloatArray, actual: FloatArray, following: npt.NDArray[np.integer[Any]]
) -> TokenScores:
    """Compare the scores of next tokens, in float64.

    Args:
        reference: Scores before Softmax, ``[positions, vocabulary]``.
        actual: The same of the other model.
        following: The token that follows at each position, ``[positions]``.

    >>> scores = np.log(np.array([[0.5, 0.25, 0.25]]))
    >>> found = token_scores(scores, scores[:, ::-1], np.array([0]))
    >>> [round(math.exp(-each), 2) for each in found.losses], found.flips
    ([0.5, 0.25], 1)
    """
    losses, divergence, flips = np.zeros(2), 0.0, 0
    for start in range(0, len(following), _ROWS):
        part = slice(start, start + _ROWS)
        first, second = _log_softmax(reference[part]), _log_softmax(actual[part])
        rows, tokens = np.arange(len(first)), following[part]
        losses -= first[rows, tokens].sum(), second[rows, tokens].sum()
        flips += int((first.argmax(axis=1) != second.argmax(axis=1)).sum())
        shares = np.exp(first)
        kept = shares > 0  # 0 log 0 is 0
        divergence += float((shares[kept] * (first[kept] - second[kept])).sum())
    return TokenScores((float(losses[0]), float(losses[1])), divergence, flips, len(following))


def _log_softmax(scores: FloatArray) -> npt.NDArray[np.float64]:
    rows = scores.astype(np.float64)
    # Softmax does not change, and no power overflows.
    rows -= rows.max(axis=1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return rows


class Interval(NamedTuple):
    """A mean with its 95 % confidence interval; NaN ends where there is one value."""

    mean: float
    low: float
    high: float


def weighted_mean_interval(values: npt.ArrayLike, weights: npt.ArrayLike) -> Interval:
    """Return the mean of values of unequal weights, with Student's interval.

    The values are of independent pieces (windows of a text, say), the weights their sizes. The
    spread is that of a ratio of two means (W. G. Cochran, Sampling Techniques, section 2.11).

    >>> weighted_mean_interval([1.0, 3.0], [1.0, 1.0])
    Interval(mean=2.0, low=-10.7062, high=14.7062)
    """
    x, w = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    mean, count = float((x * w).sum() / w.sum()), len(x)
    if count < 2:
        return Interval(mean, math.nan, math.nan)
    # By their size: a window of few tokens that is far off moves the mean little, and tells little
    # of its spread.
    residuals = w * (x - mean)
    error = math.sqrt(float((residuals**2).sum()) / (count * (count - 1))) / float(w.mean())
    freedom = count - 1
    # Beyond the table: an expansion in 1/freedom, off by less than 0.001 from 11 on.
    wide = _NORMAL_95 + (_NORMAL_95**3 + _NORMAL_95) / (4 * freedom) + 2.82 / freedom**2
    quantile = _STUDENT_95[freedom - 1] if freedom <= len(_STUDENT_95) else wide
    # Rounding noise of the last bits would give equal values an interval of a width that is not 0.
    margin = round(quantile * error, 15)
    return Interval(mean, mean - margin, mean + margin)


def rank_correlation(first: FloatArray, second: FloatArray) -> float:
    """Return Spearman's correlation of two lists, ``[n]``: equal values share their mean rank.

    NaN where one of them has one value only.

    >>> round(rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0])), 2)
    0.5
    """
    ranks = [_ranks(np.asarray(each, np.float64)) for each in (first, second)]
    centred = [each - each.mean() for each in ranks]
    lengths = [math.sqrt(float(each @ each)) for each in centred]
    return float(centred[0] @ centred[1]) / (lengths[0] * lengths[1]) if all(lengths) else math.nan


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    # The mean of the places that equal values take together.
    ranks: npt.NDArray[np.float64] = (last - (counts - 1) / 2)[places]
    return ranks


def row_cosines(first: FloatArray, second: FloatArray) -> npt.NDArray[np.float64]:
    """Return the cosine of each pair of rows, ``[n]``; a row of zeros has 0 with others."""
    cosines: npt.NDArray[np.float64] = (unit_rows(first) * unit_rows(second)).sum(axis=1)
    return cosines


def unit_rows(vectors: FloatArray) -> npt.NDArray[np.float64]:
    """Return rows of length 1, ``[n, d]``; zeros stay zeros."""
    rows = np.asarray(vectors, np.float64)
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))[:, None]
    unit: npt.NDArray[np.float64] = rows / np.where(lengths > 0, lengths, 1.0)
    return unit
