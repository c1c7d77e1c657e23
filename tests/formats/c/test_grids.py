"""Grids walk over the same elements in the same order as the axes that they were made of."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intact.errors import Unsupported
from intact.formats.c.library import AXES
from intact.formats.c.moves import Grid, broadcast_strides, contiguous, grid


def visited(cells: Grid, operand: int) -> Iterator[int]:
    """Yield the places that an operand is read at, in the order in which the kernels do it."""
    for place in itertools.product(*map(range, cells.lengths)):
        strides = cells.strides[operand]
        start = sum(index * stride for index, stride in zip(place, strides, strict=True))
        for index in range(cells.length):
            yield start + index * cells.steps[operand]


@st.composite
def axes(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    lengths = draw(st.lists(st.integers(1, 4), max_size=6))
    some = st.lists(st.integers(-6, 6), min_size=len(lengths), max_size=len(lengths))
    dense = list(contiguous(lengths))
    return lengths, [draw(some | st.just(dense)), dense]


@given(axes())
def test_the_same_elements_are_visited(given_axes: tuple[list[int], list[list[int]]]) -> None:
    lengths, operands = given_axes
    cells = grid(lengths, operands)
    assert len(cells.lengths) <= AXES
    for index, strides in enumerate(operands):
        wanted = [
            sum(at * stride for at, stride in zip(place, strides, strict=True))
            for place in itertools.product(*map(range, lengths))
        ]
        assert list(visited(cells, index)) == wanted


def test_contiguous_axes_become_one_run() -> None:
    lengths = (2, 1, 3, 4)
    cells = grid(lengths, [contiguous(lengths)] * 3)
    assert cells.is_run
    assert cells.length == 24
    assert not grid((3, 4), [(4, 1), (1, 3)]).is_run


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_broadcast_strides(target: Sequence[int], data: st.DataObject) -> None:
    own = [data.draw(st.sampled_from([1, length])) for length in target]
    own = own[data.draw(st.integers(0, len(own) - 1)) :]
    array = np.arange(math.prod(own)).reshape(own)
    strides = broadcast_strides(own, target)
    places = itertools.product(*map(range, target))
    found = [sum(i * s for i, s in zip(place, strides, strict=True)) for place in places]
    assert found == np.broadcast_to(array, target).reshape(-1).tolist()


def test_grids_of_too_many_axes_are_unsupported() -> None:
    lengths = [2] * (AXES + 2)
    with pytest.raises(Unsupported, match="axes"):
        grid(lengths, [[3**at for at in range(len(lengths))], contiguous(lengths)])
