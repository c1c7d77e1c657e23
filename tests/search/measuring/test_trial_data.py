"""How samples are cut into runs."""

from __future__ import annotations

import pytest

from intact.search.measuring.trial_data import portions


@pytest.mark.parametrize(
    ("total", "size", "first", "expected"),
    [
        (40, 16, 1, [16, 16, 16]),
        (40, 16, 2, [8, 8, 16, 16]),
        (20, 5, 2, [3, 2, 5, 5, 5]),
        (8, 16, 2, [8]),
        (9, 16, 2, [8, 8]),
        (16, 16, 2, [8, 8]),
        (17, 16, 2, [8, 8, 16]),
        (3, 1, 2, [1, 1, 1]),
        (1, 1, 1, [1]),
    ],
)
def test_the_first_runs_are_parts_of_one(
    total: int, size: int, first: int, expected: list[int]
) -> None:
    assert portions(total, size, first) == expected
