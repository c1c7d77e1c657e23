"""What was computed before is the same for all threads that ask."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from intact._memo import Memo


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
def test_threads_share_a_memo_that_forgets() -> None:
    memo = Memo(1)
    numbers = [each % 13 for each in range(40_000)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda each: memo(each, lambda: -each), numbers)) == [
            -each for each in numbers
        ]


def test_the_oldest_part_is_forgotten() -> None:
    memo = Memo(2)
    for key in (1, 2, 3):
        memo(key, lambda: "first")
    assert [memo(key, lambda: "second") for key in (3, 2, 1)] == ["first", "first", "second"]
