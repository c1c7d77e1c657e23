"""Declares the distribution of a tensor's values: bins, exact extremes and moments."""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from intact.errors import CalibrationError


class Bins(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Non-empty intervals in ascending order that do not overlap, and how many values each holds.

    An interval of zero width is a point that holds its values exactly. Everything read from here
    assumes the mass of an interval spread evenly over it; with the float histogram, whose intervals
    have a relative width of at most 2**-7, a position is off by less than that.
    """

    low: npt.NDArray[np.float64]
    """Lower ends, ``[n]``."""
    high: npt.NDArray[np.float64]
    """Upper ends, ``[n]``."""
    count: npt.NDArray[np.int64]
    """Values in each interval, ``[n]``, all positive."""

    @cached_property
    def total(self) -> int:
        """Number of values."""
        return int(self.count.sum())

    @cached_property
    def cumulative(self) -> npt.NDArray[np.int64]:
        """Number of values up to the upper end of each interval, ``[n]``."""
        return np.cumsum(self.count)

    def refuse_empty(self) -> None:
        """Raise CalibrationError if there is no value at all."""
        if self.total == 0:
            raise CalibrationError(
                "no finite value was observed",
                remedy="check the samples, or leave the tensor float",
            )

    def mass_between(self, start: float, stop: float) -> float:
        """Return how many values lie in ``start..stop``, both ends included."""
        width = self.high - self.low
        point = width == 0.0
        overlap = np.minimum(self.high, stop) - np.maximum(self.low, start)
        share = np.clip(overlap / np.where(point, 1.0, width), 0.0, 1.0)
        # A point has no width to take a share of: it is in or out.
        share[point] = overlap[point] >= 0.0
        return float(np.dot(self.count, share))

    def quantile(self, fraction: float) -> float:
        """Return the value that the given fraction of all values does not exceed.

        With n values, that is the ``ceil(fraction * n)``-th smallest to the width of its interval;
        0 and 1 give the lowest and the highest end.

        Raises:
            CalibrationError: If there is no value, or the fraction is not in 0..1.
        """
        self.refuse_empty()
        if not 0.0 <= fraction <= 1.0:
            raise CalibrationError(f"a quantile of {fraction}", remedy="use a fraction in 0..1")
        rank = fraction * self.total
        index = int(np.searchsorted(self.cumulative, rank, side="left"))
        index = min(index, self.count.size - 1)
        below = int(self.cumulative[index] - self.count[index])
        share = (rank - below) / int(self.count[index])
        low, high = float(self.low[index]), float(self.high[index])
        # The sum may be rounded above the end; percentiles must not exceed the maximum.
        return min(low + share * (high - low), high)

    def absolute(self) -> Bins:
        """Return the bins of the absolute values: the negative side is folded onto the positive.

        Intervals that overlap after folding are those of one histogram bin (they differ only where
        an end was cut to the exact extreme); they become one.
        """
        negative = self.high <= 0.0
        low = np.where(negative, -self.high, np.maximum(self.low, 0.0))
        high = np.where(negative, -self.low, self.high)
        order = np.lexsort((high, low))
        low, high = low[order] + 0.0, high[order] + 0.0  # no negative zero
        count = self.count[order]
        if not count.size:
            return Bins(low, high, count)
        starts = np.flatnonzero(np.r_[True, low[1:] >= np.maximum.accumulate(high)[:-1]])
        return Bins(low[starts], np.maximum.reduceat(high, starts), np.add.reduceat(count, starts))

    def positive(self) -> Bins:
        """Return the bins above zero."""
        keep = self.low >= 0.0
        keep &= self.high > 0.0
        return Bins(self.low[keep], self.high[keep], self.count[keep])

    def linear_bins(self, number: int, threshold: float) -> npt.NDArray[np.float64]:
        """Return the mass in each of ``number`` equal intervals of ``0..threshold``.

        The mass of an interval is spread evenly, so that each result is off by at most the counts
        of the two intervals that its ends cut. Mass outside ``0..threshold`` is left out; a point
        on an inner edge belongs to the interval above, one at the threshold to the last.
        """
        # The cumulative count is piecewise linear with knots at the ends of the intervals: one
        # interpolation at the edges, and differences, in place of a loop over intervals and bins.
        edges = np.linspace(0.0, threshold, number + 1)
        point = self.low == self.high
        wide = ~point
        knots = np.column_stack([self.low[wide], self.high[wide]]).ravel()
        mass = np.zeros(number)
        if knots.size:
            after = np.cumsum(self.count[wide]).astype(np.float64)
            before = after - self.count[wide]
            mass += np.diff(np.interp(edges, knots, np.column_stack([before, after]).ravel()))
        if point.any() and threshold > 0.0:
            at = self.low[point]
            inside = (at >= 0.0) & (at <= threshold)
            # np.add.at below, since two points may lie in one bin and a plain indexed sum would
            # count one.
            index = np.searchsorted(edges, at[inside], side="right") - 1
            np.add.at(mass, np.minimum(index, number - 1), self.count[point][inside])
        return mass


class Distribution(Bins, frozen=True, eq=False, kw_only=True, dict=True):
    """The finite values of one tensor over all samples: bins, exact extremes and moments.

    The outermost bins end at the exact extremes. The two zero bins are one point at 0, which also
    holds the denormals below 2**-133. Nonfinite values are in none of the numbers.
    """

    minimum: float
    """Smallest value, exact."""
    maximum: float
    """Largest value, exact."""
    mean_minimum: float
    """Average over the samples of each sample's minimum."""
    mean_maximum: float
    """Average over the samples of each sample's maximum."""
    mean: float
    """Mean of all values."""
    mean_square: float
    """Mean of their squares."""
    samples: int
    """Number of samples that held a finite value."""
    zeros: int
    """Number of values that are exactly zero."""
    magnitudes: npt.NDArray[np.int64] | None = None
    """Counts of magnitudes in equal bins, ``[bins]``, of a second pass over the samples (see
    `intact.numerics.threshold_kl_counted`); None where there was none."""

    @classmethod
    def from_counts(
        cls,
        counts: npt.NDArray[np.int64],
        *,
        minimum: float,
        maximum: float,
        mean_minimum: float,
        mean_maximum: float,
        mean: float,
        mean_square: float,
        samples: int,
        zeros: int,
        magnitudes: npt.NDArray[np.int64] | None = None,
    ) -> Distribution:
        """Return the distribution of a histogram of :mod:`intact.numerics.histogram`.

        Args:
            counts: ``[65536]``; counts of nonfinite bins are ignored.
            minimum: The other numbers are those of the class.
            maximum: See the class.
            mean_minimum: See the class.
            mean_maximum: See the class.
            mean: See the class.
            mean_square: See the class.
            samples: See the class.
            zeros: See the class.
            magnitudes: See the class.

        Raises:
            CalibrationError: If no finite value was counted.
        """
        low, high, count = _intervals(counts)
        distribution = cls(
            low=np.clip(low, minimum, maximum),
            high=np.clip(high, minimum, maximum),
            count=count,
            minimum=minimum,
            maximum=maximum,
            mean_minimum=mean_minimum,
            mean_maximum=mean_maximum,
            mean=mean,
            mean_square=mean_square,
            samples=samples,
            zeros=zeros,
            magnitudes=magnitudes,
        )
        distribution.refuse_empty()
        return distribution

    @classmethod
    def from_values(cls, values: npt.NDArray[np.float32]) -> Distribution:
        """Return the distribution of an array: rows of samples if it is 2-d, else one sample.

        Raises:
            CalibrationError: If it is not float32 or holds no finite value.
        """
        from intact.numerics.histogram import accumulate, new_counts, new_workspace

        if values.dtype != np.float32:
            raise CalibrationError(
                f"a distribution of {values.dtype} values", remedy="convert them to float32"
            )
        rows = np.ascontiguousarray(values if values.ndim == 2 else values.reshape(1, -1))
        counts = new_counts()
        found = accumulate(rows, counts, new_workspace())
        observed = found.minimum <= found.maximum
        finite = max(int(np.isfinite(rows).sum()), 1)
        minimum = found.minimum[observed].astype(np.float64)
        maximum = found.maximum[observed].astype(np.float64)
        return cls.from_counts(
            counts,
            minimum=float(minimum.min(initial=np.inf)),
            maximum=float(maximum.max(initial=-np.inf)),
            mean_minimum=float(minimum.sum() / max(minimum.size, 1)),
            mean_maximum=float(maximum.sum() / max(maximum.size, 1)),
            mean=float(found.total.sum() / finite),
            mean_square=float(found.total_squares.sum() / finite),
            samples=int(observed.sum()),
            zeros=int(found.zeros.sum()),
        )


_NEGATIVE = 0x8000

"""Bin of -0 and the first of the negative side."""

_NONFINITE = 0x7F80

"""Bins of one side below this hold finite values."""


def _intervals(
    counts: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the non-empty finite bins as (low, high, count), ascending by value.

    Touches the 65,536 counts once, as booleans: this runs for every tensor of a model. The bins
    are those of :func:`intact.numerics.histogram.bin_edges`, the zero bins as one point.
    """
    used = np.flatnonzero(counts != 0)
    positive = used[(used > 0) & (used < _NONFINITE)]
    negative = used[(used > _NEGATIVE) & (used < _NEGATIVE + _NONFINITE)][::-1] - _NEGATIVE
    zeros = int(counts[0] + counts[_NEGATIVE])
    middle = np.zeros(1 if zeros else 0)
    low = np.concatenate([-_edge(negative + 1), middle, _edge(positive)])
    high = np.concatenate([-_edge(negative), middle, _edge(positive + 1)])
    count = np.concatenate(
        [counts[negative + _NEGATIVE], [zeros] if zeros else [], counts[positive]]
    )
    return low, high, count.astype(np.int64)


def _edge(bins: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """Return the lower ends of positive bins; that of the first nonfinite one is 2**128."""
    ends = (bins.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    ends[bins == _NONFINITE] = 2.0**128
    return ends
