"""Inputs drawn from what calibration saw, for checks that need no real data."""

from __future__ import annotations

import numpy as np

from intact.calibrate.samples import Samples, open_samples
from intact.calibrate.statistics import Statistics
from intact.errors import DataError
from intact.graph import Graph

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
        shape = [dim if isinstance(dim, int) else None for dim in (value.shape or ())][1:]
        if name not in statistics.tensors or None in shape:
            raise DataError(
                f"inputs like {name!r} cannot be drawn from the statistics", remedy="give samples with --data"
            )
        quantiles = generator.random((count, *(dim or 1 for dim in shape)))
        arrays[name] = statistics[name].distribution().quantile(quantiles).astype(np.float32)
    return open_samples(arrays, graph)
