"""Mean, standard deviation and extremes of a tensor that arrives piece by piece."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt


class Moments:
    """What is known of all values so far; none is kept.

    Means and squared deviations of pieces are put together as Chan, Golub and LeVeque do
    (Technical Report 222, Stanford, 1979), in float64 and relative to the first value: a large
    mean costs no digits of a small deviation, and that of equal values is exactly 0.

    NaN and infinity count as in numpy: the mean of a tensor that holds infinity is infinite or
    NaN, its deviation NaN.
    """

    def __init__(self) -> None:
        self._count = 0
        self._origin = 0.0
        self._mean = 0.0  # relative to the origin
        self._squares = 0.0  # of deviations from the mean
        self._minimum = math.inf
        self._maximum = -math.inf

    def add(self, values: npt.NDArray[Any]) -> None:
        """Add some values, of any real type and shape."""
        wide = np.asarray(values, np.float64).reshape(-1)
        if not wide.size:
            return
        if not self._count and math.isfinite(wide[0]):
            self._origin = float(wide[0])
        with np.errstate(invalid="ignore", over="ignore"):
            shifted = wide - self._origin
            mean = float(shifted.mean())
            squares = float(np.square(shifted - mean).sum())
            self._minimum = float(np.minimum(self._minimum, wide.min()))
            self._maximum = float(np.maximum(self._maximum, wide.max()))
        count = self._count + wide.size
        share = wide.size / count
        if math.isfinite(self._mean) and math.isfinite(mean):
            gap = mean - self._mean
            self._squares += squares + gap * gap * self._count * share
            self._mean += gap * share
        else:
            self._squares = math.nan
            self._mean += mean  # of different infinities NaN
        self._count = count

    @property
    def count(self) -> int:
        """How many values there were."""
        return self._count

    @property
    def mean(self) -> float:
        """The mean; NaN before anything was added."""
        return self._origin + self._mean if self._count else math.nan

    @property
    def std(self) -> float:
        """The standard deviation of the values as a population; NaN before anything was added."""
        return math.sqrt(self._squares / self._count) if self._count else math.nan

    @property
    def minimum(self) -> float:
        """The smallest value; NaN if one is NaN or none was added."""
        return self._minimum if self._count else math.nan

    @property
    def maximum(self) -> float:
        """The largest value; NaN if one is NaN or none was added."""
        return self._maximum if self._count else math.nan
