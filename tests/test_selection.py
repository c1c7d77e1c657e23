"""What `make test` keeps of a matrix has each value of each axis, and is spread over it."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from tests.selection import covering, spread


@pytest.mark.parametrize("sizes", [(1,), (5,), (24, 2), (2, 3, 24), (3, 4, 6), (2, 2, 2, 2)])
def test_each_value_is_kept_about_as_often_as_others(sizes: tuple[int, ...]) -> None:
    cells = list(itertools.product(*map(range, sizes)))
    kept = covering(cells)
    assert max(sizes) <= len(kept) <= max(sizes) + 1
    for axis, size in enumerate(sizes):
        often = Counter(cell[axis] for cell in kept)
        assert len(often) == size
        assert max(often.values()) - min(often.values()) <= 1


def test_two_names_of_one_axis_are_one_axis() -> None:
    cells = [(i, i, j) for i in range(4) for j in range(3)]
    assert len(covering(cells)) == 4


def test_some_of_many_are_spread() -> None:
    assert spread(3, 5) == {0, 1, 2}
    assert spread(50, 6) == {0, 9, 19, 29, 39, 49}
