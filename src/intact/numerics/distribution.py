"""What a threshold method reads about one tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intact.errors import CalibrationError
from intact.numerics.bins import Bins


@dataclass(frozen=True, eq=False, kw_only=True)
class Distribution(Bins):
    """The finite values of one tensor over all samples: bins, exact extremes and moments.

    The outermost bins end at the exact extremes. The two zero bins are one point at 0, which also
    stands for the denormals below 2**-133. Nonfinite values are in none of the numbers.
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
    ) -> Distribution:
        """Return the distribution of a histogram of :mod:`intact.numerics.histogram`.

        Args:
            counts: ``[65536]``; counts of nonfinite bins are ignored.
            minimum: The other numbers are those of the class.
            maximum: Likewise, and so on.
            mean_minimum: See the class.
            mean_maximum: See the class.
            mean: See the class.
            mean_square: See the class.
            samples: See the class.
            zeros: See the class.

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
