"""Rewriting float models before they are observed, without changing what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from intact.graph import Graph


def _equalize(graph: Graph) -> Graph:
    from intact.improve.rewrite.equalize import equalize

    return equalize(graph)


def _equalize_notes(graph: Graph) -> tuple[str, ...]:
    from intact.improve.rewrite.equalize import notes

    return notes(graph)


REWRITES: Mapping[str, Callable[[Graph], Graph]] = MappingProxyType({"equalize": _equalize})
"""By the name that users have for them. A rewrite returns another graph, of the same nodes, and
leaves its own alone. Each imports its module when it is run: plain quantizing needs none."""

NOTES: Mapping[str, Callable[[Graph], tuple[str, ...]]] = MappingProxyType(
    {"equalize": _equalize_notes}
)
"""Parts of a graph that each rewrite leaves alone unexpectedly."""
