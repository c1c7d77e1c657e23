"""Budgets as users write them."""

from __future__ import annotations

import pytest

from intact.errors import UsageError
from intact.recipe.kinds import Budget


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("200trials", Budget(200)),
        ("1 trial", Budget(1)),
        ("7", Budget(7)),
        ("90s", Budget(seconds=90)),
        ("1.5min", Budget(seconds=90)),
        ("2h", Budget(seconds=7200)),
        ("500, 1h", Budget(500, 3600)),
        ("10 MIN", Budget(seconds=600)),
    ],
)
def test_a_budget_is_read(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("text", ["0trials", "0", "0min", "0.0s"])
def test_a_budget_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="a budget of zero allows no trial"):
        Budget.parse(text)


@pytest.mark.parametrize("text", ["", "trials", "-5", "5 days", "1.5trials", "nan", "inf", "1e3s"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write for instance 200trials"):
        Budget.parse(text)
