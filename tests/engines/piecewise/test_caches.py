"""What is kept, within its bytes."""

from __future__ import annotations

import numpy as np

from intact.engines.piecewise.caches import Checkpoints, CompiledCache


def array(size: int = 4) -> np.ndarray:
    return np.zeros(size, np.float32)


def test_an_array_is_kept_from_the_second_time_on() -> None:
    kept = Checkpoints(100)
    assert kept.find((0, b"a")) is None
    assert not kept.offer((0, b"a"), array())
    assert kept.find((0, b"a")) is None
    given = array()
    assert kept.offer((0, b"a"), given)
    assert kept.find((0, b"a")) is given
    assert not given.flags.writeable
    assert kept.find((1, b"a")) is None
    assert kept.size == 16


def test_what_is_asked_for_more_often_stays() -> None:
    kept = Checkpoints(32)
    for key, times in ((b"base", 5), (b"other", 3)):
        for _ in range(times):
            kept.find((0, key))
        assert kept.offer((0, key), array())
    for _ in range(2):
        kept.find((0, b"candidate"))
    assert not kept.offer((0, b"candidate"), array())
    kept.find((0, b"candidate"))
    assert not kept.offer((0, b"candidate"), array())  # no more often than the other
    kept.find((0, b"candidate"))
    assert kept.offer((0, b"candidate"), array())  # four times, the other three
    assert kept.find((0, b"other")) is None
    assert kept.find((0, b"base")) is not None
    assert kept.size == 32


def test_no_more_bytes_than_allowed() -> None:
    kept = Checkpoints(40)
    for key in range(50):
        for _ in range(key + 2):
            kept.find((key, b""))
        kept.offer((key, b""), array(1 + key % 7))
        assert kept.size <= 40
    for _ in range(3):
        kept.find((99, b"large"))
    assert not kept.offer((99, b"large"), array(100))
    nothing = Checkpoints(0)
    for _ in range(3):
        nothing.find((0, b""))
    assert not nothing.offer((0, b""), array())


def test_what_a_search_left_behind_goes() -> None:
    kept = Checkpoints(16)
    for _ in range(20):
        kept.find((0, b"old"))
    assert kept.offer((0, b"old"), array())
    for _ in range(5):
        for at in range(4096):
            kept.find((at, b"other"))
    for _ in range(2):
        kept.find((0, b"new"))
    assert kept.offer((0, b"new"), array())
    assert kept.find((0, b"old")) is None


def test_the_latest_compiled_stay() -> None:
    compiled: CompiledCache[str] = CompiledCache(25)
    made = []

    def get(key: str) -> str:
        def make() -> tuple[str, int]:
            made.append(key)
            return key.upper(), 10

        return compiled.get(key, make)

    assert [get(key) for key in "abacab"] == list("ABACAB")
    assert made == ["a", "b", "c", "b"]
    assert (compiled.made, compiled.size) == (4, 20)
    alone: CompiledCache[str] = CompiledCache(0)
    assert alone.get("x", lambda: ("X", 10)) == "X"
    assert alone.get("x", lambda: ("never", 10)) == "X"
