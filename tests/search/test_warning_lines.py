"""What is said beside a search's figures."""

from __future__ import annotations

import math

from intact.recipe.kinds import Budget
from intact.search.loop import SearchProgress, warning_lines
from intact.search.trial import Goal, State, Trial, TrialResult

BASE = Trial(0, (8,), 8.0, TrialResult(State.COMPLETE, 80.0, 0.1, 100))
CHEAP = Trial(1, (4,), 4.0, TrialResult(State.COMPLETE, 79.0, 0.1, 100))


def said(
    *trials: Trial, best: Trial = CHEAP, kind: str = "accuracy", drop: float | None = 5.0
) -> list[str]:
    progress = SearchProgress(Goal(min_score=75.0), 100, Budget(9), list(trials))
    return list(warning_lines(progress, best, BASE, kind, drop))


def test_an_ordinary_search_needs_no_remark() -> None:
    assert said(BASE, CHEAP) == []


def test_a_drop_of_single_samples() -> None:
    (line,) = said(BASE, CHEAP, drop=0.5)
    assert line.startswith("one of the 100 samples is 1 points: a drop of 0.5 depends on")
    assert said(BASE, CHEAP, drop=2.0) == said(BASE, CHEAP, drop=0.5, kind="kl") == []


def test_nothing_was_gained() -> None:
    (line,) = said(BASE, best=BASE)
    assert line == "nothing cheaper than the widest integers is within the limits"


def test_the_widest_integers_fail() -> None:
    progress = SearchProgress(Goal(min_score=90.0), 100, Budget(9), [BASE])
    wider = Trial(1, (32,), 9.0, TrialResult(State.COMPLETE, 91.0, 0.1, 100))
    lines = list(warning_lines(progress, wider, BASE, "accuracy", None))
    assert lines[0] == "the widest integers alone are not within the limits"
    assert len(lines) == 2


def test_failed_trials_are_counted() -> None:
    failure = Trial(2, (5,), 5.0, TrialResult(State.FAILED, math.nan, math.nan, 0, reason="boom"))
    assert said(BASE, CHEAP, failure) == ["1 trial(s) failed, the first: boom"]
