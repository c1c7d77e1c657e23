"""A real bench gives the same bits in this process, in others, and on Ray."""

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
from intact.search.measuring.bench import Bench
from intact.search.plans import required
from intact.search.space import Space
from intact.search.trial import Ask, Measured, State
from intact.search.workers.make import make_pool
from intact.search.workers.pool import Pool
from intact.targets import load_target


@pytest.fixture(scope="module")
def bench() -> Bench:
    graph = normalize(onnx.load(demo.model_path()))
    target = load_target("integer-pow2")
    space = Space.of(graph, target)
    samples = open_samples(demo.calibration_path(), graph, limit=100)
    statistics = collect(graph, samples, required(space))
    tried = open_samples(demo.test_path(), graph, limit=150)
    return Bench.of(space, statistics, Method.of(target), tried)


def asks(space: Space) -> list[Ask]:
    """Return candidates good and bad, in full, in part, and with bars that stop them."""
    drawn = random.Random(0)
    found = [Ask(space.default), Ask(space.uniform(4)), Ask(space.uniform(4), bar=math.inf)]
    for index in range(6):
        candidate = tuple(drawn.choice(group.choices) for group in space.groups)
        found.append(Ask(candidate, (None, 40, 7)[index % 3], (None, 95.0)[index % 2]))
    return found


def measured(pool: Pool, bench: Bench) -> tuple[float, list[Measured]]:
    with pool:
        found = list(pool.evaluate(asks(bench.space)))
        found += pool.confirm([bench.space.default, bench.space.uniform(4)])
        return pool.float_score, [replace(each, seconds=0.0) for each in found]


@pytest.fixture(scope="module")
def alone(bench: Bench) -> tuple[float, list[Measured]]:
    return measured(make_pool(bench), bench)


def test_the_trials_tell_something(alone: tuple[float, list[Measured]]) -> None:
    states = {each.state for each in alone[1]}
    assert states == {State.COMPLETE, State.STOPPED}
    assert len({each.noise for each in alone[1]}) >= 6


@pytest.mark.parametrize("workers", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_processes(bench: Bench, alone: tuple[float, list[Measured]], workers: int) -> None:
    assert measured(make_pool(bench, workers), bench) == alone


@pytest.mark.parametrize("threads", [1, 3])
def test_threads(bench: Bench, alone: tuple[float, list[Measured]], threads: int) -> None:
    assert measured(make_pool(bench, threads=threads), bench) == alone


@pytest.mark.slow
def test_ray(bench: Bench, alone: tuple[float, list[Measured]]) -> None:
    pytest.importorskip("ray")
    assert measured(make_pool(bench, 2, distributed=True), bench) == alone


def test_what_is_no_candidate_is_refused(bench: Bench) -> None:
    with make_pool(bench) as pool, pytest.raises(UsageError, match="0 choices for"):
        list(pool.evaluate([Ask(())]))
