"""Work in shards: each is done by some worker, and again by another if that one is lost.

A worker is an actor of Ray. It loads a job once, then answers one message after the other. Two
shards wait at each worker, so that none idles while the next is on its way; one, while there are
workers that have not started.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec

from intact.cluster.actors import Actors, LostError, Savable, kill, reply_of, unpacked
from intact.cluster.connection import Connection, ray_module
from intact.cluster.problem import Problem
from intact.errors import ClusterError, UsageError

MOST_WORKERS = 1024
_TRIES = 3
"""Workers that one shard may cost."""
_STARTS = 3
"""Attempts to start one worker."""
_WAITING = 2
"""Shards at one worker: one is done, the other is there when it ends."""
_PATIENCE = 120
"""Seconds to wait for a first worker."""
_PACKAGES = ("numpy", "onnxruntime")
"""What results depend on, besides intact itself and the processor."""

Answer = Callable[[bytes], bytes]
Item = TypeVar("Item")


class _Done(msgspec.Struct, tag=True, frozen=True):
    content: bytes


_replies = msgspec.msgpack.Decoder(_Done | Problem)


class ShardMap:
    """Workers that have loaded one job; a context manager that ends them.

    Args:
        connection: To the cluster; it is open.
        job: What they load.
        opener: Loads the job: ``module:function`` (folder, threads) -> a function that answers a
            message with another, and an empty message with what is to be known of the worker.
        workers: How many; None for one on each processor.
        threads: Of each; 0 divides the processors of the cluster.

    Attributes:
        workers: How many there are.

    Raises:
        UsageError: The number of workers is out of range.
    """

    def __init__(
        self,
        connection: Connection,
        job: Savable,
        opener: str,
        *,
        workers: int | None = None,
        threads: int = 0,
    ) -> None:
        processors = max(1, connection.processors)
        self.workers = min(processors, MOST_WORKERS) if workers is None else workers
        if not 1 <= self.workers <= MOST_WORKERS:
            raise UsageError(f"{workers} workers", remedy=f"give 1 to {MOST_WORKERS}")
        self._opener = opener
        self._actors = Actors(connection, _Actor, job, workers=self.workers, threads=threads)
        self._alive: list[_Worker[Any]] = []

    def results(
        self, items: Iterable[Item], message: Callable[[Item, bytes], bytes]
    ) -> Iterator[tuple[Item, bytes]]:
        """Yield each item with the reply to its message, as they come.

        Args:
            items: Taken when a worker has room for one.
            message: Of an item, for a worker that said that of itself: its answer to an empty
                message.

        Raises:
            ClusterError: No worker starts or all are lost, one has another version, or a shard
                costs several workers.
            IntactError: What a worker raised.
        """
        tasks = _Tasks(items)
        starting = [self._started() for _ in range(self.workers)]
        try:
            yield from self._results(tasks, starting, message)
        finally:
            self.close()

    def close(self) -> None:
        """End the workers, even while they work."""
        if not self._alive:
            return
        for worker in self._alive:
            worker.kill()
        self._alive.clear()
        self._actors.close()

    def __enter__(self) -> ShardMap:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the workers."""
        self.close()

    def _results(
        self,
        tasks: _Tasks[Item],
        starting: list[_Worker[Item]],
        message: Callable[[Item, bytes], bytes],
    ) -> Iterator[tuple[Item, bytes]]:
        ready: list[_Worker[Item]] = []
        starts, reason = _STARTS * len(starting), ""
        while True:
            # While others start, none is given what they could do.
            _give(tasks, ready, message, most=1 if starting else _WAITING)
            busy = [worker for worker in ready if worker.tasks]
            if not busy and tasks.is_done:
                return
            if not ready and not starting:
                raise ClusterError(
                    f"every worker of the cluster was lost; the last: {reason}", remedy=_REMEDY
                )
            worker, reply = self._next(busy, starting)
            if worker in starting:
                starting.remove(worker)
            if isinstance(reply, LostError):
                reason = str(reply)
                self._drop(worker)
                if worker in ready:
                    ready.remove(worker)
                tasks.take_back(worker.tasks, reason)
                starts -= 1
                if starts > 0:
                    starting.append(self._started())
            elif worker.tasks:
                yield worker.tasks.popleft().item, reply
            else:
                starts = max(starts, _STARTS)  # workers do start
                worker.said = reply
                ready.append(worker)

    def _next(
        self, busy: list[_Worker[Item]], starting: list[_Worker[Item]]
    ) -> tuple[_Worker[Item], bytes | LostError]:
        """Wait for the next reply of any worker.

        Raises:
            ClusterError: There is none for long, and no worker has started.
        """
        by_reference = {worker.waits_for: worker for worker in (*busy, *starting)}
        patience = None if busy else _PATIENCE
        found, _ = ray_module().wait(list(by_reference), num_returns=1, timeout=patience)
        if not found:
            raise ClusterError(
                f"no worker has started in {_PATIENCE} s: the cluster is busy or too small",
                remedy="wait until it is free, or ask for fewer --workers",
            )
        worker = by_reference[found[0]]
        return worker, worker.reply()

    def _started(self) -> _Worker[Any]:
        actors = self._actors
        worker: _Worker[Any] = _Worker(
            actors.start(),
            versions(),
            actors.files,
            actors.owner,
            self._opener,
            actors.threads,
        )
        self._alive.append(worker)
        return worker

    def _drop(self, worker: _Worker[Any]) -> None:
        worker.kill()
        self._alive.remove(worker)


