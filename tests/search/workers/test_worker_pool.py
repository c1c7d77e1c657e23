"""The supervision of workers, with workers that are threads of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from intact.cluster.problem import Problem, WorkerError
from intact.errors import IntactError, ModelError, PlanError, SearchError
from intact.search.trial import Ask, State
from intact.search.workers.messages import (
    Confirm,
    FloatScore,
    Ready,
    Reply,
    Request,
    Result,
    Score,
    decode_reply,
    decode_request,
    encode,
)
from intact.search.workers.pool import WorkerLostError, WorkerPool
from tests.search.workers.fakes import FakeEvaluator, FakeTrialData

FAKE = FakeEvaluator(FakeTrialData(), np.arange(1000, dtype=np.float64) / 7, 1)

LOST, WAIT = 200, 201
"""First choices of candidates: the worker is lost, or waits until it is killed."""


class FakeWorker:
    """Answers like an evaluator's worker; ``first_reply`` None is a worker lost at its start."""

    def __init__(self, launcher: FakeLauncher) -> None:
        self.launcher, self.is_alive, self.is_closed = launcher, True, False
        self.killed = threading.Event()

    def first(self) -> bytes:
        if self.launcher.first is None:
            raise WorkerLostError("lost at the start")
        return encode(self.launcher.first)

    def call(self, request: bytes) -> bytes:
        return encode(self.reply(decode_request(request)))

    def reply(self, request: Request) -> Reply:
        if isinstance(request, FloatScore):
            return Score(0.25)
        ask = Ask(request.candidate) if isinstance(request, Confirm) else request.ask  # type: ignore[union-attr]
        self.launcher.begun.append(ask.candidate)
        if ask.candidate[0] == WAIT:
            self.killed.wait(20)
        if ask.candidate[0] in {LOST, WAIT}:
            raise WorkerLostError("lost in a trial")
        time.sleep(self.launcher.seconds(ask))
        return Result(FAKE.measure(ask))

    def kill(self) -> None:
        self.killed.set()

    def close(self) -> None:
        self.is_closed = True


class FakeLauncher:
    """Starts fakes, and remembers them."""

    def __init__(self, first: Reply | None = None, seconds: Callable[[Ask], float] | None = None):
        self.first = first
        self.seconds = seconds or (lambda _: 0.0)
        self.workers: list[FakeWorker] = []
        self.begun: list[tuple[int, ...]] = []
        self.opened = self.closed = 0

    def open(self) -> None:
        self.opened += 1

    def start(self) -> FakeWorker:
        self.workers.append(FakeWorker(self))
        return self.workers[-1]

    def close(self) -> None:
        self.closed += 1


def asks(*choices: int) -> list[Ask]:
    return [Ask((choice,)) for choice in choices]


@pytest.mark.parametrize("size", [1, 2, 3, 16])
def test_order_does_not_depend_on_who_is_first(size: int) -> None:
    slow_first = FakeLauncher(Ready(), lambda ask: 0.002 * (12 - ask.candidate[0]))
    with WorkerPool(slow_first, size) as pool:
        scores = [each.score for each in pool.evaluate(asks(*range(12)))]
    assert scores == [FAKE.measure(ask).score for ask in asks(*range(12))]
    assert len(set(scores)) == 12
    assert 1 <= len(slow_first.workers) <= min(size, 12)


def test_no_more_workers_than_asks_and_none_before_the_first() -> None:
    launcher = FakeLauncher(Ready(), lambda _: 0.05)
    with WorkerPool(launcher, 9) as pool:
        results = pool.evaluate(asks(1, 2))
        assert list(pool.evaluate([])) == []
        assert (launcher.opened, launcher.workers) == (0, [])
        assert len(list(results)) == 2
        assert (launcher.opened, len(launcher.workers)) == (1, 2)
        list(pool.evaluate(asks(1, 2)))
        assert (launcher.opened, len(launcher.workers)) == (1, 2)  # the same again
        list(pool.evaluate(asks(1, 2, 3)))
        assert len(launcher.workers) == 3


@pytest.mark.parametrize("size", [1, 3])
def test_what_is_yielded_is_dealt_with_before_its_place_is_taken(size: int) -> None:
    launcher = FakeLauncher(Ready())
    with WorkerPool(launcher, size) as pool:
        for count, _ in enumerate(pool.evaluate(asks(*range(8))), 1):
            time.sleep(0.02)
            assert len(launcher.begun) <= count + size - 1


