"""Finds ranges of weights, whose values are all at hand: per tensor or per channel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intact.errors import CalibrationError, ConfigError, nearest
from intact.numerics.affine_params import params_from_range, range_from_params
from intact.numerics.levels import Levels, Scheme
from intact.numerics.native import Kernels
from intact.numerics.threshold_powers import nearest_power_of_two, reach
from intact.numerics.thresholds import METHODS, WEIGHT_METHODS

_KERNELS = Kernels(__name__)

_LANES = 64
"""Partial sums, a fixed number so that the result does not depend on the vector width."""
_OCTAVES = 4
"""How far below the maximum steps are tried."""
_PER_OCTAVE = 8
"""Coarse candidates in an octave."""
_REFINE = 4
"""A refinement puts 2 * 4 candidates between the neighbours of the best."""
_ROUNDS = 2
"""Refinements."""
_OF_ZEROS = 2.0**-24
"""The smallest number of half precision."""

Floats = npt.NDArray[np.float64]


def weight_range(
    values: npt.NDArray[np.float32],
    levels: Levels,
    method: str,
    axis: int | None,
    block: int | None = None,
) -> tuple[Floats, Floats]:
    """Return the range of a weight tensor, or of each of its channels or blocks.

    ``minmax`` holds every value. ``mse`` shrinks that range, both ends together, by the factor of
    least squared error on the values themselves (between 1 and 1/16). ``max_range`` and
    ``power2_range`` are those of activations (see ``threshold_powers``), each channel alone.
    Where scales are powers of two, a range is one of theirs: the smallest that holds it, or for
    ``mse`` that of least error.

    Args:
        values: float32 of any shape.
        levels: The codes and their scheme.
        method: One of ``WEIGHT_METHODS``.
        axis: The axis of channels or blocks, or None for one range.
        block: Neighbours along it that have a range together.

    Returns:
        ``(low, high)``, float64, ``[channels]``, 0-d, or of the shape of the scales of blocks,
        with ``low <= 0 <= high``. An empty channel has the range 0..0.

    Raises:
        CalibrationError: If the method is unknown or not defined for such codes, or a weight is
            not finite.
        ConfigError: If the tensor has no such axis.
    """
    if method not in WEIGHT_METHODS:
        raise CalibrationError(
            f"unknown method {method!r} for weights", remedy=nearest(method, WEIGHT_METHODS)
        )
    if not METHODS[method].fits(levels):
        kind = "asymmetric" if levels.steps_per_octave is None else "logarithmic"
        raise CalibrationError(
            f"{method} is not defined for {kind} weights", remedy="use minmax or mse"
        )
    rows, shape = _rows(values, axis, block)
    low = rows.min(axis=1, initial=0.0).astype(np.float64)
    high = rows.max(axis=1, initial=0.0).astype(np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise CalibrationError("a weight is not finite", remedy="check the model")
    if levels.scheme is Scheme.SYMMETRIC:
        high = np.maximum(-low, high)
        low = -high
    elif levels.scheme is Scheme.ONE_SIDED:
        low = np.zeros_like(low)
    if METHODS[method].beyond_codes:
        thresholds = high if method == "max_range" else _powers_of_two(high)
        high = thresholds * reach(levels)
        low = low if levels.scheme is Scheme.ONE_SIDED else -high
    if levels.power_of_two:
        low, high = _power_ranges(low, high, levels)
    if method == "mse" and rows.size and levels.steps_per_octave is not None:
        from intact.numerics.logarithmic import threshold_of_least_error

        # One-sided codes lose negative weights at any threshold: they count as zeros.
        sizes = np.abs(rows) if low.any() else np.maximum(rows, 0.0)
        high = threshold_of_least_error(sizes, None, levels.quant_max, levels.steps_per_octave)
        low = -high if low.any() else low
    elif method == "mse" and rows.size:
        factor = _best_factors(rows, levels, low, high)
        low, high = low * factor, high * factor
    low, high = low + 0.0, high + 0.0  # no negative zero
    return low.reshape(shape), high.reshape(shape)


def signed_scales(
    values: npt.NDArray[np.float32], levels: Levels, method: str, axis: int, block: int
) -> Floats:
    """Return scales of either sign for blocks without zero points: the lowest code is used too.

    The value of largest magnitude has the lowest code, of which there is no positive counterpart:
    codes of 4 bits reach to -8 on that side and to 7 on the other. ``mse`` shrinks that range by
    the factor of least squared error.

    Args:
        values: float32 of any shape, finite.
        levels: The codes, as -8..7.
        method: ``minmax`` or ``mse``.
        axis: Along which blocks lie.
        block: Neighbours in a block.

    Returns:
        Scales, float64, one for each block. Where all is 0 it is small: kernels that multiply codes
        without sign, and subtract what their middle gives, lose no digits of other blocks then.
    """
    rows, shape = _rows(values, axis, block)
    low = rows.min(axis=1, initial=0.0).astype(np.float64)
    high = rows.max(axis=1, initial=0.0).astype(np.float64)
    # A tie goes to the negative end, whose scale is the usual positive one.
    sign = np.where(high > -low, -1.0, 1.0)
    scales = np.maximum(-low, high) / -levels.quant_min
    if method == "mse" and rows.size:
        turned = rows * sign[:, None].astype(np.float32)
        # The rows are turned so that their largest value is negative: one loop serves both signs.
        first = np.full(scales.shape, float(levels.quant_min))
        last = np.full(scales.shape, float(levels.quant_max))
        factors = np.ones(scales.shape)
        lanes = np.empty(_LANES, np.float32)
        best_factors(turned, scales, first, last, factors, lanes, _PER_OCTAVE, _ROUNDS)
        scales = scales * factors
    return np.where(scales == 0, _OF_ZEROS, sign * scales).reshape(shape)


def _rows(
    values: npt.NDArray[np.float32], axis: int | None, block: int | None
) -> tuple[npt.NDArray[np.float32], tuple[int, ...]]:
    """Return what has a range of its own in a row each, and the shape of the ranges."""
    if block is None or axis is None:
        rows = _channel_rows(values, axis)
        return rows, () if axis is None else (rows.shape[0],)
    from intact.numerics.blocks import block_rows

    blocks = block_rows(np.asarray(values, np.float32), axis, block)
    return blocks.reshape(-1, block), blocks.shape[:-1]


def _powers_of_two(thresholds: Floats) -> Floats:
    return np.array([nearest_power_of_two(each) for each in thresholds.tolist()], np.float64)


def _power_ranges(low: Floats, high: Floats, levels: Levels) -> tuple[Floats, Floats]:
    """Return the ranges of the smallest powers of two whose codes hold these; 0..0 stays."""
    codes, symmetric = (levels.quant_min, levels.quant_max), levels.scheme is not Scheme.ASYMMETRIC
    params = params_from_range(low, high, *codes, symmetric=symmetric, power_of_two=True)
    lower, upper = range_from_params(params, *codes)
    if levels.scheme is Scheme.SYMMETRIC:
        upper = params.scale.astype(np.float64) * levels.steps
        lower = -upper
    is_wide, largest = low < high, float(np.finfo(np.float32).max)
    return (
        np.where(is_wide, np.maximum(lower, -largest), low),
        np.where(is_wide, np.minimum(upper, largest), high),
    )


def _channel_rows(values: npt.NDArray[np.float32], axis: int | None) -> npt.NDArray[np.float32]:
    """Return the values as a C-contiguous ``[channels, elements]`` array."""
    values = np.asarray(values, dtype=np.float32)
    if axis is None:
        return np.ascontiguousarray(values.reshape(1, -1))
    if not -values.ndim <= axis < values.ndim:
        raise ConfigError(
            f"axis {axis} of a tensor of shape {values.shape}", remedy="use an axis it has"
        )
    moved = np.moveaxis(values, axis, 0)
    elements = int(np.prod(moved.shape[1:], dtype=np.int64))
    return np.ascontiguousarray(moved.reshape(moved.shape[0], elements))


def _best_factors(
    rows: npt.NDArray[np.float32], levels: Levels, low: Floats, high: Floats
) -> Floats:
    step = (high - low) / levels.steps
    first = np.full(step.shape, float(levels.quant_min))
    last = np.full(step.shape, float(levels.quant_max))
    if levels.scheme is Scheme.SYMMETRIC:
        step = high / levels.steps
    elif levels.scheme is Scheme.ASYMMETRIC:
        # Both ends shrink together, so that the zero point is the same for all factors.
        ratio = np.divide(low, step, out=np.zeros_like(low), where=step > 0.0)
        zero_point = np.clip(np.rint(levels.quant_min - ratio), levels.quant_min, levels.quant_max)
        first, last = levels.quant_min - zero_point, levels.quant_max - zero_point
    factors = np.ones(step.shape)
    # Between powers of two there is nothing to try.
    spacing = (1, 0) if levels.power_of_two else (_PER_OCTAVE, _ROUNDS)
    best_factors(rows, step, first, last, factors, np.empty(_LANES, np.float32), *spacing)
    return factors


@_KERNELS.inner
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


@_KERNELS.inner
def _squared_error(
    values: npt.NDArray[np.float32],
    lanes: npt.NDArray[np.float32],
    step: float,
    first: float,
    last: float,
) -> float:
    """Return the squared error of one channel for codes ``first..last`` of the given step."""
    for lane in range(_LANES):
        lanes[lane] = 0.0
    inverse = np.float32(1.0 / step)
    for start in range(0, values.shape[0], _LANES):
        block = values[start : min(start + _LANES, values.shape[0])]
        _add_errors(block, lanes, inverse, np.float32(first), np.float32(last))
    error = 0.0
    for lane in range(_LANES):
        # float32 lanes are enough: errors of the same values are compared, and nothing else.
        error += np.float64(lanes[lane])
    return error * step * step


@_KERNELS.entry(
    "void(float32[:,:], float64[:], float64[:], float64[:], float64[:], float32[:], int64, int64)"
)
def best_factors(
    rows: npt.NDArray[np.float32],
    steps: npt.NDArray[np.float64],
    first: npt.NDArray[np.float64],
    last: npt.NDArray[np.float64],
    factors: npt.NDArray[np.float64],
    lanes: npt.NDArray[np.float32],
    per_octave: int,
    rounds: int,
) -> None:
    """Write the factor in 1/16..1 on each channel's step that gives the least squared error.

    Args:
        rows: float32 ``[channels, elements]``, finite.
        steps: Step of the full range of each channel; 0 keeps the factor 1.
        first: Smallest code minus zero point, ``[channels]``.
        last: Largest code minus zero point, ``[channels]``.
        factors: float64 ``[channels]``, written.
        lanes: float32 ``[64]``, scratch.
        per_octave: Coarse candidates in an octave.
        rounds: Refinements around the best of them.
    """
    for channel in range(rows.shape[0]):
        factors[channel] = 1.0
        if steps[channel] < 1e-37:  # its inverse would leave float32
            continue
        values, step = rows[channel], steps[channel]
        best, best_error, spacing = 1.0, np.inf, 1.0 / per_octave
        for candidate in range(_OCTAVES * per_octave + 1):
            # From the full range down: of equal errors the one that clips least is kept.
            factor = 2.0 ** (-candidate * spacing)
            error = _squared_error(values, lanes, step * factor, first[channel], last[channel])
            if error < best_error:
                best, best_error = factor, error
        for _ in range(rounds):
            centre = best
            spacing /= _REFINE
            for offset in range(-_REFINE, _REFINE + 1):
                factor = min(centre * 2.0 ** (offset * spacing), 1.0)
                error = _squared_error(values, lanes, step * factor, first[channel], last[channel])
                if error < best_error:
                    best, best_error = factor, error
        factors[channel] = best
