"""A histogram over the leading bits of float32, and the per-sample statistics of the same pass.

A bin is the upper 16 bits of a value's bit pattern: sign, exponent and 7 bits of mantissa. The
65,536 bins cover every float at 0.4-0.8 % relative resolution, so that there is no range to guess
and histograms of any two tensors merge by integer addition.

Nonfinite values are counted in their own bins (:func:`is_finite_bin`) and enter nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intact.errors import DataError
from intact.numerics.histogram_kernel import TABLES, accumulate_rows

BINS = 1 << 16
_NEGATIVE = 0x8000
"""The first bin of the negative side."""
_NONFINITE = 0x7F80
"""The first bin of infinity and NaN, on the positive side."""
_LARGEST_CALL = 2**32
"""Elements of one call, beyond which a uint32 table might overflow."""


class SampleStatistics(NamedTuple):
    """What one pass finds in every sample; each array is ``[samples]``.

    A sample's numbers depend on its own values and their order only. A sample without finite
    values has minimum +inf, maximum -inf and sums 0, the neutral elements of merging.
    """

    minimum: npt.NDArray[np.float32]
    """Smallest finite value; a zero is always +0."""
    maximum: npt.NDArray[np.float32]
    """Largest finite value; a zero is always +0."""
    total: npt.NDArray[np.float64]
    """Sum of the finite values, added in float64 in a fixed order."""
    total_squares: npt.NDArray[np.float64]
    """Sum of the squares of the finite values; each square is exact, the sum is float64."""
    zeros: npt.NDArray[np.int64]
    """Number of values that are exactly +0 or -0."""


def new_counts() -> npt.NDArray[np.int64]:
    """Return an empty histogram."""
    return np.zeros(BINS, dtype=np.int64)


def new_workspace() -> npt.NDArray[np.uint32]:
    """Return the scratch tables of :func:`accumulate` (1 MiB); one per thread, used again."""
    return np.zeros((TABLES, BINS), dtype=np.uint32)


def accumulate(
    rows: npt.NDArray[np.float32],
    counts: npt.NDArray[np.int64],
    workspace: npt.NDArray[np.uint32],
) -> SampleStatistics:
    """Add every value to the histogram and return the statistics of each sample.

    Releases the GIL. Measured on one core of an EPYC with AVX-512, everything included:
    0.55 ns an element for large Gaussian tensors, 0.6 ns after a ReLU, 0.8-0.9 ns for 64 samples
    of 1000 elements.

    Args:
        rows: ``[samples, elements]``, float32 and C-contiguous.
        counts: ``[65536]``, from :func:`new_counts`; added to in place.
        workspace: From :func:`new_workspace`; all zero before and after.

    Raises:
        DataError: If an array is not of the dtype, shape or layout above, or ``rows`` holds more
            than 2**32 elements.
    """
    if rows.dtype != np.float32 or rows.ndim != 2 or not rows.flags.c_contiguous:
        raise DataError(
            f"histogram rows of {rows.dtype} and shape {rows.shape}",
            remedy="pass a C-contiguous float32 array of shape [samples, elements]",
        )
    _check_table("counts", counts, np.dtype(np.int64), (BINS,))
    _check_table("workspace", workspace, np.dtype(np.uint32), (TABLES, BINS))
    if rows.size > _LARGEST_CALL:
        raise DataError(
            f"{rows.size} elements in one histogram call", remedy="pass fewer samples at a time"
        )
    samples = rows.shape[0]
    extremes = np.empty((2, samples), dtype=np.float32)
    sums = np.empty((2, samples), dtype=np.float64)
    zeros = np.empty(samples, dtype=np.int64)
    accumulate_rows(rows, rows.view(np.int32), counts, workspace, extremes, sums, zeros)
    return SampleStatistics(extremes[0], extremes[1], sums[0], sums[1], zeros)


def _check_table(
    name: str, table: npt.NDArray[np.generic], dtype: np.dtype[np.generic], shape: tuple[int, ...]
) -> None:
    # The kernel does not check bounds: a table that is too small would corrupt memory.
    if table.dtype != dtype or table.shape != shape or not table.flags.carray:
        raise DataError(
            f"histogram {name} of {table.dtype} and shape {table.shape}",
            remedy=f"use new_{name}()",
        )


def merge(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the histogram of both; exact, and independent of order."""
    return first + second


def bin_edges() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the ends of the interval of values of each bin, as two float64 ``[65536]`` arrays.

    A positive bin holds ``low <= x < high``, a negative one ``low < x <= high``. The bins 0x0000
    and 0x8000 hold +0 and -0 with the denormals below 2**-133. The outermost finite bins end at
    +-2**128. The ends of nonfinite bins are NaN.
    """
    patterns = np.arange(_NONFINITE + 1, dtype=np.uint32) << 16
    ends = patterns.view(np.float32).astype(np.float64)
    ends[_NONFINITE] = 2.0**128
    low = np.full(BINS, np.nan)
    high = np.full(BINS, np.nan)
    low[:_NONFINITE], high[:_NONFINITE] = ends[:-1], ends[1:]
    negative = slice(_NEGATIVE, _NEGATIVE + _NONFINITE)
    low[negative], high[negative] = -ends[1:], -ends[:-1]
    return low, high


def is_finite_bin() -> npt.NDArray[np.bool_]:
    """Return a mask ``[65536]`` of the bins that hold finite values."""
    return (np.arange(BINS) & (_NEGATIVE - 1)) < _NONFINITE
