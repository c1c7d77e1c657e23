"""Inputs that hold what the model has computed before: keys and values of a decoder.

In the first run such a cache is empty, so nothing is observed of it. What it holds later is what
the model appends to it.
"""

from __future__ import annotations

from intact.calibrate.statistics import Statistics, TensorStatistics
from intact.graph import Graph
from intact.graph.caches import growing_inputs


def fill_empty_caches(graph: Graph, statistics: Statistics) -> None:
    """Give caches that were empty in all samples the statistics of what is appended to them."""
    tensors = statistics.tensors
    for name, grown in growing_inputs(graph).items():
        if name in tensors and grown in tensors and not tensors[name].samples:
            tensors[name] = TensorStatistics()
            tensors[name].merge(tensors[grown])
