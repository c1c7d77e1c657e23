"""Unique names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from intact.graph.names import Names


def naive(wanted: str, taken: set[str], first: int) -> str:
    name, number = wanted, first
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    return name


@given(st.lists(st.sampled_from(["a", "a_2", "a_3", "b", "a_2_2"])), st.sampled_from([1, 2]))
def test_names_are_those_of_counting_each_time(wanted: list[str], first: int) -> None:
    names, taken = Names(["b"], first=first), {"b"}
    for name in wanted:
        assert names.fresh(name) == naive(name, taken, first)


def test_a_number_stands_before_the_suffix() -> None:
    names = Names(["w_bias"])
    assert names.fresh("w", "_bias") == "w_2_bias"


def test_names_with_one_key_are_the_same() -> None:
    names = Names(["Input"], key=str.lower)
    assert names.fresh("input") == "input_2"


def test_a_discarded_name_is_used_again() -> None:
    names = Names()
    assert [names.fresh("a") for _ in range(3)] == ["a", "a_2", "a_3"]
    names.discard("a_2")
    assert names.fresh("a") == "a_2"


def test_one_name_for_many_things_takes_linear_time() -> None:
    names = Names()
    assert len({names.fresh("tensor") for _ in range(100_000)}) == 100_000


def test_many_equal_names_take_linear_time() -> None:
    """Counting from the first number each time would take half a billion tries here."""
    names = Names()
    found = [names.fresh("x") for _ in range(30_000)]
    assert len(set(found)) == len(found)
    assert found[:3] == ["x", "x_2", "x_3"]
