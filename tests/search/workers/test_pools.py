"""What every pool does: in this process, in processes, and on Ray."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import create_autospec

import numpy as np
import pytest

from intact.cluster.actors import packed, unpacked
from intact.cluster.problem import WorkerError
from intact.errors import MissingExtraError, ModelError, UsageError
from intact.search import workers as pools
from intact.search.measuring.trial_data import TrialData
from intact.search.trial import Ask, Measured, State
from intact.search.workers import MOST_WORKERS, cores, make_pool, ray_
from intact.search.workers.pool import InlinePool, Pool, WorkerPool
from intact.search.workers.processes import ProcessLauncher
from tests.search.workers.fakes import (
    BUG,
    MEMORY,
    OPENER,
    REFUSE,
    SLOW,
    FakeEvaluator,
    FakeTrialData,
    open_fake,
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

Make = Callable[[FakeTrialData], Pool]


def inline(trial_data: FakeTrialData) -> Pool:
    def make() -> FakeEvaluator:
        if trial_data.opening == "refuse":
            raise ModelError("the trial_data's model is damaged", remedy="save it anew")
        return FakeEvaluator(trial_data, np.arange(1000, dtype=np.float64) / 7, 1)

    return InlinePool(make)


def processes(trial_data: FakeTrialData, workers: int = 2) -> WorkerPool:
    return WorkerPool(ProcessLauncher(trial_data, 1, OPENER), workers)


def actors(trial_data: FakeTrialData, workers: int = 2) -> WorkerPool:
    pytest.importorskip("ray")
    return WorkerPool(ray_.RayLauncher(trial_data, workers, None, OPENER), workers)


@pytest.fixture(scope="module", params=[inline, processes, actors], ids=lambda each: each.__name__)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with request.param(FakeTrialData(factor=-1 / 3)) as made:
        yield made


def key(measured: Measured) -> tuple[object, ...]:
    """Everything but the seconds, floats by their bits."""
    numbers = (float(measured.score).hex(), float(measured.noise).hex())
    return (measured.state, *numbers, int(measured.samples), measured.reason)


def expected(trial_data: FakeTrialData) -> list[tuple[object, ...]]:
    evaluator = FakeEvaluator(trial_data, np.arange(1000, dtype=np.float64) / 7, 1)
    return [key(evaluator.measure(ask)) for ask in ASKS]


def test_results_are_equal_and_in_the_order_asked(pool: Pool) -> None:
    wanted = expected(FakeTrialData(factor=-1 / 3))
    assert len({each[1] for each in wanted}) >= 6  # scores differ: the order can be wrong
    assert [key(each) for each in pool.evaluate(ASKS)] == wanted
    assert [key(each) for each in pool.evaluate(ASKS[::-1])] == wanted[::-1]


def test_floats_come_through_with_every_bit(pool: Pool) -> None:
    assert pool.float_score.hex() == (-1 / 3 / 3).hex()


def test_winners_are_confirmed(pool: Pool) -> None:
    plain = [each.score for each in pool.evaluate([Ask((4,)), Ask((5,))])]
    confirmed = list(pool.confirm([(4,), (5,)]))
    assert [each.score for each in confirmed] == [-score for score in plain]
    assert {each.reason for each in confirmed} == {"confirmed"}


def test_nothing_is_asked(pool: Pool) -> None:
    assert list(pool.evaluate([])) == []
    assert list(pool.confirm([])) == []


@pytest.mark.parametrize(
    ("choice", "reason"),
    [(REFUSE, "no scale for 'conv1'; use more samples"), (MEMORY, "out of memory")],
)
def test_what_is_wrong_with_a_candidate_fails_its_trial(
    pool: Pool, choice: int, reason: str
) -> None:
    results = list(pool.evaluate([Ask((1,)), Ask((choice,)), Ask((2,))]))
    assert [each.state for each in results] == [State.COMPLETE, State.FAILED, State.COMPLETE]
    failure = results[1]
    assert failure.reason == reason
    assert math.isnan(failure.score)
    assert math.isnan(failure.noise)
    assert failure.samples == 0
    assert next(pool.confirm([(choice,)])).reason == reason


def test_an_error_in_a_program_is_raised(pool: Pool) -> None:
    with pytest.raises((ZeroDivisionError, WorkerError), match="a bug of ours") as caught:
        list(pool.evaluate([Ask((BUG,))]))
    if isinstance(caught.value, WorkerError):
        assert "open" not in str(caught.value)
        assert any("in measure" in note for note in caught.value.__notes__)  # the traceback
    assert next(pool.evaluate([Ask((1,))])).state is State.COMPLETE


def test_an_iterator_may_be_left(pool: Pool) -> None:
    results = pool.evaluate(ASKS)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert next(pool.evaluate([Ask((0,))])).score == 0


@pytest.mark.parametrize("kind", [inline, processes])
def test_a_bench_that_cannot_be_loaded_ends_the_search(kind: Make) -> None:
    pool = kind(FakeTrialData(opening="refuse"))
    with pool, pytest.raises(ModelError, match="model is damaged; save it anew"):
        list(pool.evaluate([Ask((1,))]))


def test_results_are_yielded_before_more_begins() -> None:
    begun = []

    class Watched(FakeEvaluator):
        def measure(self, ask: Ask) -> Measured:
            begun.append(ask.candidate)
            return super().measure(ask)

    with InlinePool(lambda: Watched(FakeTrialData(), np.arange(9.0), 1)) as pool:
        results = pool.evaluate([Ask((1,)), Ask((2,))])
        assert begun == []
        next(results)
        assert begun == [(1,)]


def test_closing_inline_lets_go_of_the_evaluator() -> None:
    made = []

    def make() -> FakeEvaluator:
        made.append(1)
        return FakeEvaluator(FakeTrialData(), np.arange(9.0), 1)

    pool = InlinePool(make)
    pool.close()
    assert made == []
    assert pool.float_score == pool.float_score == 1 / 3
    assert made == [1]
    pool.close()
    pool.close()


def some_trial_data() -> TrialData:
    """Return trial data that nobody reads: pools start nothing before they are used."""
    found: TrialData = create_autospec(TrialData, instance=True)
    return found


@pytest.mark.parametrize("workers", [0, -1, MOST_WORKERS + 1])
def test_a_number_of_workers_out_of_range_is_refused(workers: int) -> None:
    with pytest.raises(UsageError, match=f"{workers} workers; give 1 to"):
        make_pool(some_trial_data(), workers)


def test_one_worker_is_this_process() -> None:
    assert isinstance(make_pool(some_trial_data()), InlinePool)
    assert isinstance(make_pool(some_trial_data(), 2), WorkerPool)


def test_ray_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r'pip install "intact-quantizer\[distributed\]"'):
        make_pool(some_trial_data(), distributed=True)
    with pytest.raises(MissingExtraError, match="needs ray"):
        make_pool(some_trial_data(), address="127.0.0.1:1")


def test_threads_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)
    given = []
    monkeypatch.setattr(pools, "cores", lambda: 7)
    monkeypatch.setattr(pools, "ProcessLauncher", lambda _, threads: given.append(threads))
    for workers in (2, 3, 7, 8):
        make_pool(some_trial_data(), workers)
    assert given == [3, 2, 1, 1]


def test_saved_files_travel_with_their_folders(tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.mkdir()
    FakeTrialData(factor=2.5).save(source)
    with unpacked(packed(source), "0123abcd") as copy:
        assert open_fake(copy, 1).float_score == 2.5 / 3
        assert packed(copy) == packed(source)
    assert not copy.exists()
