"""Finds the range of least expected squared error, from the histogram in closed form.

Over a bin ``a..b`` of evenly spread mass, the expected squared error of codes of step 1 is
``(E(b) - E(a)) / (b - a)`` with ``E(u) = k/12 + (u - k)^3 / 3`` and ``k`` the nearest code to
``u``: the antiderivative of ``(u - k)^2``, continuous across codes and beyond the last one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intact.numerics.distribution import Distribution
from intact.numerics.levels import STEPS_PER_OCTAVE, Levels, Scheme
from intact.numerics.native import Kernels

_KERNELS = Kernels(__name__)

_COARSE = 65
"""Coarse candidates: 16 octaves below the maximum."""
_COARSE_SPACING = 0.25
"""Octaves between two coarse candidates."""
_REFINE = 8
"""A refinement puts 2 * 8 candidates between the neighbours of the best."""
_ROUNDS = 4
"""Rounds of alternating ends; the last is spaced by 1/256 octave."""

Floats = npt.NDArray[np.float64]


def mse_range(distribution: Distribution, levels: Levels) -> tuple[float, float]:
    """Return the range whose codes lose least, rounding and clipping together.

    The error of a candidate is the integral of the squared distance to the nearest code over each
    bin, which is a piecewise cubic (see the module). Thresholds are searched on a grid over 16
    octaves that is refined twice around the best; for an asymmetric scheme both ends shrink
    together first, then each in turn, the zero point rounded as deployed.
    """
    low, high = distribution.low, distribution.high
    count = distribution.count.astype(np.float64)
    moments = np.empty((3, count.size + 1))
    if levels.scheme is Scheme.ASYMMETRIC:
        ends = np.empty(2, dtype=np.float64)
        search_range(low, high, count, moments, levels.quant_min, levels.quant_max, ends)
        return float(ends[0]), float(ends[1])
    # One-sided codes cannot hold negative values: no threshold changes what they lose.
    largest = distribution.maximum
    if levels.scheme is Scheme.SYMMETRIC:
        largest = max(-distribution.minimum, largest)
    if largest <= 0.0:
        return 0.0, 0.0
    if levels.steps_per_octave is not None:
        return levels.range_of_threshold(_logarithmic_threshold(distribution, levels))
    codes = (levels.quant_min, levels.quant_max, levels.steps)
    threshold = search_threshold(low, high, count, moments, *codes, largest)
    return levels.range_of_threshold(float(threshold))


def mse_loss(distribution: Distribution, levels: Levels, ends: tuple[float, float]) -> float:
    """Return the summed squared error of a range that ends at codes, of equally spaced levels."""
    low, high = ends
    first, last = float(levels.quant_min), float(levels.quant_max)
    step = high / levels.steps
    if levels.scheme is Scheme.ASYMMETRIC:
        step = (high - low) / levels.steps
        first, last = float(np.rint(low / step)), float(np.rint(high / step))
    count = distribution.count.astype(np.float64)
    moments = np.empty((3, count.size + 1))
    bins = distribution.low, distribution.high
    return float(summed_error(*bins, count, moments, step, first, last))


def _logarithmic_threshold(distribution: Distribution, levels: Levels) -> float:
    """Return the largest of the logarithmic levels that lose least, the bins taken as points."""
    from intact.numerics.logarithmic import threshold_of_least_error

    is_symmetric = levels.scheme is Scheme.SYMMETRIC
    bins = distribution.absolute() if is_symmetric else distribution.positive()
    middle = 0.5 * bins.low + 0.5 * bins.high
    steps = levels.steps_per_octave or STEPS_PER_OCTAVE
    best = threshold_of_least_error(middle[None, :], bins.count, levels.quant_max, steps)
    return float(best[0])


@_KERNELS.inner
def _write_moments(low: Floats, high: Floats, count: Floats, sums: Floats) -> None:
    """Write the sums of 1, x and x^2 over all bins before each, ``[3, n + 1]``."""
    for moment in range(3):
        sums[moment, 0] = 0.0
    for index in range(low.shape[0]):
        a, b = low[index], high[index]
        sums[0, index + 1] = sums[0, index] + count[index]
        sums[1, index + 1] = sums[1, index] + count[index] * (0.5 * a + 0.5 * b)
        # The mean of x^2 over an interval, not the square of its middle.
        sums[2, index + 1] = sums[2, index] + count[index] * ((a * a + a * b + b * b) / 3.0)


@_KERNELS.inner
def _divide_by_width(low: Floats, high: Floats, count: Floats) -> None:
    """Turn each bin's count into its density, in place; a point keeps its count."""
    for index in range(low.shape[0]):
        width = high[index] - low[index]
        if width > 0.0:
            count[index] /= width


