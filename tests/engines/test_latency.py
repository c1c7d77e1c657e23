"""Latency is measured in bounded time, and says of how many runs it is."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from intact.engines.latency import latencies
from intact.limits import LATENCY_SECONDS


class Clock:
    """A clock that only models move."""

    def __init__(self) -> None:
        self.now = 0.0

    def model(self, seconds: float) -> Callable[[], object]:
        def run() -> None:
            self.now += seconds

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: made.now)
    return made


def test_short_runs_are_timed_in_blocks_behind_a_warm_up(clock: Clock) -> None:
    found = latencies(clock.model(0.004), clock.model(0.002))
    assert found.milliseconds == pytest.approx((4.0, 2.0))
    assert found.ratio == pytest.approx(2.0)
    assert found.runs == (25, 25)
    assert clock.now == pytest.approx(35 * 0.006)


@pytest.mark.parametrize("seconds", [0.2, 0.5, 1.0, 3.0])
def test_long_runs_are_fewer(clock: Clock, seconds: float) -> None:
    found = latencies(clock.model(seconds), clock.model(seconds / 2))
    assert clock.now <= 2 * LATENCY_SECONDS + 2 * seconds
    assert found.milliseconds == pytest.approx((1e3 * seconds, 500 * seconds))
    assert 1 <= found.runs[0] < 25


def test_one_run_of_each_is_timed_however_long_it_takes(clock: Clock) -> None:
    found = latencies(clock.model(60.0), clock.model(30.0))
    assert found.runs == (1, 1)
    assert clock.now == 90.0
