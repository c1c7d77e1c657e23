"""Inputs drawn from what calibration saw, for checks that need no real data."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intact.calibrate.samples import Samples, open_samples
from intact.calibrate.statistics import Statistics
from intact.errors import DataError
from intact.graph import Graph
from intact.numerics.distribution import Distribution

_SEED = 20240229


def synthetic_samples(graph: Graph, statistics: Statistics, count: int) -> Samples:
    """Draw each element of each input independently from its recorded distribution.

    The marginal distribution is that of the calibration data, so every layer sees plausible
    numbers; the images are noise. Always the same for the same statistics.

    Raises:
        DataError: An input was not observed, is not float or has a free dimension besides the
            batch.
    """
    generator = np.random.default_rng(_SEED)
    arrays = {}
    for value in graph.inputs:
        name = str(value.name)
        sizes = [dim if isinstance(dim, int) else None for dim in (value.shape or ())][1:]
        if name not in statistics.tensors or None in sizes:
            raise DataError(
                f"inputs like {name!r} cannot be drawn from the statistics",
                remedy="give samples with --data",
            )
        shape = (count, *(dim or 1 for dim in sizes))
        arrays[name] = _draw(statistics[name].distribution(), shape, generator)
    return open_samples(arrays, graph)


def _draw(
    distribution: Distribution, shape: tuple[int, ...], generator: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Return float32 values of a distribution: a bin by its count, then evenly inside it."""
    ends = np.cumsum(distribution.count)
    bins = np.searchsorted(ends, generator.integers(0, ends[-1], shape), side="right")
    low, high = distribution.low[bins], distribution.high[bins]
    return (low + (high - low) * generator.random(shape)).astype(np.float32)
