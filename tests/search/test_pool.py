"""What every pool does: in this process, in processes, and on Ray."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from intact.errors import MissingExtraError, ModelError, UsageError
from intact.search import pool as pools
from intact.search.measuring.trial_data import TrialData
from intact.search.pool import TrialPool, make_pool
from intact.search.trial import Ask, State, TrialResult
from intact.workers.job import WorkerError
from intact.workers.pool import MOST_WORKERS, InProcessLauncher, cores
from intact.workers.processes import ProcessLauncher
from intact.workers.ray_ import Connection, RayLauncher, pack, unpack
from tests.search.evaluators import (
    BUG,
    MEMORY,
    NUMBERS,
    REFUSE,
    SLOW,
    FakeEvaluator,
    FakeTrialData,
)

ASKS = [
    Ask((1, 2, 3)),
    Ask((SLOW, 1)),  # the others are done long before it is
    Ask((2,)),
    Ask((3, 1), samples=7),
    Ask((3, 1), bar=math.inf),
    Ask((3, 1), bar=-math.inf),
    Ask((40,) * 9, samples=0, bar=0.1),
    Ask((0,)),
]

Make = Callable[[FakeTrialData], TrialPool]


def inline(trial_data: FakeTrialData) -> TrialPool:
    return TrialPool(InProcessLauncher(1), trial_data)


def processes(trial_data: FakeTrialData) -> TrialPool:
    return TrialPool(ProcessLauncher(1), trial_data, 2)


def actors(trial_data: FakeTrialData) -> TrialPool:
    pytest.importorskip("ray")
    connection = Connection()
    return TrialPool(RayLauncher(connection), trial_data, 2, connection)


@pytest.fixture(scope="module", params=[inline, processes, actors], ids=lambda each: each.__name__)
def pool(request: pytest.FixtureRequest) -> Iterator[TrialPool]:
    with request.param(FakeTrialData(factor=-1 / 3)) as made:
        yield made


def key(measured: TrialResult) -> tuple[object, ...]:
    """Everything but the seconds, floats by their bits."""
    numbers = (float(measured.score).hex(), float(measured.noise).hex())
    return (measured.state, *numbers, int(measured.samples), measured.reason)


def expected(trial_data: FakeTrialData) -> list[tuple[object, ...]]:
    evaluator = FakeEvaluator(trial_data, NUMBERS, 1)
    return [key(evaluator.measure(ask)) for ask in ASKS]


def test_results_are_equal_and_in_the_order_asked(pool: TrialPool) -> None:
    wanted = expected(FakeTrialData(factor=-1 / 3))
    assert len({each[1] for each in wanted}) >= 6  # scores differ: the order can be wrong
    assert [key(each) for each in pool.evaluate(ASKS)] == wanted
    assert [key(each) for each in pool.evaluate(ASKS[::-1])] == wanted[::-1]


def test_winners_are_confirmed(pool: TrialPool) -> None:
    plain = [each.score for each in pool.evaluate([Ask((4,)), Ask((5,))])]
    confirmed = list(pool.confirm([(4,), (5,)]))
    assert [each.score for each in confirmed] == [-score for score in plain]
    assert {each.reason for each in confirmed} == {"confirmed"}


def test_nothing_is_asked(pool: TrialPool) -> None:
    assert list(pool.evaluate([])) == []
    assert list(pool.confirm([])) == []


@pytest.mark.parametrize(
    ("choice", "reason"),
    [(REFUSE, "no scale for 'conv1'; use more samples"), (MEMORY, "out of memory")],
)
def test_what_is_wrong_with_a_candidate_fails_its_trial(
    pool: TrialPool, choice: int, reason: str
) -> None:
    results = list(pool.evaluate([Ask((1,)), Ask((choice,)), Ask((2,))]))
    assert [each.state for each in results] == [State.COMPLETE, State.FAILED, State.COMPLETE]
    failure = results[1]
    assert failure.reason == reason
    assert math.isnan(failure.score)
    assert math.isnan(failure.noise)
    assert failure.samples == 0
    assert next(pool.confirm([(choice,)])).reason == reason


def test_an_error_in_a_program_is_raised(pool: TrialPool) -> None:
    with pytest.raises((ZeroDivisionError, WorkerError), match="a bug of ours") as caught:
        list(pool.evaluate([Ask((BUG,))]))
    if isinstance(caught.value, WorkerError):
        assert "open" not in str(caught.value)
        assert any("in measure" in note for note in caught.value.__notes__)  # the traceback
    assert next(pool.evaluate([Ask((1,))])).state is State.COMPLETE


def test_an_iterator_may_be_left(pool: TrialPool) -> None:
    results = pool.evaluate(ASKS)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert next(pool.evaluate([Ask((0,))])).score == 0


@pytest.mark.parametrize("kind", [inline, processes])
def test_a_bench_that_cannot_be_loaded_ends_the_search(kind: Make) -> None:
    pool = kind(FakeTrialData(opening="refuse"))
    with pool, pytest.raises(ModelError, match="model is damaged; save it anew"):
        list(pool.evaluate([Ask((1,))]))


def some_trial_data() -> TrialData:
    """Return trial data that nobody reads: pools start nothing before they are used."""
    found: TrialData = create_autospec(TrialData, instance=True)
    return found


@pytest.mark.parametrize("workers", [0, -1, MOST_WORKERS + 1])
def test_a_number_of_workers_out_of_range_is_refused(workers: int) -> None:
    with pytest.raises(UsageError, match=f"{workers} workers; give 1 to"):
        make_pool(some_trial_data(), workers)


def test_ray_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r'pip install "intact-quantizer\[distributed\]"'):
        make_pool(some_trial_data(), distributed=True)
    with pytest.raises(MissingExtraError, match="needs ray"):
        make_pool(some_trial_data(), address="127.0.0.1:1")


def test_threads_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)
    given: list[int] = []

    def launcher(threads: int) -> InProcessLauncher:
        given.append(threads)
        return InProcessLauncher(threads)

    monkeypatch.setattr(pools, "cores", lambda: 7)
    monkeypatch.setattr(pools, "ProcessLauncher", launcher)
    for workers in (1, 2, 3, 7, 8):
        make_pool(some_trial_data(), workers)
    assert given == [3, 2, 1, 1]  # one worker is this process


def test_saved_files_travel_with_their_folders(tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.mkdir()
    FakeTrialData(factor=2.5).save(source)
    with unpack(pack(source), "0123abcd") as copy:
        assert FakeTrialData.load(copy) == FakeTrialData(factor=2.5)
        assert pack(copy) == pack(source)
    assert not copy.exists()
