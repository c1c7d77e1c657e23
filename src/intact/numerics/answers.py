"""Measures what a classifier's answers tell of its input: chance, one class, information.

A trained classifier that gets what it was trained on is sure of single samples and gives all
classes over many: its answers have information on the sample. Any other contrast, brightness or
order of colours lessens that, more the further it is off, so that of several ways to prepare the
same samples the right one has most, without any label.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

_DEVIATIONS = 2
"""How many standard deviations above chance an accuracy may lie and be chance's."""
FEW = 16
"""Samples up to which one class for all of them is nothing odd."""
_ENOUGH, _FAR_MORE = 8, 4
"""Samples, and times as many right answers, at least, to say that labels are shifted."""
_UNIT = 1e-3
"""How far the length of a row may be from 1."""
CLASSES = 10
"""Columns from which on an output without labels is taken for one of classes."""


def is_chance(right: int, count: int, classes: int) -> bool:
    """Tell whether an accuracy is one of guessing, on samples enough to see the difference.

    Args:
        right: Samples whose class was found.
        count: All samples.
        classes: How many there are, of which guessing finds one.
    """
    chance = 1 / classes
    limit = chance + _DEVIATIONS * math.sqrt(chance * (1 - chance) / count)
    # With few samples the interval around chance reaches half of the way to certainty, and nothing
    # can be told from it.
    return limit < (1 + chance) / 2 and right <= limit * count


def chance_of(heads: int, throws: int) -> float:
    """Return the probability of so many heads or more: the one-sided sign test of paired answers.

    >>> chance_of(2, 2)
    0.25
    """
    ways = sum(math.comb(throws, each) for each in range(heads, throws + 1))
    # Both are integers of any size; their quotient is rounded once.
    return ways / (1 << throws)


def label_shift(chosen: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> int:
    """Return 1 or -1 where labels that are larger by it are those of the answers; 0 elsewhere.

    Some models have a class for the background in front of all others, and some lists of labels
    begin at 1. It is said where most answers are right then, and by far fewer as they are.

    >>> label_shift(np.array([1, 2, 3, 4, 5, 0, 7, 8]), np.arange(8))
    1
    """
    right, count = int((chosen == labels).sum()), len(labels)
    for shift in (1, -1):
        found = int((chosen == labels + shift).sum())
        if count >= _ENOUGH and 2 * found > count and found > _FAR_MORE * right:
            return shift
    return 0


def are_classes(
    scores: npt.NDArray[np.floating], labels: npt.NDArray[np.int64] | None = None
) -> bool:
    """Tell whether an output is one of classes, of which the samples have several."""
    if labels is not None:
        return bool((labels != labels[0]).any())
    if not scores.size or are_unit_vectors(scores):
        return False
    return scores.shape[1] >= CLASSES or _are_probabilities(scores)


def are_unit_vectors(scores: npt.NDArray[np.floating]) -> bool:
    """Tell whether each row has length 1, as embeddings have, and no answer alone is 1."""
    lengths = np.sqrt(np.square(scores, dtype=np.float64).sum(axis=1))
    return bool((np.abs(lengths - 1) < _UNIT).all()) and not _are_probabilities(scores)


def is_one_class(scores: npt.NDArray[np.floating]) -> bool:
    """Tell whether all of many samples are given one class."""
    chosen = scores.argmax(axis=1)
    return len(chosen) > FEW and bool((chosen == chosen[0]).all())


def information(scores: npt.NDArray[np.floating]) -> Doubles:
    """Return what the answer to each sample tells of it, in bits, ``[samples]``.

    It is the divergence of the sample's probabilities from their mean over all samples; its mean
    is the mutual information of sample and class.

    Args:
        scores: Logits or probabilities, ``[samples, classes]``.
    """
    shares = probabilities(scores)
    # A probability of exactly 0 has no logarithm; the smallest number in its place is multiplied by
    # a share of 0 and leaves no trace.
    usual = np.maximum(shares.mean(axis=0), np.finfo(np.float64).tiny)
    ratios = np.maximum(shares, np.finfo(np.float64).tiny) / usual
    return np.asarray((shares * np.log2(ratios)).sum(axis=1))


def probabilities(scores: npt.NDArray[np.floating]) -> Doubles:
    """Return what is given as it is if it has probabilities, else the softmax of it."""
    wide = scores.astype(np.float64)
    if _are_probabilities(scores):
        return wide
    # Softmax is the same after any shift, and the largest exponent is 0 then: nothing overflows.
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def most_information(count: int, classes: int) -> float:
    """Return how much information the answers to some samples may have on average, in bits."""
    return math.log2(max(1, min(count, classes)))


def _are_probabilities(scores: npt.NDArray[np.floating]) -> bool:
    several = scores.shape[1] > 1
    return bool(several and (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3))
