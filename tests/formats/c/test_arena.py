"""The plan of memory: nothing alive is overwritten, and little is wasted."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from intact.formats.c.storage import ALIGNMENT, Arena, Buffer, plan_arena


@st.composite
def buffer_lists(draw: st.DrawFn) -> list[Buffer]:
    count = draw(st.integers(0, 14))
    buffers = []
    for index in range(count):
        first = draw(st.integers(-1, 12))
        size = draw(st.sampled_from([1, 3, 4, 7, 64, 100, 4096]) | st.integers(1, 50))
        buffers.append(Buffer(f"b{index}", size, first, first + draw(st.integers(0, 8))))
    return buffers


def overlapping(buffers: list[Buffer], arena: Arena) -> list[tuple[str, str]]:
    """Return pairs that live at one time and share a byte."""
    found = []
    for one, other in itertools.combinations(buffers, 2):
        first, second = arena.offsets[one.name], arena.offsets[other.name]
        together = any(
            one.first <= at <= one.last and other.first <= at <= other.last for at in range(-1, 22)
        )
        if together and first < second + other.size and second < first + one.size:
            found.append((one.name, other.name))
    return found


@given(buffer_lists())
def test_live_buffers_do_not_overlap(buffers: list[Buffer]) -> None:
    arena = plan_arena(buffers)
    assert overlapping(buffers, arena) == []
    assert all(offset % ALIGNMENT == 0 for offset in arena.offsets.values())
    assert all(arena.offsets[each.name] + each.size <= arena.size for each in buffers)


@given(buffer_lists())
def test_the_bound_is_what_is_alive(buffers: list[Buffer]) -> None:
    arena = plan_arena(buffers)
    alive = [
        sum(-(-each.size // 4) * 4 for each in buffers if each.first <= at <= each.last)
        for at in range(-1, 22)
    ]
    assert arena.lower_bound == max(alive)
    assert arena.lower_bound <= arena.size <= sum(each.room for each in buffers)
    assert arena.size <= 2 * arena.lower_bound


def test_chains_and_branches_waste_nothing() -> None:
    sizes = [100, 400, 200, 800, 52, 1200, 40]
    chain = [Buffer(str(at), size, at, at + 1) for at, size in enumerate(sizes)]
    kept = Buffer("kept", 300, 0, 6)
    for buffers in (chain, [*chain, kept]):
        arena = plan_arena(buffers)
        assert arena.size == arena.lower_bound


def test_a_gap_is_used() -> None:
    buffers = [
        Buffer("low", 8, 0, 9),
        Buffer("early", 16, 0, 3),
        Buffer("high", 12, 2, 9),
        Buffer("late", 16, 5, 9),
    ]
    assert plan_arena(buffers).size == 36


def test_order_of_equals_does_not_matter() -> None:
    assert plan_arena([]) == Arena(0, 0, {})
    buffers = [Buffer(name, 8, 0, 1) for name in "abc"]
    assert plan_arena(buffers) == plan_arena(list(buffers))
