"""Gives tasks to workers that have opened one job, and does lost ones again.

Whoever iterates over the results gives out the tasks, so samples are read no faster than they are
worked on, and nothing else in this program waits. What a lost worker had is done again by others.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from intact.errors import ClusterError, UsageError
from intact.workers.job import LostError, WorkerJob

MOST_WORKERS = 1024
_STARTS = 3
"""Attempts to start each worker."""

Item = TypeVar("Item")
Reply: TypeAlias = bytes | Exception
Deliver: TypeAlias = Callable[[Reply], None]


class Worker(Protocol):
    """One worker, as a pool sees it."""

    @property
    def is_alive(self) -> bool:
        """False if it is known to have died; that is delivered as well."""

    def send(self, message: bytes) -> None:
        """Send a message; the reply is delivered when it is there."""

    def kill(self) -> None:
        """End it, even while it works: it has nothing to save."""

    def close(self) -> None:
        """Wait for its end, and release what it has."""


class Launcher(Protocol):
    """Starts workers of one kind."""

    @property
    def patience(self) -> float | None:
        """Seconds to wait for a first worker; None for any time."""

    @property
    def remedy(self) -> str:
        """What to do if workers are lost."""

    def open(self, job: WorkerJob, workers: int) -> None:
        """Prepare for so many workers at most; called once, before the first starts."""

    def start(self, deliver: Deliver) -> Worker:
        """Start a worker; it may still be loading the job.

        Args:
            deliver: Called with its hello first, then with each reply in the order of the messages,
                and with a `LostError` at its end. It may be called in another thread.
        """

    def close(self) -> None:
        """Remove what ``open`` made; called once, also without ``open``."""


class InProcessLauncher:
    """Launches workers that are this process: a message is answered when it is sent.

    Args:
        threads: Threads of each.
    """

    patience = None
    remedy = ""

    def __init__(self, threads: int = 0) -> None:
        self._threads = threads
        self._job: WorkerJob | None = None

    def open(self, job: WorkerJob, workers: int) -> None:
        """Keep the job: it is not saved."""
        del workers
        self._job = job

    def start(self, deliver: Deliver) -> Worker:
        """Open the job."""
        if self._job is None:
            raise RuntimeError("a worker is started before its launcher is open")
        return _WorkerHere(self._job, self._threads, deliver)

    def close(self) -> None:
        """Drop the job."""
        self._job = None


class _WorkerHere:
    is_alive = True

    def __init__(self, job: WorkerJob, threads: int, deliver: Deliver) -> None:
        self._deliver = deliver
        try:
            self._answer, hello = job.open(threads)
        except Exception as error:
            deliver(error)
        else:
            deliver(hello)

    def send(self, message: bytes) -> None:
        try:
            reply: Reply = self._answer(message)
        except Exception as error:
            reply = error
        self._deliver(reply)

    def kill(self) -> None: ...

    def close(self) -> None: ...


class Pool:
    """Workers that have opened one job; a context manager that ends them.

    Args:
        launcher: Starts them.
        job: What they open.
        workers: How many there are at most. One is started when a task needs it, or by `start`.
        tries: Workers that one task may cost, before it is given up.
        ahead: Tasks at one worker: while it does one, the next is on its way. It is one while there
            are workers that have not started.

    Attributes:
        workers: How many workers there are at most.

    Raises:
        UsageError: The number of workers is out of range.
    """

    def __init__(
        self, launcher: Launcher, job: WorkerJob, workers: int, *, tries: int = 1, ahead: int = 1
    ) -> None:
        if not 1 <= workers <= MOST_WORKERS:
            raise UsageError(f"{workers} workers", remedy=f"give 1 to {MOST_WORKERS}")
        self.workers = workers
        self._launcher, self._job = launcher, job
        self._tries, self._ahead = tries, ahead
        self._members: list[_Member] = []
        # All replies come through one queue into the caller's thread, so that nothing here needs a
        # lock.
        self._events: SimpleQueue[tuple[_Member, Reply]] = SimpleQueue()
        self._failures, self._most = 0, 1  # failed starts in a row; most workers at a time
        self._is_open = self._is_closed = False

    def start(self) -> None:
        """Start all workers, side by side."""
        while len(self._members) < self.workers:
            self._start()

    def results(
        self,
        items: Iterable[Item],
        message: Callable[[Item, bytes], bytes],
        *,
        in_order: bool = False,
    ) -> Iterator[tuple[Item, bytes | LostError]]:
        """Yield each item with the answer to its message.

        Nothing starts before the first is asked for. Leaving the iterator gives up what has not
        started.

        Args:
            items: Taken when a worker has room for one.
            message: Makes the message of an item, for a worker that said this hello.
            in_order: Yield in the order of the items. No more of them are begun and not yielded
                than there are workers: a result was dealt with before an item takes its place.
                Otherwise results are yielded as they come.

        Raises:
            ClusterError: No worker starts.
            Exception: What a worker raised: an `IntactError`, or else a `WorkerError`.
        """
        if self._is_closed:
            raise _closed_error()
        run = _Run(items, self.workers if in_order else None)
        try:
            while True:
                yield from run.ready()
                self._give(run, message)
                if run.is_done:
                    return
                self._take()
        except KeyboardInterrupt:  # it may have cut a message, or a reply may be lost
            for member in [each for each in self._members if each.tasks]:
                self._drop(member)
            raise

    def close(self) -> None:
        """End the workers, even while they work; may be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        members, self._members = self._members, []
        try:
            for member in members:
                # All are killed before any is waited for.
                member.worker.kill()
            for member in members:
                member.worker.close()
        finally:
            self._launcher.close()

    def __enter__(self) -> Pool:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _start(self) -> None:
        if self._is_closed:
            raise _closed_error()
        if not self._is_open:
            self._is_open = True
            self._launcher.open(self._job, self.workers)
        member = _Member()
        member.worker = self._launcher.start(lambda reply: self._events.put((member, reply)))
        self._members.append(member)
        self._most = max(self._most, len(self._members))

    def _give(self, run: _Run[Item], message: Callable[[Item, bytes], bytes]) -> None:
        """Give tasks to workers that have room, first to those with the least; start others."""
        free = sum(not member.tasks for member in self._members)
        # One is started only for a task that no worker is free for.
        while len(self._members) < self.workers and self._may_start and run.has(free + 1):
            self._start()
            free += 1
        is_starting = any(member.hello is None for member in self._members)
        # First one task for each, then a second: nobody waits while another has two. While some are
        # starting they may take the second ones.
        for room in range(1 if is_starting else self._ahead):
            for member in tuple(self._members):
                if len(member.tasks) == room and member.can_work:
                    task = run.take()
                    if task is None:
                        return
                    content = message(task.item, member.hello or b"")
                    member.tasks.append(task)
                    member.worker.send(content)

    def _take(self) -> None:
        """Wait for the next reply of any worker.

        Raises:
            ClusterError: There is none for long and no worker has started, or none starts at all.
        """
        if not self._members:
            failures, self._failures = self._failures, 0
            raise ClusterError(
                f"workers do not start, {failures} times; the last: {self._reason}",
                remedy=self._launcher.remedy,
            )
        patience = self._launcher.patience
        # Work may take any time; only the start of a first worker is waited for with patience.
        if any(member.tasks for member in self._members):
            patience = None
        try:
            member, reply = self._events.get(timeout=patience)
        except Empty:
            raise ClusterError(
                f"no worker has started in {patience} s: the cluster is busy or too small",
                remedy="wait until it is free, or ask for fewer --workers",
            ) from None
        if self._is_closed:
            raise _closed_error()
        # A reply of a worker that was dropped meanwhile.
        if member not in self._members:
            return
        if isinstance(reply, LostError):
            self._lose(member, reply)
        elif member.tasks:
            task = member.tasks.popleft()
            task.run.finish(task, reply)
        elif isinstance(reply, Exception):  # the job cannot be opened
            self._drop(member)
            raise reply
        else:
            member.hello, self._failures = reply, 0

    def _lose(self, member: _Member, reason: LostError) -> None:
        """Take back what a lost worker had; the first was being done."""
        self._drop(member)
        if member.hello is None:
            self._failures += 1
            self._reason = str(reason)
        for task in tuple(member.tasks)[:1]:
            task.lost += 1
            if task.lost == self._tries:
                # The first task may be the reason; those behind it were not begun.
                member.tasks.popleft()
                task.run.finish(task, reason)
        # In front of the others and in their order, so that samples come back in order with little
        # waiting.
        for task in reversed(member.tasks):
            task.run.take_back(task)

    def _drop(self, member: _Member) -> None:
        self._members.remove(member)
        member.worker.kill()
        member.worker.close()

    @property
    def _may_start(self) -> bool:
        return self._failures < _STARTS * self._most


