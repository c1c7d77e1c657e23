"""Remembering: once computed, and no more than is allowed."""

from __future__ import annotations

from intact._memo import Forgetful, Memo


def counted(memo: Memo, keys: str) -> list[str]:
    """The keys for which something was computed."""
    computed: list[str] = []

    def compute(key: str) -> str:
        computed.append(key)
        return key.upper()

    for key in keys:
        assert memo(key, lambda key=key: compute(key)) == key.upper()  # type: ignore[misc]
    return computed


def test_a_part_is_computed_once() -> None:
    assert counted(Memo(), "abaab") == ["a", "b"]


def test_the_oldest_are_forgotten() -> None:
    assert counted(Memo(2), "ababcab") == ["a", "b", "c", "a", "b"]


def test_nothing_is_remembered_where_it_is_not_asked_for() -> None:
    assert counted(Forgetful(), "aab") == ["a", "a", "b"]
    assert counted(Forgetful().bounded("x", 9), "aa") == ["a", "a"]


def test_a_bounded_part_is_the_same_for_the_same_name() -> None:
    memo = Memo()
    part = memo.bounded("x", 1)
    assert memo.bounded("x", 1) is part
    assert memo.bounded("y", 1) is not part
    assert counted(part, "aba") == ["a", "b", "a"]


def test_none_is_remembered_too() -> None:
    memo, calls = Memo(), []
    for _ in range(2):
        assert memo("a", lambda: calls.append(1)) is None
    assert calls == [1]
