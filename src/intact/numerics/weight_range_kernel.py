"""The compiled search of :mod:`intact.numerics.weight_range`. Importing compiles or loads it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, types

_LANES = 64
"""Partial sums, a fixed number so that the result does not depend on the vector width."""
_COARSE = 33
"""Coarse candidates, an eighth of an octave apart: 4 octaves below the maximum."""
_PER_OCTAVE = 8
_REFINE = 4
"""A refinement puts 2 * 4 candidates between the neighbours of the best."""

_Values = types.Array(types.float32, 1, "C", readonly=True)
_Steps = types.Array(types.float64, 1, "C", readonly=True)


# Explicit signatures: one specialisation is compiled and cached; weights are often read-only.
@njit(types.void(_Values, types.float32[::1], types.float32, types.float32, types.float32),
      cache=True, nogil=True)  # fmt: skip
def _add_errors(
    values: npt.NDArray[np.float32],
    lanes: npt.NDArray[np.float32],
    inverse: np.float32,
    first: np.float32,
    last: np.float32,
) -> None:
    """Add the squared errors, in steps, of up to ``_LANES`` values, each to its own sum."""
    for lane in range(values.shape[0]):
        position = values[lane] * inverse
        distance = position - min(max(np.rint(position), first), last)
        lanes[lane] += distance * distance


@njit(types.float64(_Values, types.float32[::1], types.float64, types.float64, types.float64),
      cache=True, nogil=True)  # fmt: skip
def _squared_error(
    values: npt.NDArray[np.float32],
    lanes: npt.NDArray[np.float32],
    step: float,
    first: float,
    last: float,
) -> float:
    """Return the squared error of one channel for codes ``first..last`` of the given step."""
    lanes[:] = np.float32(0.0)
    inverse = np.float32(1.0 / step)
    for start in range(0, values.shape[0], _LANES):
        block = values[start : min(start + _LANES, values.shape[0])]
        _add_errors(block, lanes, inverse, np.float32(first), np.float32(last))
    error = 0.0
    for lane in range(_LANES):
        error += np.float64(lanes[lane])
    return error * step * step


@njit(types.void(types.Array(types.float32, 2, "C", readonly=True), _Steps, _Steps, _Steps,
                 types.float64[::1]),
      cache=True, nogil=True)  # fmt: skip
def best_factors(
    rows: npt.NDArray[np.float32],
    steps: npt.NDArray[np.float64],
    first: npt.NDArray[np.float64],
    last: npt.NDArray[np.float64],
    factors: npt.NDArray[np.float64],
) -> None:
    """Write the factor in 1/16..1 on each channel's step that gives the least squared error.

    Args:
        rows: float32 ``[channels, elements]``, finite.
        steps: Step of the full range of each channel; 0 keeps the factor 1.
        first: Smallest code minus zero point, ``[channels]``.
        last: Largest code minus zero point, ``[channels]``.
        factors: float64 ``[channels]``, written.
    """
    lanes = np.empty(_LANES, dtype=np.float32)
    for channel in range(rows.shape[0]):
        factors[channel] = 1.0
        if steps[channel] < 1e-37:  # its inverse would leave float32
            continue
        values, step = rows[channel], steps[channel]
        best, best_error, spacing = 1.0, np.inf, 1.0 / _PER_OCTAVE
        for candidate in range(_COARSE):
            factor = 2.0 ** (-candidate * spacing)
            error = _squared_error(values, lanes, step * factor, first[channel], last[channel])
            if error < best_error:
                best, best_error = factor, error
        for _ in range(2):
            centre = best
            spacing /= _REFINE
            for offset in range(-_REFINE, _REFINE + 1):
                factor = min(centre * 2.0 ** (offset * spacing), 1.0)
                error = _squared_error(values, lanes, step * factor, first[channel], last[channel])
                if error < best_error:
                    best, best_error = factor, error
        factors[channel] = best
