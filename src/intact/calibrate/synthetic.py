"""Inputs drawn from what calibration saw, for checks that need no real data."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intact.calibrate.statistics import Statistics
from intact.errors import DataError
from intact.graph import Graph
from intact.numerics.distribution import Distribution
from intact.samples.signature import input_specs
from intact.samples.stream import Samples, open_samples

_SEED = 20240229


def synthetic_samples(graph: Graph, statistics: Statistics, count: int) -> Samples:
    """Draw each element of each input independently from its recorded distribution.

    The marginal distribution is that of the calibration data, so every layer sees plausible
    numbers; the images are noise. Always the same for the same statistics.

    Raises:
        DataError: An input was not observed, or has a free dimension besides the batch.
    """
    generator = np.random.default_rng(_SEED)
    arrays = {}
    for name, spec in input_specs(graph).items():
        sizes = [size for size in spec.shape[1:] if size is not None]
        if name not in statistics.tensors or len(sizes) < len(spec.shape) - 1:
            raise DataError(
                f"inputs like {name!r} cannot be drawn from the statistics",
                remedy="give samples with --data",
            )
        distribution = statistics[name].distribution()
        values = _draw(distribution, (count, *sizes), generator)
        if spec.dtype.kind != "f":
            values = np.clip(np.rint(values), distribution.minimum, distribution.maximum)
        arrays[name] = values.astype(spec.dtype)
    return open_samples(arrays, graph)


def _draw(
    distribution: Distribution, shape: tuple[int, ...], generator: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Return float32 values of a distribution: a bin by its count, then evenly inside it."""
    ends = np.cumsum(distribution.count)
    bins = np.searchsorted(ends, generator.integers(0, ends[-1], shape), side="right")
    low, high = distribution.low[bins], distribution.high[bins]
    return (low + (high - low) * generator.random(shape)).astype(np.float32)
