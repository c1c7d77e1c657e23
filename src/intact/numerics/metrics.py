"""Computes errors between two results, accuracy and agreement."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intact.errors import DataError

FloatArray = npt.NDArray[np.floating[Any]]

_NORMAL_95 = 1.959963984540054

"""The 97.5 % quantile of the normal distribution."""


def mse(reference: FloatArray, actual: FloatArray) -> float:
    """Return the mean squared difference, computed in float64."""
    first, second = _pair(reference, actual)
    return float(np.mean((first - second) ** 2))


def max_abs(reference: FloatArray, actual: FloatArray) -> float:
    """Return the largest absolute difference."""
    first, second = _pair(reference, actual)
    return float(np.max(np.abs(first - second)))


def sqnr_db(reference: FloatArray, actual: FloatArray) -> float:
    """Return the signal to quantization noise ratio in decibels.

    ``10 log10(sum(reference^2) / sum((reference - actual)^2))``: infinite if the two are equal,
    minus infinity if only the reference is all zero.
    """
    first, second = _pair(reference, actual)
    return decibels(float(np.sum(first**2)), float(np.sum((first - second) ** 2)))


def cosine(reference: FloatArray, actual: FloatArray) -> float:
    """Return the cosine of the angle between the two as vectors, in -1..1.

    Two zero vectors are equal: 1. A zero and another vector: 0.
    """
    first, second = _pair(reference, actual)
    largest = float(np.max(np.abs(first))), float(np.max(np.abs(second)))
    if 0.0 in largest:
        return 1.0 if largest == (0.0, 0.0) else 0.0
    # Scaled first: squares of tiny or huge values would leave float64.
    first, second = first.ravel() / largest[0], second.ravel() / largest[1]
    lengths = math.sqrt(float(first @ first)) * math.sqrt(float(second @ second))
    return min(max(float(first @ second) / lengths, -1.0), 1.0)


def top_k(scores: FloatArray, labels: npt.NDArray[np.integer[Any]], k: int = 1) -> float:
    """Return the fraction of samples whose label is among the ``k`` highest scores.

    Of equal scores the one of the lower class index counts as higher, as argmax has it.

    Args:
        scores: ``[samples, classes]``.
        labels: ``[samples]``, class indices.
        k: How many guesses are allowed.

    Raises:
        DataError: If the shapes do not fit, a label is no class, ``k`` is not positive, there is
            no sample or a score is NaN.
    """
    return float(np.mean(in_top_k(scores, labels, k)))


def in_top_k(
    scores: FloatArray, labels: npt.NDArray[np.integer[Any]], k: int = 1
) -> npt.NDArray[np.bool_]:
    """Return for each sample whether :func:`top_k` counts it; arguments and errors are the same."""
    scores, labels = np.asarray(scores), np.asarray(labels)
    if scores.ndim != 2 or labels.shape != scores.shape[:1] or not labels.size or k < 1:
        raise DataError(
            f"top-{k} of scores of shape {scores.shape} and labels of shape {labels.shape}",
            remedy="pass [samples, classes] and [samples], k of at least 1",
        )
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise DataError(
            f"labels {labels.min()}..{labels.max()} for {scores.shape[1]} classes",
            remedy="check that labels start at 0 and belong to this model",
        )
    if np.isnan(scores).any():
        raise DataError("a score is NaN", remedy="check the samples and the model")
    chosen = np.take_along_axis(scores, labels[:, None], axis=1)
    # By counting and not by sorting: of 1000 classes only those ahead of one matter.
    earlier = np.arange(scores.shape[1]) < labels[:, None]
    ahead = (scores > chosen) | ((scores == chosen) & earlier)
    return np.asarray(ahead.sum(axis=1) < k)


def agreement(reference: FloatArray, actual: FloatArray) -> float:
    """Return the fraction of samples for which both ``[samples, classes]`` have the same argmax.

    Raises:
        DataError: If the shapes differ or are not of that kind.
    """
    first, second = _pair(reference, actual)
    if first.ndim != 2:
        raise DataError(
            f"agreement of scores of shape {first.shape}", remedy="pass [samples, classes]"
        )
    return float(np.mean(first.argmax(axis=1) == second.argmax(axis=1)))


class AccuracyDifference(NamedTuple):
    """A difference in accuracy on the same samples, with its 95 % confidence interval."""

    difference: float
    """Accuracy of the second minus accuracy of the first, as a fraction."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""

    @property
    def significant(self) -> bool:
        """Whether the interval excludes zero."""
        return not self.low <= 0.0 <= self.high


