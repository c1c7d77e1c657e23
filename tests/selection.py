"""Which of many cases `make test` runs; the others belong to `make test-rest`.

A test that goes through models, targets and options at once would have hundreds of cells, most of
which run the same code. ``@pytest.mark.crossed`` keeps so many that each value of each axis is in
one. ``@pytest.mark.sampled(5)`` keeps five of many seeds or values, from the first to the last.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence

import pytest

Cell = tuple[Hashable, ...]


def covering(cells: Sequence[Cell]) -> set[Cell]:
    """Choose cells so that each value of each axis is in one, and none much oftener than others."""
    seen: Counter[tuple[int, Hashable]] = Counter()
    kept: set[Cell] = set()
    values = {place for cell in cells for place in enumerate(cell)}
    while missing := values - seen.keys():

        def rank(cell: Cell) -> tuple[int, int]:
            places = set(enumerate(cell))
            return -len(missing & places), sum(seen[place] for place in places)

        best = min((cell for cell in cells if cell not in kept), key=rank)
        kept.add(best)
        seen.update(enumerate(best))
    return kept


def spread(count: int, most: int) -> set[int]:
    """Choose some of so many numbers, evenly, the first and the last among them."""
    return (
        set(range(count)) if count <= most else {i * (count - 1) // (most - 1) for i in range(most)}
    )


def left_out(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the cases that `make test` leaves out, by the marks of their tests."""
    tests: dict[tuple[object, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            tests[item.parent, item.originalname].append(item)
    for cases in tests.values():
        sampled = cases[0].get_closest_marker("sampled")
        if cases[0].get_closest_marker("crossed"):
            cells = [_cell(case) for case in cases]
            kept = covering(cells)
            yield from (case for case, cell in zip(cases, cells, strict=True) if cell not in kept)
        elif sampled:
            numbers = spread(len(cases), *sampled.args)
            yield from (case for number, case in enumerate(cases) if number not in numbers)


def _cell(case: pytest.Function) -> Cell:
    """Name the values of a case by identity: those of each ``parametrize``, of each fixture."""
    given = (mark.args[0] for mark in case.iter_markers("parametrize"))
    axes = [[n.strip() for n in (a.split(",") if isinstance(a, str) else a)] for a in given]
    axes += [
        [name] for name in case.callspec.params.keys() - {name for axis in axes for name in axis}
    ]
    return tuple(tuple(id(case.callspec.params[name]) for name in axis) for axis in sorted(axes))
