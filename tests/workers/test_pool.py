"""The supervision of workers, with workers that are threads of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from intact.errors import ClusterError, DataError, IntactError, ModelError, PlanError, SearchError
from intact.workers.job import (
    Done,
    LostError,
    Problem,
    WorkerError,
    WorkerJob,
    decode_reply,
    encode,
)
from intact.workers.pool import Deliver, InProcessLauncher, Pool, Reply
from intact.workers.processes import ProcessLauncher
from tests.workers.jobs import ALWAYS, ONCE, REFUSE, FakeJob

LOST, WAIT = b"lost", b"wait"
"""Messages: the worker is lost, or waits until it is killed."""
JOB = FakeJob(Path())


class FakeWorker:
    """Answers with the message; its hello comes first."""

    def __init__(self, launcher: FakeLauncher, deliver: Deliver) -> None:
        self.launcher, self.is_alive, self.is_closed = launcher, True, False
        self.killed = threading.Event()
        self.messages: SimpleQueue[bytes | None] = SimpleQueue()
        deliver(launcher.hello)
        self.thread = threading.Thread(target=self.work, args=(deliver,))
        self.thread.start()

    def work(self, deliver: Deliver) -> None:
        while (message := self.messages.get()) is not None:
            self.launcher.begun.append(message)
            if message == WAIT:
                self.killed.wait(20)
            if message in {LOST, WAIT}:
                self.is_alive = False
                deliver(LostError("lost at work"))
                return
            time.sleep(self.launcher.seconds(message))
            deliver(message.upper())

    def send(self, message: bytes) -> None:
        self.messages.put(message)

    def kill(self) -> None:
        self.killed.set()

    def close(self) -> None:
        self.messages.put(None)
        self.thread.join(10)
        self.is_closed = True


class FakeLauncher:
    """Starts fakes, and remembers them."""

    patience = None
    remedy = "do it"

    def __init__(
        self, hello: Reply = b"hello", seconds: Callable[[bytes], float] = lambda _: 0.0
    ) -> None:
        self.hello, self.seconds = hello, seconds
        self.workers: list[FakeWorker] = []
        self.begun: list[bytes] = []
        self.opened: list[int] = []
        self.closed = 0

    def open(self, job: WorkerJob, workers: int) -> None:
        assert job is JOB
        self.opened.append(workers)

    def start(self, deliver: Deliver) -> FakeWorker:
        self.workers.append(FakeWorker(self, deliver))
        return self.workers[-1]

    def close(self) -> None:
        self.closed += 1


def results(
    pool: Pool, messages: Iterable[bytes], *, in_order: bool = True
) -> Iterator[tuple[bytes, bytes | LostError]]:
    return pool.results(messages, lambda message, _: message, in_order=in_order)


def done(pool: Pool, messages: Iterable[bytes]) -> list[bytes | LostError]:
    return [reply for _, reply in results(pool, messages)]


def numbers(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


@pytest.mark.parametrize("size", [1, 2, 3, 16])
def test_order_does_not_depend_on_who_is_first(size: int) -> None:
    slow_first = FakeLauncher(seconds=lambda message: 0.002 * (12 - int(message)))
    with Pool(slow_first, JOB, size) as pool:
        assert done(pool, numbers(12)) == numbers(12)
        found = dict(results(pool, numbers(12), in_order=False))
        assert sorted(found) == sorted(numbers(12))
    assert 1 <= len(slow_first.workers) <= min(size, 12)


def test_no_more_workers_than_tasks_and_none_before_the_first() -> None:
    launcher = FakeLauncher(seconds=lambda _: 0.05)
    with Pool(launcher, JOB, 9) as pool:
        waiting = results(pool, numbers(2))
        assert done(pool, []) == []
        assert (launcher.opened, launcher.workers) == ([], [])
        assert len(list(waiting)) == 2
        assert (launcher.opened, len(launcher.workers)) == ([9], 2)
        done(pool, numbers(2))
        assert (launcher.opened, len(launcher.workers)) == ([9], 2)  # the same again
        done(pool, numbers(3))
        assert len(launcher.workers) == 3
        pool.start()
        assert len(launcher.workers) == 9


@pytest.mark.parametrize("size", [1, 3])
def test_what_is_yielded_is_dealt_with_before_its_place_is_taken(size: int) -> None:
    launcher = FakeLauncher()
    with Pool(launcher, JOB, size) as pool:
        for count, _ in enumerate(results(pool, numbers(8)), 1):
            time.sleep(0.02)
            assert len(launcher.begun) <= count + size - 1


def test_tasks_are_read_when_there_is_room_for_them() -> None:
    read = []

    def items() -> Iterator[bytes]:
        for each in numbers(40):
            read.append(each)
            yield each

    launcher = FakeLauncher()
    with Pool(launcher, JOB, 2, ahead=2) as pool:
        for count, _ in enumerate(results(pool, items(), in_order=False), 1):
            assert len(read) <= count + 2 * 2
    assert len(read) == 40


def test_what_has_not_begun_is_given_up() -> None:
    launcher = FakeLauncher(seconds=lambda _: 0.02)
    with Pool(launcher, JOB, 1) as pool:
        left = results(pool, numbers(3))
        next(left)
        left.close()  # type: ignore[attr-defined]
        assert done(pool, [b"x"]) == [b"X"]
        assert launcher.begun == [b"0", b"x"]


def test_passes_may_be_interleaved() -> None:
    with Pool(FakeLauncher(), JOB, 2) as pool:
        one, other = results(pool, numbers(6)), results(pool, [b"a", b"b", b"c"])
        found = [next(each)[1] for each in (one, other, one, other)]
        assert found == [b"0", b"A", b"1", b"B"]
        assert [reply for _, reply in other] == [b"C"]
        assert [reply for _, reply in one] == numbers(6)[2:]


def test_a_lost_worker_is_replaced() -> None:
    launcher = FakeLauncher()
    with Pool(launcher, JOB, 1) as pool:
        one, lost, again, two = done(pool, [b"1", LOST, LOST, b"2"])
        assert (one, two) == (b"1", b"2")
        assert str(lost) == str(again) == "lost at work"
        assert len(launcher.workers) == 3
        assert [worker.is_closed for worker in launcher.workers] == [True, True, False]
    assert all(worker.is_closed for worker in launcher.workers)


def test_what_waits_at_a_lost_worker_is_done_by_others() -> None:
    """A task costs as many workers as it may; those behind it cost none."""
    launcher = FakeLauncher()
    with Pool(launcher, JOB, 1, tries=3, ahead=2) as pool:
        found = dict(results(pool, [b"1", LOST, *numbers(4)], in_order=False))
    assert isinstance(found.pop(LOST), LostError)
    assert found == {each: each for each in [b"1", *numbers(4)]}
    assert launcher.begun.count(LOST) == 3


def test_one_that_is_found_lost_costs_no_task() -> None:
    launcher = FakeLauncher()
    with Pool(launcher, JOB, 1) as pool:
        done(pool, [b"1"])
        launcher.workers[0].is_alive = False
        pool._events.put((pool._members[0], LostError("meanwhile")))
        assert done(pool, [b"1"]) == [b"1"]
        assert len(launcher.workers) == 2
        assert launcher.workers[0].is_closed


def test_workers_that_are_lost_at_their_start_end_the_work() -> None:
    launcher = FakeLauncher(LostError("lost at the start"))
    with Pool(launcher, JOB, 2) as pool:
        for _ in range(2):
            launcher.workers.clear()
            with pytest.raises(
                ClusterError, match=r"workers do not start, .*; the last: lost at the start; do it"
            ):
                done(pool, numbers(1))
            assert len(launcher.workers) == 3
    assert launcher.closed == 1


@pytest.mark.parametrize("error", [ModelError("m", remedy="r"), KeyError("k")])
def test_an_error_at_the_start_is_raised_at_once(error: Exception) -> None:
    launcher = FakeLauncher(error)
    with Pool(launcher, JOB, 1) as pool, pytest.raises(type(error)):
        done(pool, numbers(1))
    assert len(launcher.workers) == 1
    assert launcher.workers[0].is_closed


def test_closing_ends_work() -> None:
    launcher = FakeLauncher()
    pool = Pool(launcher, JOB, 2)
    waiting = results(pool, [b"1", WAIT, WAIT])
    next(waiting)
    pool.close()
    assert all(worker.is_closed for worker in launcher.workers)
    pool.close()
    assert launcher.closed == 1
    for left in (waiting, results(pool, [b"1"])):
        with pytest.raises(ClusterError, match="the workers are closed; make a new pool"):
            list(left)


def test_an_interrupt_leaves_nothing_that_is_waited_for() -> None:
    """Ctrl-C while a worker of this process works: what it was at is never answered."""

    class Interrupted(FakeJob):
        def _answer(self, message: bytes) -> bytes:
            if message == b"stop":
                raise KeyboardInterrupt
            return message.upper()

    with Pool(InProcessLauncher(), Interrupted(Path()), 1) as pool:
        with pytest.raises(KeyboardInterrupt):
            done(pool, [b"a", b"stop"])
        assert done(pool, [b"b"]) == [b"B"]


@pytest.mark.parametrize(
    "launcher", [InProcessLauncher(1), ProcessLauncher(1)], ids=["here", "processes"]
)
def test_a_job_is_opened_and_answers(
    launcher: InProcessLauncher | ProcessLauncher, tmp_path: Path
) -> None:
    hellos = set()

    def message(item: bytes, hello: bytes) -> bytes:
        hellos.add(hello)
        return item

    big = b"x" * 3_000_000  # more than a pipe holds
    with Pool(launcher, FakeJob(tmp_path), 1, ahead=2) as pool:
        found = [reply for _, reply in pool.results([b"a", big, big, b""], message)]
        assert found == [b"A", big.upper(), big.upper(), b""]
        assert hellos == {b"1 threads"}
        with pytest.raises(DataError, match="x: wrong; give another data") as caught:
            done(pool, [REFUSE])
        assert caught.value.with_flags.endswith("give another --data")
        assert done(pool, [b"b"]) == [b"B"]


def test_a_task_of_a_lost_process_is_done_again(tmp_path: Path) -> None:
    with Pool(ProcessLauncher(1), FakeJob(tmp_path), 1, tries=2) as pool:
        assert done(pool, [b"a", ONCE]) == [b"A", ONCE.upper()]
        (lost,) = done(pool, [ALWAYS])
    assert str(lost).startswith("the worker died (signal 9")


@pytest.mark.parametrize("error", [SearchError("a", remedy="b"), PlanError("c")])
def test_errors_keep_their_class_and_text(error: IntactError) -> None:
    found = decode_reply(encode(Problem.of(error)))
    assert type(found) is type(error)
    assert str(found) == str(error)


def test_a_class_that_is_none_of_ours_is_an_error_in_a_program() -> None:
    found = Problem("difflib", "text", "where").error()
    assert isinstance(found, WorkerError)
    assert str(found) == "text"
    assert found.__notes__ == ["In the worker:\nwhere"]
    assert decode_reply(encode(Done(b"x"))) == b"x"
