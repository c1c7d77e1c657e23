"""Statistics by their definitions; `scipy.stats` itself asks for torch when it is imported."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import special


def students_interval(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a mean, by Student's t."""
    wide = special.stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - wide), float(values.mean() + wide)


def log_softmax(scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the logarithms of the probabilities of each row."""
    shifted = np.asarray(scores, np.float64)
    shifted = shifted - shifted.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def spearman(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Return the correlation of ranks, of which equal values share the mean."""
    return float(np.corrcoef(_ranks(np.asarray(first)), _ranks(np.asarray(second)))[0, 1])


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]