_REMEDY = "check the nodes (intact on each, and enough memory), or leave out --cluster"


class _Task(Generic[Item]):
    def __init__(self, item: Item) -> None:
        self.item = item
        self.lost = 0  # workers that died of it


class _Tasks(Generic[Item]):
    """What is to be done: what came back first, then what is new."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = iter(items)
        self._back: deque[_Task[Item]] = deque()
        self._is_read = False

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to take; what workers have may come back."""
        return self._is_read and not self._back

    def take(self) -> _Task[Item] | None:
        """Return the next one; None if there is none at this time."""
        if self._back:
            return self._back.popleft()
        for item in self._items:
            return _Task(item)
        self._is_read = True
        return None

    def take_back(self, tasks: Iterable[_Task[Item]], reason: str) -> None:
        """Take back what a lost worker had; the first was being done.

        Raises:
            ClusterError: That has cost several workers.
        """
        back = list(tasks)
        for task in back[:1]:
            task.lost += 1
            if task.lost == _TRIES:
                raise ClusterError(
                    f"{_TRIES} workers were lost at the same samples; the last: {reason}",
                    remedy=_REMEDY,
                )
        self._back.extendleft(reversed(back))


def _give(
    tasks: _Tasks[Item],
    ready: list[_Worker[Item]],
    message: Callable[[Item, bytes], bytes],
    *,
    most: int,
) -> None:
    """Give shards to workers that have room, first to those that have the least."""
    for room in range(most):
        for worker in ready:
            if len(worker.tasks) == room:
                task = tasks.take()
                if task is None:
                    return
                worker.give(task, message(task.item, worker.said))


class _Worker(Generic[Item]):
    """An actor, and the shards that it has."""

    def __init__(self, actor: Any, wanted: dict[str, str], files: Any, *how: str | int) -> None:
        self._actor = actor
        self.tasks: deque[_Task[Item]] = deque()
        self.said = b""
        self._references = deque([actor.open.remote(wanted, files, *how)])

    @property
    def waits_for(self) -> Any:
        """The reference of its next reply."""
        return self._references[0]

    def give(self, task: _Task[Item], message: bytes) -> None:
        """Send a shard."""
        self.tasks.append(task)
        self._references.append(self._actor.answer.remote(message))

    def reply(self) -> bytes | LostError:
        """Return the reply that is there.

        Raises:
            IntactError: What the worker raised.
        """
        try:
            reply: _Done | Problem = _replies.decode(reply_of(self._references.popleft()))
        except LostError as error:
            return error
        if isinstance(reply, Problem):
            reply.throw()
        return reply.content

    def kill(self) -> None:
        """End the actor."""
        kill(self._actor)


def versions() -> dict[str, str]:
    """Return the versions of what results depend on, by package."""
    import intact

    found = {name: str(import_module(name).__version__) for name in _PACKAGES}
    return {"intact": intact.__version__} | found


class _Actor:
    """The worker on a node."""

    def __init__(self) -> None:
        self._answer: Answer | None = None

    def open(
        self,
        wanted: dict[str, str],
        files: dict[str, bytes],
        owner: str,
        opener: str,
        threads: int,
    ) -> bytes:
        """Load the job, and say hello."""

        def opened() -> bytes:
            _refuse_other_versions(wanted, _machine())
            module, _, function = opener.partition(":")
            with unpacked(files, owner) as folder:
                self._answer = answer = getattr(import_module(module), function)(folder, threads)
            said: bytes = answer(b"")
            return said

        return _encoded(opened)

    def answer(self, message: bytes) -> bytes:
        """Answer a message."""
        answer = self._answer
        if answer is None:
            return _encoded(lambda: _raise("a worker got a shard before its job"))
        return _encoded(lambda: answer(message))


def _machine() -> str:
    return os.uname().nodename if hasattr(os, "uname") else "a worker"


def _refuse_other_versions(wanted: dict[str, str], machine: str) -> None:
    for name, own in versions().items():
        if own != wanted.get(name):
            raise ClusterError(
                f"{machine}: a worker has {name} {own}, this program {wanted.get(name)}: their "
                "results could differ",
                remedy=f"install {name} {wanted.get(name)} on every node",
            )


def _encoded(work: Callable[[], bytes]) -> bytes:
    try:
        return msgspec.msgpack.encode(_Done(work()))
    except Exception as error:
        return msgspec.msgpack.encode(Problem.of(error))


def _raise(text: str) -> bytes:
    raise RuntimeError(text)
