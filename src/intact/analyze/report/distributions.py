"""Reduces distributions to the figures that a report draws.

An activation becomes a histogram of 64 bins with its range and share of clipped values, a weight
the ranges of its channels before and after quantization.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from intact.analyze.report import network_figures
from intact.calibrate.statistics import Statistics, TensorStatistics
from intact.graph import Graph
from intact.plan import QuantPoint

MOST_CHANNELS = 256
"""Entries of one layer's channels; more channels are shown as groups of neighbours."""
_BINS = 64
_UNITS = 1000
"""Integers that the largest magnitude of a weight is shown as."""
_MOST_BIN_VALUES = 1_000_000
_EXACT_DB = 999

Floats = npt.NDArray[np.float64]


def tensors_of(
    graph: Graph, points: Sequence[QuantPoint], statistics: Statistics | None
) -> Iterator[network_figures.Tensor]:
    """Yield each activation that is quantized or was observed."""
    observed = {} if statistics is None else statistics.tensors
    ranges: dict[str, tuple[float, float]] = {}
    for point in points:
        if not point.is_constant and point.config.params is not None:
            # The first point is where the tensor is made; its readers may quantize it otherwise.
            ranges.setdefault(str(point.value.name), point.config.value_range())
    names = [str(value.name) for value in graph.inputs]
    names += [str(value.name) for node in graph.nodes for value in node.outputs]
    for name in names:
        found, ends = observed.get(name), ranges.get(name)
        histogram = None if found is None else histogram_of(found)
        if ends is None and histogram is None:
            continue
        if ends is None:
            yield network_figures.Tensor(name, histogram=histogram)
            continue
        clipped = None if found is None or histogram is None else clipped_share(found, *ends)
        yield network_figures.Tensor(name, rounded(ends[0]), rounded(ends[1]), clipped, histogram)


def histogram_of(tensor: TensorStatistics) -> network_figures.Histogram | None:
    """Return the observed values in equal bins; None where there are none."""
    # Also where nothing was observed: both are infinite then, in the wrong order.
    if not tensor.minimum <= tensor.maximum:
        return None
    values = tensor.distribution()
    low, high = values.minimum, values.maximum
    if low == high:
        bins = np.array([float(values.total)])
    else:
        edges = np.linspace(low, high, _BINS + 1)
        bins = np.diff(_below(values.low, values.high, values.count, edges))
    counts = np.rint(bins * (_MOST_BIN_VALUES / max(values.total, 1))).astype(np.int64)
    counts[(bins >= 0.5) & (counts == 0)] = 1  # a few values of many are shown
    variance = max(0.0, values.mean_square - values.mean**2)
    return network_figures.Histogram(
        rounded(low),
        rounded(high),
        tuple(counts.tolist()),
        values.total,
        rounded(values.mean),
        rounded(math.sqrt(variance)),
        rounded(values.zeros / max(values.total, 1)),
    )


def clipped_share(tensor: TensorStatistics, low: float, high: float) -> float:
    """Return the part of the observed values outside a range."""
    values = tensor.distribution()
    outside = values.total - values.mass_between(low, high)
    return rounded(min(1.0, max(0.0, outside / max(values.total, 1))))


def _below(low: Floats, high: Floats, count: npt.NDArray[np.int64], edges: Floats) -> Floats:
    """Count the values below each edge; points count from their place on, the last edge has all."""
    wide = high > low
    knots = np.column_stack([low[wide], high[wide]]).ravel()
    total = np.zeros(len(edges))
    if knots.size:
        after = np.cumsum(count[wide]).astype(np.float64)
        steps = np.column_stack([after - count[wide], after]).ravel()
        total += np.interp(edges, knots, steps, left=0.0)
    # Bins without a width (zeros, ends) would be divided by 0 in the interpolation.
    at, held = low[~wide], np.concatenate([[0], np.cumsum(count[~wide])])
    total += held[np.searchsorted(at, edges, side="left")]
    # The sums of the interpolation are rounded: the last edge is above all values by definition.
    total[-1] = float(count.sum())
    return total


def channels_of(
    values: npt.NDArray[np.float32],
    quantized: npt.NDArray[np.float32],
    axis: int | None,
    most: int = MOST_CHANNELS,
) -> network_figures.Channels | None:
    """Compare a weight by channel before and after quantization.

    Args:
        values: The weight, any shape.
        quantized: The same, quantized and dequantized.
        axis: The channel axis; None takes the whole weight as one channel.
        most: Entries at most.

    Returns:
        The figures; None for a weight without elements.
    """
    if not values.size:
        return None
    before, after = (_by_channel(each, axis) for each in (values, quantized))
    noise = np.square(before - after).sum(axis=1)
    signal = np.square(before).sum(axis=1)
    # A channel that is exact has no noise, a dead one no signal either.
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = 10 * np.log10(signal / noise)
    ratio = np.where(noise == 0, np.inf, ratio)
    starts = groups_of(len(before), most)
    ends = (before.min(axis=1), before.max(axis=1), after.min(axis=1), after.max(axis=1))
    joins = (np.minimum, np.maximum, np.minimum, np.maximum)
    grouped = [join.reduceat(each, starts) for join, each in zip(joins, ends, strict=True)]
    largest = max(float(np.abs(each).max()) for each in grouped)
    unit = rounded(largest / _UNITS) if largest > 0 and math.isfinite(largest) else 1.0
    low, high, quantized_low, quantized_high = (
        tuple(np.rint(np.nan_to_num(each) / unit).astype(int).tolist()) for each in grouped
    )
    worst = np.nan_to_num(np.minimum.reduceat(ratio, starts), nan=0.0, posinf=_EXACT_DB, neginf=0)
    decibels_of = tuple(None if each == _EXACT_DB else round(each) for each in worst.tolist())
    return network_figures.Channels(
        len(before), unit, low, high, quantized_low, quantized_high, decibels_of
    )


def _by_channel(values: npt.NDArray[np.float32], axis: int | None) -> Floats:
    wide = values.astype(np.float64)
    return (
        wide.reshape(1, -1)
        if axis is None
        else np.moveaxis(wide, axis, 0).reshape(wide.shape[axis], -1)
    )


def groups_of(count: int, most: int) -> npt.NDArray[np.intp]:
    """Return where groups of neighbours begin, at most so many."""
    size = -(-count // most)
    return np.arange(0, count, size, dtype=np.intp)


def rounded(value: float) -> float:
    """Round to four digits, which is what is shown."""
    return float(f"{value:.4g}")
