"""Graphs of reports are laid out in layers, the same way each time."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from intact.analyze.report import layout
from intact.analyze.report.layout import NODE_HEIGHT, NODE_WIDTH, layered
from intact.errors import MissingExtraError

DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)]


def _random(count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Edges of a network with branches of up to twenty nodes."""
    rng = np.random.default_rng(seed)
    edges = {(node - 1, node) for node in range(1, count) if rng.random() < 0.8}
    edges |= {(max(0, n - int(rng.integers(2, 20))), n) for n in range(1, count, 3)}
    return sorted(edge for edge in edges if edge[0] < edge[1])


def _check(count: int, edges: list[tuple[int, int]]) -> layout.Layout:
    found = layered(count, edges)
    assert len(found.nodes) == count
    assert len(found.bends) == len(edges)
    for source, reader in edges:
        assert found.nodes[source][1] < found.nodes[reader][1]  # edges go down
    boxes = sorted(found.nodes, key=lambda place: (place[1], place[0]))
    for one, other in pairwise(boxes):
        assert one[1] + NODE_HEIGHT < other[1] or one[0] + NODE_WIDTH < other[0]
    assert all(0 < x < found.width and 0 < y < found.height for x, y in found.nodes)
    return found


def test_edges_go_down_and_nodes_do_not_overlap() -> None:
    found = _check(4, DIAMOND)
    assert found.bends[DIAMOND.index((0, 3))]  # it passes the layer of 1 and 2
    assert not found.bends[0]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_nodes_without_edges_stand_beside_each_other(count: int) -> None:
    found = _check(count, [])
    assert len({x for x, _ in found.nodes}) == count


def test_parts_that_are_not_connected_stand_beside_each_other() -> None:
    _check(7, [(0, 2), (1, 3), (4, 6)])


@pytest.mark.parametrize("most", [layout._MOST_EDGES, 10])
def test_a_thousand_nodes_are_laid_out(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(layout, "_MOST_EDGES", most)
    _check(1000, _random(1000))


def test_a_layout_is_the_same_in_each_process() -> None:
    code = (
        "from intact.analyze.report.layout import layered\n"
        "from tests.analyze.report.test_layout import _random\n"
        "print(layered(200, _random(200)))"
    )
    line = [sys.executable, "-c", code]
    first, second = (
        subprocess.run(line, capture_output=True, text=True, check=True).stdout for _ in range(2)
    )
    assert first == second


def test_without_the_extra_the_command_to_install_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: Callable[..., Any] = builtins.__import__

    def missing(name: str, *rest: Any, **named: Any) -> Any:
        if name == "fast_sugiyama":
            raise ImportError(name)
        return found(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtraError, match=r'pip install "intact-quantizer\[report\]"'):
        layered(2, [(0, 1)])
