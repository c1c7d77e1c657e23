"""Inputs that hold what the model has computed before: keys and values of a decoder.

In the first run such a cache is empty, so nothing is observed of it. What it holds later is what
the model appends to it.
"""

from __future__ import annotations

from collections.abc import Mapping

from intact.calibrate.statistics import Statistics, TensorStatistics
from intact.graph import Graph


def caches(graph: Graph) -> Mapping[str, str]:
    """Find the inputs that a Concat appends to, each with what the Concat gives, by name.

    Its size may be read besides. The axis along which it grows has no fixed size.
    """
    found = {}
    for value in graph.inputs:
        readers = [node for node, _ in value.uses() if node.op_type != "Shape"]
        is_open = value.shape is not None and any(not isinstance(n, int) for n in value.shape)
        if is_open and len(readers) == 1 and readers[0].op_type == "Concat":
            found[str(value.name)] = str(readers[0].outputs[0].name)
    return found


def fill_empty_caches(graph: Graph, statistics: Statistics) -> None:
    """Give caches that were empty in all samples the statistics of what is appended to them."""
    tensors = statistics.tensors
    for name, grown in caches(graph).items():
        if name in tensors and grown in tensors and not tensors[name].samples:
            tensors[name] = TensorStatistics()
            tensors[name].merge(tensors[grown])