@_KERNELS.inner
def _first_from(values: Floats, least: float) -> int:
    """Find the first of some ascending values that is not below ``least``."""
    start, stop = 0, values.shape[0]
    while start < stop:
        middle = (start + stop) // 2
        if values[middle] < least:
            start = middle + 1
        else:
            stop = middle
    return start


@_KERNELS.inner
def _first_above(values: Floats, most: float) -> int:
    """Find the first of some ascending values that is above ``most``."""
    start, stop = 0, values.shape[0]
    while start < stop:
        middle = (start + stop) // 2
        if values[middle] <= most:
            start = middle + 1
        else:
            stop = middle
    return start


@_KERNELS.inner
def _squares_about(moments: Floats, start: int, stop: int, centre: float) -> float:
    """Return the sum of ``(x - centre)^2`` over the bins ``start..stop - 1``."""
    if stop <= start:
        return 0.0
    mass = moments[0, stop] - moments[0, start]
    first = moments[1, stop] - moments[1, start]
    second = moments[2, stop] - moments[2, start]
    # A difference of sums over all bins before: its rounding error may exceed the result.
    return float(max(second - 2.0 * centre * first + centre * centre * mass, 0.0))


@_KERNELS.inner
def _antiderivative(position: float, first: float, last: float) -> float:
    """Return ``E`` of the module's docstring."""
    code = min(max(np.rint(position), first), last)
    distance = position - code
    return float(distance * distance * distance / 3.0 + code / 12.0)


@_KERNELS.inner
def _rounding_error(
    low: Floats,
    high: Floats,
    density: Floats,
    start: int,
    stop: int,
    step: float,
    first: float,
    last: float,
) -> float:
    """Return the squared error over the bins ``start..stop - 1``."""
    # A product for each bin in place of a division, which takes several times as long.
    inverse = 1.0 / step
    wide, points = 0.0, 0.0
    end, at_end = np.nan, 0.0
    for index in range(start, stop):
        a, b = low[index] * inverse, high[index] * inverse
        if b > a:
            # Neighbouring bins share an edge: half of the work.
            at_a = at_end if a == end else _antiderivative(a, first, last)
            end, at_end = b, _antiderivative(b, first, last)
            wide += density[index] * (at_end - at_a)
        else:
            points += density[index] * (a - min(max(np.rint(a), first), last)) ** 2
    return (wide * step + points) * step * step


@_KERNELS.inner
def _expected_error(
    low: Floats,
    high: Floats,
    density: Floats,
    moments: Floats,
    step: float,
    first: float,
    last: float,
    bound: float,
) -> float:
    """Return the summed squared error of the codes ``first..last`` (zero point 0), or infinity.

    Bins wholly nearest to code 0 or clipped are summed by their moments; only those between cost
    time. Infinity is returned as soon as the error is known to exceed ``bound``.
    """
    number = low.shape[0]
    # below <= inner_start <= inner_stop <= above split the bins into clipped, rounded, at code 0,
    # rounded, clipped.
    # The bins are in ascending order: each border is found by halving.
    below = _first_above(high, (first + 0.5) * step)
    inner_start = _first_from(low, max(-0.5, first - 0.5) * step)
    inner_stop = _first_above(high, 0.5 * step)
    above = _first_from(low, (last - 0.5) * step)
    if first == 0.0:  # everything negative is at code 0
        below, inner_start = 0, 0
    if last == 0.0:
        above, inner_stop = number, number
    inner_stop = max(inner_start, inner_stop)
    below = min(below, inner_start)
    above = max(above, inner_stop)
    error = (
        _squares_about(moments, 0, below, first * step)
        + _squares_about(moments, inner_start, inner_stop, 0.0)
        + _squares_about(moments, above, number, last * step)
    )
    if error > bound:
        return np.inf
    error += _rounding_error(low, high, density, below, inner_start, step, first, last)
    if error > bound:
        return np.inf
    error += _rounding_error(low, high, density, inner_stop, above, step, first, last)
    return error


