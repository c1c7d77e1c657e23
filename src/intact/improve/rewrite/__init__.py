"""Rewriting float models before they are observed, without changing what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from intact.graph import Graph
from intact.improve.rewrite.equalize import equalize, notes

__all__ = ["NOTES", "REWRITES", "equalize"]

REWRITES: Mapping[str, Callable[[Graph], Graph]] = MappingProxyType({"equalize": equalize})
"""By the name that users have for them. A rewrite returns another graph, of the same nodes, and
leaves its own alone."""

NOTES: Mapping[str, Callable[[Graph], tuple[str, ...]]] = MappingProxyType({"equalize": notes})
"""Parts of a graph that each rewrite leaves alone unexpectedly."""
