"""Graphs in the operators of targets."""

from __future__ import annotations

from collections.abc import Iterable

from intact.graph import Graph
from intact.targets import Target


def graphs_for(graph: Graph, targets: Iterable[Target]) -> list[Graph]:
    """Write a normalized graph in the operators of each target.

    What a target has only as several operators is expanded, and a composed Gelu becomes one where
    the target has that.

    Returns:
        One graph for each target. Targets with the same needs share it, and it is ``graph`` itself
        where nothing changes.

    Raises:
        ModelError: The model cannot be converted to the opset of Gelu.
    """
    made: dict[tuple[tuple[str, ...], bool], Graph] = {}
    found = []
    for target in targets:
        has_gelu = target.describes("Gelu")
        key = (tuple(sorted(target.expand)), has_gelu)
        if key not in made:
            made[key] = _prepared(graph, *key)
        found.append(made[key])
    return found


def _prepared(graph: Graph, expanded: tuple[str, ...], has_gelu: bool) -> Graph:
    present = {node.op_type for node in graph.nodes}
    if present & set(expanded):
        from intact.graph.passes.expand import expand

        graph = expand(graph, expanded)
    if has_gelu and "Erf" in present:
        from intact.graph.passes.join_gelu import join_gelu

        graph = join_gelu(graph)
    return graph
