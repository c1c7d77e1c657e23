"""Limits as users state them."""

from __future__ import annotations

import math

import pytest

from intact.errors import UsageError
from intact.search.trial import Goal, goal_of


def test_limits() -> None:
    assert goal_of(80.0, 1000.0) == Goal()
    assert goal_of(80.0, 1000.0, max_drop=0.0) == Goal(min_score=80.0)
    assert goal_of(80.0, 1000.0, min_score=70.0, max_cost=12) == Goal(70.0, 12.0)
    assert goal_of(80.0, 1000.0, max_cost=" 12.5 % ".strip()) == Goal(max_cost=125.0)


@pytest.mark.parametrize("drop", [-0.1, math.nan, math.inf])
def test_a_drop_that_means_nothing(drop: float) -> None:
    with pytest.raises(UsageError, match="max_drop"):
        goal_of(80.0, 1.0, max_drop=drop)


def test_a_drop_below_a_score_without_end() -> None:
    with pytest.raises(UsageError, match="give min_score"):
        goal_of(math.inf, 1.0, max_drop=0.5)


def test_two_limits_of_one_thing() -> None:
    with pytest.raises(UsageError, match="give one of the two"):
        goal_of(80.0, 1.0, max_drop=0.5, min_score=70.0)


@pytest.mark.parametrize("cost", ["", "x", "0", "0%", "-3", "nan", "inf", "%"])
def test_a_cost_that_means_nothing(cost: str) -> None:
    with pytest.raises(UsageError, match="max_cost"):
        goal_of(80.0, 1.0, max_cost=cost)


def test_limits_that_nothing_can_hold() -> None:
    with pytest.raises(UsageError, match=r"no candidate costs less than 60 \(60.0%\)"):
        goal_of(80.0, 100.0, max_cost="50%", least_cost=60.0)
    assert goal_of(80.0, 100.0, max_cost="60%", least_cost=60.0) == Goal(max_cost=60.0)
    with pytest.raises(UsageError, match="the most is 100"):
        goal_of(80.0, 100.0, min_score=100.5, highest_score=100.0)