def test_what_has_not_begun_is_given_up() -> None:
    launcher = FakeLauncher(Ready(), lambda _: 0.02)
    with WorkerPool(launcher, 1) as pool:
        results = pool.evaluate(asks(1, 2, 3))
        next(results)
        results.close()  # type: ignore[attr-defined]
        assert [each.score for each in pool.evaluate(asks(0))] == [0.0]
        assert launcher.begun == [(1,), (0,)]


def test_a_lost_worker_is_replaced() -> None:
    launcher = FakeLauncher(Ready())
    with WorkerPool(launcher, 1) as pool:
        results = list(pool.evaluate(asks(1, LOST, LOST, 2)))
        states = [each.state for each in results]
        assert states == [State.COMPLETE, State.FAILED, State.FAILED, State.COMPLETE]
        assert results[1].reason == "lost in a trial"
        assert len(launcher.workers) == 3
        assert [worker.is_closed for worker in launcher.workers] == [True, True, False]
        assert next(pool.confirm([(LOST,)])).state is State.FAILED
    assert all(worker.is_closed for worker in launcher.workers)


def test_one_that_is_found_lost_costs_no_trial() -> None:
    launcher = FakeLauncher(Ready())
    with WorkerPool(launcher, 1) as pool:
        list(pool.evaluate(asks(1)))
        launcher.workers[0].is_alive = False
        assert next(pool.evaluate(asks(1))).state is State.COMPLETE
        assert len(launcher.workers) == 2
        assert launcher.workers[0].is_closed


def test_workers_that_are_lost_at_their_start_end_the_search() -> None:
    launcher = FakeLauncher(None)
    with WorkerPool(launcher, 1) as pool:
        with pytest.raises(
            SearchError, match="workers do not start, 3 times: lost at the start; use fewer"
        ):
            list(pool.evaluate(asks(1, 2)))
        assert len(launcher.workers) in {3, 6}  # the second ask may have begun
    assert launcher.closed == 1


@pytest.mark.parametrize(
    ("error", "kind"), [(ModelError("m", remedy="r"), ModelError), (KeyError("k"), WorkerError)]
)
def test_an_error_at_the_start_is_raised_at_once(error: Exception, kind: type[Exception]) -> None:
    launcher = FakeLauncher(Problem.of(error))
    with WorkerPool(launcher, 1) as pool, pytest.raises(kind):
        list(pool.evaluate(asks(1)))
    assert len(launcher.workers) == 1
    assert launcher.workers[0].is_closed


def test_closing_ends_trials_that_run() -> None:
    launcher = FakeLauncher(Ready())
    pool = WorkerPool(launcher, 2)
    seen: list[Exception] = []

    def wait() -> None:
        try:
            list(pool.evaluate(asks(WAIT, WAIT)))
        except SearchError as error:
            seen.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while len(launcher.begun) < 2:
        time.sleep(0.001)
    pool.close()
    thread.join(10)
    assert not thread.is_alive()
    assert [str(each) for each in seen] == ["the workers are closed; make a new pool"]
    assert all(worker.is_closed for worker in launcher.workers)
    pool.close()
    assert launcher.closed == 1
    with pytest.raises(SearchError, match="are closed"):
        list(pool.evaluate(asks(1)))


def test_the_float_model_is_run_by_a_worker() -> None:
    with WorkerPool(FakeLauncher(Ready()), 2) as pool:
        assert pool.float_score == 0.25


@pytest.mark.parametrize("error", [SearchError("a", remedy="b"), PlanError("c")])
def test_errors_keep_their_class_and_text(error: IntactError) -> None:
    reply = decode_reply(encode(Problem.of(error)))
    assert isinstance(reply, Problem)
    with pytest.raises(type(error)) as caught:
        reply.throw()
    assert str(caught.value) == str(error)


def test_a_class_that_is_none_of_ours_is_an_error_in_a_program() -> None:
    with pytest.raises(WorkerError, match="text"):
        Problem("difflib", "text", "").throw()


@pytest.mark.parametrize("value", [0.1, -0.0, 5e-324, float("inf"), float("nan")])
def test_messages_keep_floats(value: float) -> None:
    reply = decode_reply(encode(Score(np.float64(value))))
    assert isinstance(reply, Score)
    assert np.float64(reply.value).tobytes() == np.float64(value).tobytes()