@_KERNELS.entry(
    "float64(float64[:], float64[:], float64[:], float64[:,:], int64, int64, int64, float64)"
)
def search_threshold(
    low: Floats,
    high: Floats,
    count: Floats,
    moments: Floats,
    quant_min: int,
    quant_max: int,
    steps: int,
    largest: float,
) -> float:
    """Return the threshold of least error for codes with zero point 0.

    Args:
        low: Lower ends of the bins, float64 ``[n]``, ascending.
        high: Upper ends.
        count: Values in each bin; overwritten.
        moments: float64 ``[3, n + 1]``, scratch.
        quant_min: Smallest code.
        quant_max: Largest code.
        steps: Steps from 0 to the threshold.
        largest: Largest candidate, above 0.
    """
    _write_moments(low, high, count, moments)
    _divide_by_width(low, high, count)
    first, last = float(quant_min), float(quant_max)
    best, best_error, spacing = largest, np.inf, _COARSE_SPACING
    # One loop over all stages: every place that calls the error function compiles it again.
    for stage in range(3):
        centre = largest if stage == 0 else best
        # From the widest down: the first of equals is kept, and a good bound is found early.
        highest = 0 if stage == 0 else _REFINE
        for index in range(_COARSE if stage == 0 else 2 * _REFINE + 1):
            offset = highest - index
            threshold = min(centre * 2.0 ** (offset * spacing), largest)
            error = _expected_error(
                low, high, count, moments, threshold / steps, first, last, best_error
            )
            if error < best_error:
                best, best_error = threshold, error
        # Stage 1 and 2 lie between the neighbours of the best so far.
        spacing /= _REFINE
    return best


@_KERNELS.entry(
    "float64(float64[:], float64[:], float64[:], float64[:,:], float64, float64, float64)"
)
def summed_error(
    low: Floats,
    high: Floats,
    count: Floats,
    moments: Floats,
    step: float,
    first: float,
    last: float,
) -> float:
    """Return the squared error of the codes ``first..last``, counted from the zero point.

    Args:
        low: Lower ends of the bins, float64 ``[n]``, ascending.
        high: Upper ends.
        count: Values in each bin; overwritten.
        moments: float64 ``[3, n + 1]``, scratch.
        step: Distance of two codes.
        first: Smallest code minus zero point.
        last: Largest code minus zero point.
    """
    _write_moments(low, high, count, moments)
    _divide_by_width(low, high, count)
    return float(_expected_error(low, high, count, moments, step, first, last, np.inf))


@_KERNELS.inner
def _range_error(
    low: Floats,
    high: Floats,
    density: Floats,
    moments: Floats,
    quant_min: int,
    quant_max: int,
    start: float,
    stop: float,
    bound: float,
) -> float:
    """Return the error of the range ``start..stop`` with the zero point it will be given."""
    step = (stop - start) / (quant_max - quant_min)
    if not step > 0.0:
        return np.inf
    # Rounded as params_from_range rounds it: the error is that of the codes which the range gets.
    zero_point = min(max(np.rint(quant_min - start / step), float(quant_min)), float(quant_max))
    return float(
        _expected_error(
            low, high, density, moments, step, quant_min - zero_point, quant_max - zero_point, bound
        )
    )


@_KERNELS.entry("void(float64[:], float64[:], float64[:], float64[:,:], int64, int64, float64[:])")
def search_range(
    low: Floats,
    high: Floats,
    count: Floats,
    moments: Floats,
    quant_min: int,
    quant_max: int,
    ends: Floats,
) -> None:
    """Write the range around 0 of least error for codes with a zero point.

    Args:
        low: Lower ends of the bins, float64 ``[n]``, ascending.
        high: Upper ends.
        count: Values in each bin; overwritten.
        moments: float64 ``[3, n + 1]``, scratch.
        quant_min: Smallest code.
        quant_max: Largest code.
        ends: float64 ``[2]``; the lower and the upper end are written.
    """
    _write_moments(low, high, count, moments)
    _divide_by_width(low, high, count)
    lowest, highest = min(low[0], 0.0), max(high[-1], 0.0)
    start, stop, best, spacing = lowest, highest, np.inf, _COARSE_SPACING
    # Stage 0 moves both ends together; then each in turn, over 4 octaves first, then ever finer.
    for stage in range(1 + 2 * _ROUNDS):
        centre_start, centre_stop = start, stop
        if stage > 1 and stage % 2 == 1:  # both ends have been tried
            spacing /= 4.0
        highest_offset = 0 if stage == 0 else _REFINE
        for index in range(_COARSE if stage == 0 else 2 * _REFINE + 2):
            factor = 2.0 ** ((highest_offset - index) * spacing)
            if stage > 0 and index == 2 * _REFINE + 1:
                factor = 0.0  # give this side up
            new_start = centre_start if stage % 2 == 1 else max(centre_start * factor, lowest)
            new_stop = centre_stop if stage > 0 and stage % 2 == 0 else centre_stop * factor
            new_stop = min(new_stop, highest)
            error = _range_error(low, high, count, moments, quant_min, quant_max,
                                 new_start, new_stop, best)  # fmt: skip
            if error < best:
                start, stop, best = new_start, new_stop, error
    ends[0], ends[1] = start, stop