class _Member:
    """A worker of a pool: its hello, once it has opened the job, and the tasks that it has."""

    worker: Worker

    def __init__(self) -> None:
        self.hello: bytes | None = None
        self.tasks: deque[_Task[Any]] = deque()

    @property
    def can_work(self) -> bool:
        return self.hello is not None and self.worker.is_alive


class _Task(Generic[Item]):
    """An item of a run: its number, and how many workers died of it."""

    def __init__(self, run: _Run[Item], number: int, item: Item) -> None:
        self.run, self.number, self.item, self.lost = run, number, item, 0


class _Run(Generic[Item]):
    """One pass over items: what waits, what workers have, what is done.

    Args:
        items: The items.
        window: How many may be read and not yielded, where their order is kept; None where not.
    """

    def __init__(self, items: Iterable[Item], window: int | None) -> None:
        self._items = iter(items)
        self._window = window
        self._waiting: deque[_Task[Item]] = deque()
        self._done: dict[int, tuple[Item, Reply]] = {}
        self._read = self._yielded = self._at_work = 0
        self._is_read = False

    @property
    def is_done(self) -> bool:
        """Whether all is done; what is ready is yielded before."""
        return not self._at_work and not self.has(1)

    def has(self, count: int) -> bool:
        """Read items until so many wait; tell whether they do."""
        while len(self._waiting) < count and not self._is_read:
            if self._window is not None and self._read - self._yielded >= self._window:
                break
            for item in self._items:
                self._waiting.append(_Task(self, self._read, item))
                self._read += 1
                break
            else:
                self._is_read = True
        return len(self._waiting) >= count

    def take(self) -> _Task[Item] | None:
        """Return the next task for a worker; None if there is none at this time."""
        if not self.has(1):
            return None
        self._at_work += 1
        return self._waiting.popleft()

    def take_back(self, task: _Task[Item]) -> None:
        """Take back a task that is not done: it is the next."""
        self._at_work -= 1
        self._waiting.appendleft(task)

    def finish(self, task: _Task[Item], reply: Reply) -> None:
        """Take the reply to a task."""
        self._at_work -= 1
        self._done[task.number] = task.item, reply

    def ready(self) -> Iterator[tuple[Item, bytes | LostError]]:
        """Yield what may be yielded now."""
        while self._done:
            # Without an order what was done first is yielded first.
            number = next(iter(self._done)) if self._window is None else self._yielded
            if number not in self._done:
                return
            item, reply = self._done.pop(number)
            self._yielded += 1
            if isinstance(reply, Exception) and not isinstance(reply, LostError):
                raise reply
            yield item, reply


def cores() -> int:
    """Count the processors available to this process."""
    if hasattr(os, "sched_getaffinity"):
        # A container or `taskset` may allow fewer than there are.
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _closed_error() -> ClusterError:
    return ClusterError("the workers are closed", remedy="make a new pool")
