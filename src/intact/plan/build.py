"""The passes that make a plan's structure, in their order."""

from __future__ import annotations

from intact.graph import Graph
from intact.plan.annotate import annotate
from intact.plan.fuse import fuse
from intact.plan.overrides import Overrides
from intact.plan.quantized_graph import QuantizedGraph
from intact.plan.tie import tie
from intact.plan.widths import width_notes
from intact.targets import Target


def build_plan(graph: Graph, target: Target, overrides: Overrides | None = None) -> QuantizedGraph:
    """Annotate, fuse and tie: everything that needs no statistics.

    Fusing comes before tying, because an end that is fused away has no scale to tie.

    Raises:
        UsageError: An override names nothing in the graph.
    """
    return structured(annotate(graph, target, overrides))


def structured(plan: QuantizedGraph) -> QuantizedGraph:
    """Fuse and tie a plan as `annotate` leaves it, and note widths without operators.

    All of this asks of widths only what their grids have in common (``same_grid``).
    """
    return tie(fuse(plan.with_notes(width_notes(plan))))