def accuracy_difference(
    first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]
) -> AccuracyDifference:
    """Compare two models on the same samples.

    Only samples on which exactly one of them is right carry information, so that the interval is
    far narrower than that of two independent accuracies. It is Wald's for paired proportions with
    half an observation added to each of the four cells, which keeps its coverage for few samples
    and few disagreements (A. Agresti, Y. Min, Statistics in Medicine 24, 2005).

    Args:
        first: bool ``[samples]``, whether the first model is right.
        second: bool ``[samples]``, whether the second is.

    Raises:
        DataError: If the arrays are not of one shape ``[samples]`` with at least one sample.
    """
    before, after = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if before.ndim != 1 or before.shape != after.shape or not before.size:
        raise DataError(
            f"paired results of shapes {before.shape} and {after.shape}",
            remedy="pass two equally long, non-empty arrays",
        )
    gained = float(np.sum(~before & after))
    lost = float(np.sum(before & ~after))
    number = before.size + 2.0
    centre = (gained - lost) / number
    spread = (gained + lost + 1.0) / number - centre * centre
    margin = _NORMAL_95 * math.sqrt(spread / number)
    return AccuracyDifference(
        (gained - lost) / before.size, max(centre - margin, -1.0), min(centre + margin, 1.0)
    )


def share_interval(shares: npt.NDArray[np.float64], numbers: int) -> tuple[float, float]:
    """Return the 95 % interval of a share that is the mean of samples' own, as fractions.

    The numbers of a sample are alike, more or less: they count as so many trials as the spread
    between samples says, as many as samples at least and as numbers at most.

    Args:
        shares: The share of each sample, ``[samples]``, one or more.
        numbers: Of how many numbers each is the share.

    >>> share_interval(np.ones(8), 1) == binomial_interval(8, 8)
    True
    """
    samples, mean, spread = len(shares), float(shares.mean()), float(shares.var())
    # A spread of none says that they are as good as numbers of their own.
    trials = mean * (1 - mean) / spread * samples if spread else math.inf
    trials = min(max(trials, samples), samples * numbers)
    return binomial_interval(mean * trials, trials)


def binomial_interval(successes: float, trials: float) -> tuple[float, float]:
    """Return the 95 % interval of a probability, as fractions.

    It is Wilson's (E. B. Wilson, J. Am. Stat. Assoc. 22, 1927), which holds for few trials and near
    0 and 1 too.

    Args:
        successes: In how many trials it happened.
        trials: Their number, 1 or more.

    >>> binomial_interval(8, 8)[1]
    1.0
    """
    share, square = successes / trials, _NORMAL_95**2
    centre = (share + square / (2 * trials)) / (1 + square / trials)
    spread = share * (1 - share) / trials + square / (4 * trials * trials)
    margin = _NORMAL_95 * math.sqrt(spread) / (1 + square / trials)
    return max(centre - margin, 0.0), min(centre + margin, 1.0)


class EqualShare(NamedTuple):
    """How much of two results is equal, with its 95 % interval.

    Attributes:
        percent: Percent of the numbers that are equal.
        low: Lower end of the interval.
        high: Upper end.
    """

    percent: float
    low: float
    high: float


class Equality(NamedTuple):
    """How much of an output is equal, by sample.

    Attributes:
        shares: The share of equal numbers, float64 ``[samples]``; 0 where shapes differ.
        numbers: Number of the numbers of a sample.
    """

    shares: npt.NDArray[np.float64]
    numbers: int

    @classmethod
    def of(cls, reference: npt.NDArray[Any], actual: npt.NDArray[Any], count: int) -> Equality:
        """Compare a batch of which so many samples are real; what has no axis of them is one."""
        rows = count if reference.ndim and len(reference) >= count else 1
        if reference.shape != actual.shape:
            return cls(np.zeros(rows), 1)
        size = len(reference) if rows == count and reference.ndim else 1
        equal = (reference == actual).reshape(size, -1)[:rows]
        return cls(equal.mean(axis=1) if equal.size else np.ones(rows), max(equal.shape[1], 1))

    def joined(self, more: Equality) -> Equality:
        """Return the same of these samples and of more."""
        shares = np.concatenate([self.shares, more.shares])
        return Equality(shares, max(self.numbers, more.numbers))

    @property
    def share(self) -> EqualShare:
        """The share of all numbers, with its interval."""
        share = float(self.shares.mean())
        low, high = share_interval(self.shares, self.numbers)
        # Wilson's ends at 1 but for a rounding error.
        return EqualShare(100 * share, 100 * low, 100 * max(high, share))


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two powers, dB: infinite without noise, minus infinity without signal."""
    if noise == 0.0:
        return math.inf
    # Not the logarithm of the quotient, which may leave float64 where both powers do not.
    return 10.0 * (math.log10(signal) - math.log10(noise)) if signal > 0.0 else -math.inf


def _pair(
    reference: FloatArray, actual: FloatArray
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    first, second = np.asarray(reference), np.asarray(actual)
    if first.shape != second.shape or not first.size:
        raise DataError(
            f"cannot compare shapes {first.shape} and {second.shape}",
            remedy="pass two non-empty arrays of one shape",
        )
    return first.astype(np.float64), second.astype(np.float64)
