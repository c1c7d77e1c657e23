"""The plan that a Tengine file describes."""

from __future__ import annotations

from pathlib import Path

from intact.calibrate.assign import Method, assign
from intact.formats.tengine.tmfile.read import read_int8
from intact.graph import normalize
from intact.plan import QuantizedGraph, build_plan
from intact.targets import Target


def plan_of_file(source: str | Path | bytes, target: Target) -> QuantizedGraph:
    """Return the plan of a quantized file, with its scales and its integers.

    Args:
        source: A path, or the content.
        target: What computes it.

    Raises:
        ModelError: The file is damaged, not quantized, or holds what cannot be read.
        CalibrationError: It gives no scale for a tensor that the target quantizes.
    """
    read = read_int8(source)
    graph = normalize(read.model)
    return assign(build_plan(graph, target), None, Method.of(target), read.scales)
