"""A real trial_data gives the same bits in this process, in others, and on Ray."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import onnx
import pytest

from intact import demo
from intact.calibrate.assign import Method
from intact.calibrate.collect import collect
from intact.data.sources import open_samples
from intact.errors import UsageError
from intact.graph import normalize
from intact.search.measuring.trial_data import TrialData
from intact.search.plans import required
from intact.search.pool import TrialPool, make_pool
from intact.search.space import Space
from intact.search.trial import Ask, State, TrialResult
from intact.targets import load_target


@pytest.fixture(scope="module")
def trial_data() -> TrialData:
    graph = normalize(onnx.load(demo.model_path()))
    target = load_target("integer-pow2")
    space = Space.of(graph, target)
    samples = open_samples(demo.calibration_path(), graph, limit=100)
    statistics = collect(graph, samples, required(space))
    tried = open_samples(demo.test_path(), graph, limit=150)
    return TrialData.of(space, statistics, Method.of(target), tried)


def asks(space: Space) -> list[Ask]:
    """Return candidates good and bad, in full, in part, and with bars that stop them."""
    drawn = random.Random(0)
    found = [Ask(space.default), Ask(space.uniform(4)), Ask(space.uniform(4), bar=math.inf)]
    for index in range(6):
        candidate = tuple(drawn.choice(group.choices) for group in space.groups)
        found.append(Ask(candidate, (None, 40, 7)[index % 3], (None, 95.0)[index % 2]))
    return found


def measured(pool: TrialPool, trial_data: TrialData) -> list[TrialResult]:
    with pool:
        found = list(pool.evaluate(asks(trial_data.space)))
        found += pool.confirm([trial_data.space.default, trial_data.space.uniform(4)])
        return [replace(each, seconds=0.0) for each in found]


@pytest.fixture(scope="module")
def alone(trial_data: TrialData) -> list[TrialResult]:
    return measured(make_pool(trial_data), trial_data)


def test_the_trials_tell_something(alone: list[TrialResult]) -> None:
    states = {each.state for each in alone}
    assert states == {State.COMPLETE, State.STOPPED}
    assert len({each.noise for each in alone}) >= 6


@pytest.mark.parametrize("workers", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_processes(trial_data: TrialData, alone: list[TrialResult], workers: int) -> None:
    assert measured(make_pool(trial_data, workers), trial_data) == alone


@pytest.mark.parametrize("threads", [1, 3])
def test_threads(trial_data: TrialData, alone: list[TrialResult], threads: int) -> None:
    assert measured(make_pool(trial_data, threads=threads), trial_data) == alone


@pytest.mark.slow
def test_ray(trial_data: TrialData, alone: list[TrialResult]) -> None:
    pytest.importorskip("ray")
    assert measured(make_pool(trial_data, 2, distributed=True), trial_data) == alone


def test_what_is_no_candidate_is_refused(trial_data: TrialData) -> None:
    with make_pool(trial_data) as pool, pytest.raises(UsageError, match="0 choices for"):
        list(pool.evaluate([Ask(())]))
