"""Computes where the nodes of a graph are drawn: in layers, from top to bottom.

Positions are computed when the report is written, by fast-sugiyama (Rust): a page that opens has
nothing to compute, and compared graphs can be given one layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from intact._extras import missing

NODE_WIDTH, NODE_HEIGHT = 156, 40
"""Pixels of a node."""
_COLUMN, _LAYER = 180, 62
"""Pixels from a node to its neighbour, and from a layer to the next."""
_UNIT = 100
"""The same in what the package computes."""
_MOST_EDGES = 5000
"""Edges up to which graphs are laid out well: the time grows faster (4 s with so many)."""


_Place: TypeAlias = tuple[float, float]


class Layout(NamedTuple):
    """Positions in pixels, none negative.

    Attributes:
        width: The whole drawing's width.
        height: The whole drawing's height.
        nodes: Centre of each node, (x, y).
        bends: Points between the ends of each edge, x and y in turn.
    """

    width: int
    height: int
    nodes: list[tuple[int, int]]
    bends: list[tuple[int, ...]]


def require_layout() -> None:
    """Check that the package that lays out graphs is there.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import fast_sugiyama  # noqa: F401
    except ImportError as error:
        raise missing("a report", ["fast-sugiyama"], "report") from error


def layered(count: int, edges: Sequence[tuple[int, int]]) -> Layout:
    """Lay out an acyclic graph.

    Args:
        count: Number of nodes; node ``i`` is no successor of a later one.
        edges: Pairs of nodes, the earlier first, each once.

    Returns:
        The layout; bends are in the order of ``edges``.

    Raises:
        MissingExtraError: The package is not installed.
    """
    require_layout()
    if len(edges) > _MOST_EDGES:
        return _plain(count, edges)
    return _sugiyama(count, edges)


def _sugiyama(count: int, edges: Sequence[tuple[int, int]]) -> Layout:
    from fast_sugiyama import from_edges

    # Nodes are numbered without gaps: numbers from there on are of bends.
    joined = sorted({node for edge in edges for node in edge})
    number = {node: index for index, node in enumerate(joined)}
    numbered = [(number[source], number[reader]) for source, reader in edges]
    parts = from_edges(numbered, vertex_spacing=_UNIT, dummy_size=0.3) if edges else []
    places: dict[int, _Place] = {}
    bends: dict[tuple[int, int], tuple[int, ...]] = {}
    right = 0.0
    # Parts come in an order that is not told: sorted, equal graphs are drawn alike.
    for positions, width, _, routes in sorted(parts, key=_first):
        top = max(y for _, (_, y) in positions)
        left = min(x for _, (x, _) in positions)
        own = {int(index): (right + x - left, top - y) for index, (x, y) in positions}
        places |= {joined[index]: place for index, place in own.items() if index < len(joined)}
        follows = [(int(source), int(reader)) for source, reader in routes or ()]
        for (source, reader), points in _routes(own, follows, len(joined)).items():
            bends[joined[source], joined[reader]] = points
        right += width + _UNIT
    for node in range(count):
        if node not in places:  # it has no edge
            places[node] = (right, 0.0)
            right += _UNIT
    return _in_pixels(count, places, [bends.get(edge, ()) for edge in edges])


def _first(part: Any) -> int:
    """Return the first node of a part: parts stand in the order of the model."""
    return min(int(index) for index, _ in part[0])


def _in_pixels(count: int, places: dict[int, _Place], bends: Sequence[tuple[int, ...]]) -> Layout:
    nodes = [_pixels(*places[node]) for node in range(count)]
    # Bends may lie further out than any node.
    xs = [x for x, _ in nodes] + [x for each in bends for x in each[::2]]
    left = min(xs, default=0) - NODE_WIDTH
    moved = [(x - left, y + NODE_HEIGHT) for x, y in nodes]
    curves = [
        tuple(value + (NODE_HEIGHT if index % 2 else -left) for index, value in enumerate(each))
        for each in bends
    ]
    width = max(xs, default=0) - left + NODE_WIDTH
    height = max((y for _, y in moved), default=0) + NODE_HEIGHT
    return Layout(width, height, moved, curves)


def _pixels(x: float, y: float) -> tuple[int, int]:
    return round(x * _COLUMN / _UNIT), round(y * _LAYER / _UNIT)


def _routes(
    places: dict[int, _Place], routes: Sequence[tuple[int, int]], count: int
) -> dict[tuple[int, int], tuple[int, ...]]:
    """Follow each edge through the dummies that stand for it in the layers between."""
    following = {source: reader for source, reader in routes if source >= count}
    found = {}
    for source, first in routes:
        if source >= count:
            continue
        points: list[int] = []
        at = first
        while at >= count:
            points += _pixels(*places[at])
            at = following[at]
        found[source, at] = tuple(points)
    return found


def _plain(count: int, edges: Sequence[tuple[int, int]]) -> Layout:
    """Lay out a graph that is too large: each node in the layer below its lowest predecessor.

    In its layer it is below its first predecessor, or right of what is there already.
    """
    layers, columns = [0] * count, [0] * count
    first: dict[int, int] = {}
    # Nodes are numbered in topological order: sorted by readers, a source has its layer before it
    # is read.
    for source, reader in sorted(edges, key=lambda edge: edge[1]):
        layers[reader] = max(layers[reader], layers[source] + 1)
        first.setdefault(reader, source)
    free: dict[int, int] = {}
    for node in range(count):
        wanted = columns[first[node]] if node in first else 0
        column = max(wanted, free.get(layers[node], 0))
        free[layers[node]] = column + 1
        columns[node] = column
    places = {
        node: (float(_UNIT * columns[node]), float(_UNIT * layers[node])) for node in range(count)
    }
    return _in_pixels(count, places, [()] * len(edges))
