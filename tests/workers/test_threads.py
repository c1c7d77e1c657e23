"""Functions in threads: in order, no further ahead than asked, and nothing is left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from intact.workers.threads import map_ahead


def running() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("intact-map")]


def test_results_come_in_order_and_items_no_further_ahead() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(12):
            taken.append(number)
            yield number

    def slow_first(number: int) -> int:
        time.sleep(0.002 * (12 - number))
        return number * number

    for number, found in enumerate(map_ahead(slow_first, items(), threads=3, ahead=4)):
        assert found == number * number
        assert len(taken) <= number + 4
    assert len(taken) == 12
    assert running() == []


def test_an_error_and_a_left_iterator_end_the_threads() -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        time.sleep(0.01)
        return 1 // number

    with pytest.raises(ZeroDivisionError):
        list(map_ahead(work, [2, 0, *range(1, 50)], threads=1, ahead=9))
    assert running() == []
    found = map_ahead(work, range(1, 50), threads=1, ahead=9)
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert running() == []
    assert len(begun) < 30
