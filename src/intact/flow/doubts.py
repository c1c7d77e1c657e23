"""What makes a float model's outputs doubtful: signs that it does not get data as it wants them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

PREPROCESSED = (
    "is the data preprocessed as the model wants it (--normalize, --mean with --std, --preprocess)?"
)

_DEVIATIONS = 2
"""How many standard deviations above chance an accuracy may lie and be chance's."""
_FEW = 16
"""Samples up to which one class for all of them is nothing odd."""
_CLASSES = 10
"""Columns from which on an output without labels is taken for one of classes."""


def doubts_of(
    scores: npt.NDArray[np.float32], labels: npt.NDArray[np.int64] | None
) -> tuple[str, ...]:
    """Return a line for each sign that a float model does not get what it wants.

    Args:
        scores: Its outputs, ``[samples, classes]``.
        labels: The classes of the samples, ``[samples]``; None where they are not known.
    """
    count, classes = scores.shape
    chosen = scores.argmax(axis=1)
    if labels is not None and is_chance(int((chosen == labels).sum()), count, classes):
        share = 100 * float((chosen == labels).mean())
        return (
            f"the float model is right for {share:.2f} % of {count} samples, no more than by "
            f"chance among {classes} classes: {PREPROCESSED}",
        )
    if count > _FEW and (chosen == chosen[0]).all() and _are_classes(scores, labels):
        return (f"the float model gives class {chosen[0]} for all {count} samples: {PREPROCESSED}",)
    return ()


def _are_classes(scores: npt.NDArray[np.float32], labels: npt.NDArray[np.int64] | None) -> bool:
    """Tell whether an output is one of classes, of which the samples have several."""
    if labels is not None:
        return bool((labels != labels[0]).any())
    return scores.shape[1] >= _CLASSES or _are_probabilities(scores)


def is_chance(right: int, count: int, classes: int) -> bool:
    """Tell whether an accuracy is one of guessing, on samples enough to see the difference.

    Args:
        right: Samples whose class was found.
        count: All samples.
        classes: How many there are, of which guessing finds one.
    """
    chance = 1 / classes
    limit = chance + _DEVIATIONS * math.sqrt(chance * (1 - chance) / count)
    return limit < (1 + chance) / 2 and right <= limit * count


def _are_probabilities(scores: npt.NDArray[np.float32]) -> bool:
    return bool((scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3))
