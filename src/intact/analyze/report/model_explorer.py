"""Writes figures of nodes as Model Explorer's custom node data: a file a figure.

Source: ``GraphNodeData`` of the package ai-edge-model-explorer: values by node, and thresholds with
the colour of the values up to each. Keys are names of nodes, as the viewer's adapter for ONNX has
them, and names of their output tensors, by which it finds nodes of a ``.tflite``. The file names
no graph: it is for that which is open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from intact.analyze.layers import ModelErrors
from intact.analyze.report.tables import NodeFigures, node_figures
from intact.plan import QuantizedGraph

EXACT_DB = 200.0
"""Stands for infinite decibels, which JSON cannot hold."""
_FLOAT_BITS = 32

_Threshold = tuple[float, str, str]
_LEVELS: Sequence[_Threshold] = (
    (10, "#cf5546", "#ffffff"),
    (15, "#e8975a", "#1d2327"),
    (20, "#f2c882", "#1d2327"),
    (30, "#f5e5b8", "#1d2327"),
    (40, "#cfe0da", "#1d2327"),
    (EXACT_DB, "#e4ece9", "#1d2327"),
)
_WIDTHS: Sequence[_Threshold] = (
    (3, "#6a5fb0", "#ffffff"),
    (4, "#7f8fc9", "#ffffff"),
    (7, "#a5b8dc", "#1d2327"),
    (8, "#dde9f1", "#1d2327"),
    (16, "#c4d7e6", "#1d2327"),
    (_FLOAT_BITS, "#f2d9b8", "#1d2327"),
)


class Figure(msgspec.Struct, frozen=True):
    """A figure of nodes.

    Attributes:
        title: The title in the viewer.
        of: Returns the figure of a node; None where it has none.
        thresholds: The largest value of each band, with its colours of ground and text.
    """

    title: str
    of: Callable[[NodeFigures], float | None]
    thresholds: Sequence[_Threshold]


FIGURES: Mapping[str, Figure] = MappingProxyType(
    {
        "own": Figure("layer by itself, SQNR dB", lambda node: node.own_db, _LEVELS),
        "accumulated": Figure("accumulated, SQNR dB", lambda node: node.accumulated_db, _LEVELS),
        "alone": Figure("cost to the outputs, SQNR dB", lambda node: node.alone_db, _LEVELS),
        "weight_bits": Figure("bits of weights", lambda node: node.weight_bits, _WIDTHS),
        "activation_bits": Figure(
            "bits of activations",
            lambda node: node.activation_bits if node.computes == "integer" else _FLOAT_BITS,
            _WIDTHS,
        ),
    }
)
"""The figures by name, the first first."""


def node_data(plan: QuantizedGraph, errors: ModelErrors | None) -> dict[str, bytes]:
    """Write each figure that at least one node has.

    Args:
        plan: A plan with scales.
        errors: Its layers' errors; None where they were not measured.

    Returns:
        JSON by the name of the figure.
    """
    nodes = list(node_figures(plan, errors))
    found = {}
    for name, figure in FIGURES.items():
        results = _results(plan, nodes, figure)
        if results:
            found[name] = msgspec.json.encode(
                {
                    "name": figure.title,
                    "results": results,
                    "thresholds": [
                        {"value": value, "bgColor": ground, "textColor": text}
                        for value, ground, text in figure.thresholds
                    ],
                }
            )
    return found


def _results(
    plan: QuantizedGraph, nodes: Iterable[NodeFigures], figure: Figure
) -> dict[str, dict[str, Any]]:
    named: dict[str, dict[str, Any]] = {}
    tensors: dict[str, dict[str, Any]] = {}
    for node in nodes:
        value = figure.of(node)
        if value is None or math.isnan(value):
            continue
        result = {"value": _finite(value)}
        named[node.node] = result
        for output in plan.graph.node(node.node).outputs:
            tensors[str(output.name)] = result
    return {**tensors, **named}  # a name may be that of a node and of another's tensor


def _finite(value: float) -> float:
    return round(min(max(value, -EXACT_DB), EXACT_DB), 2)
