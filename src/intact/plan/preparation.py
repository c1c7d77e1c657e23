"""Writes normalized graphs in the operators that targets have."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from intact.graph import Graph
from intact.ops import functions
from intact.ops.operators import Clip, If, LayerNormalization, Loop, Softmax, types_of
from intact.targets import Target

_MARKERS = {
    Softmax.name: types_of(functions.exp),
    functions.hard_swish.name: types_of(Clip, functions.hard_sigmoid),
    LayerNormalization.name: types_of(functions.sqrt),
    functions.gelu.name: types_of(functions.erf, functions.tanh),
}
"""Composite operator to operators of which each way of writing it out has at least one: a test that
costs little, before patterns are matched. In the order of the opsets that they need.
"""

_WITH_BODIES = types_of(If, Loop)
"""Operators that hold others."""


def graphs_for(graph: Graph, targets: Iterable[Target], apart: Collection[str] = ()) -> list[Graph]:
    """Write a normalized graph in the operators of each target.

    What a target has only as several operators is expanded, and what exporters write out as several
    becomes one where the target's rules name that: its results then differ by float rounding.
    Keys are rotated apart from attention where caches are to hold codes.

    Args:
        graph: Normalized.
        targets: The targets.
        apart: Operator types that a user expands, and that are not joined then.

    Returns:
        One graph for each target. Targets with the same needs share it, and it is ``graph`` itself
        where nothing changes.
    """
    made: dict[tuple[tuple[str, ...], tuple[str, ...], bool], Graph] = {}
    found = []
    for target in targets:
        joined = tuple(name for name in _MARKERS if target.names(name) and name not in apart)
        keeps = target.cache is not None and target.cache.scheme is not None
        key = (joined, tuple(sorted(target.expand)), keeps)
        if key not in made:
            made[key] = _prepare(graph, *key)
        found.append(made[key])
    return found


def _prepare(
    graph: Graph, joined: tuple[str, ...], expanded: tuple[str, ...], keeps_codes: bool
) -> Graph:
    if bodies := set(expanded) & _WITH_BODIES:
        from intact.graph.passes.expand import expand

        # Before all else: what bodies compute is joined and expanded too.
        graph = expand(graph, bodies)
    present = {node.op_type for node in graph.nodes}
    for name in joined:
        if present & _MARKERS[name]:
            from intact.graph.passes.joins import JOINS, join

            graph = join(graph, JOINS[name])
    if present & set(expanded):
        from intact.graph.passes.expand import expand

        graph = expand(graph, expanded)
    if keeps_codes:
        from intact.graph.passes.expand_places import rotate_apart

        graph = rotate_apart(graph)
    return graph
