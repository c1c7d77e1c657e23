"""A pool of workers elsewhere: who does what, who died, who takes its place.

One thread for each worker writes a request and waits for the reply; with one worker lost, the
others do not notice.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from types import TracebackType
from typing import Protocol

from intact.errors import SearchError
from intact.search.space import Candidate
from intact.search.trial import Ask, Measured
from intact.search.workers.messages import (
    Confirm,
    FloatScore,
    Measure,
    Problem,
    Ready,
    Reply,
    Request,
    Result,
    Score,
    decode_reply,
    encode,
)
from intact.search.workers.pool import failed

_STARTS = 3
"""A worker that has died so often before it was ready will not become so."""


class LostError(Exception):
    """A worker is no more; the message says what became of it."""


class Worker(Protocol):
    """One worker; its methods are called by one thread at a time, but for ``kill``."""

    @property
    def is_alive(self) -> bool:
        """Whether it is known to be lost, while nothing is asked of it."""

    def first(self) -> bytes:
        """Wait for what it says once it has started.

        Raises:
            LostError: It died.
        """

    def call(self, request: bytes) -> bytes:
        """Ask, and wait for the reply.

        Raises:
            LostError: It died.
        """

    def kill(self) -> None:
        """End it now; whoever waits for it learns that it is lost."""

    def close(self) -> None:
        """Wait for its end and let go of what belongs to it."""


class Site(Protocol):
    """Where workers run."""

    def open(self) -> None:
        """Make ready for workers; called once, in the caller's thread."""

    def start(self) -> Worker:
        """Start a worker; it need not be ready yet."""

    def close(self) -> None:
        """Remove what ``open`` made; called once, also where it was not."""


class Crew:
    """A pool over workers at a site; see `Pool`.

    Args:
        site: Where they run.
        size: How many at most; no more are started than there are requests at a time.
    """

    def __init__(self, site: Site, size: int) -> None:
        self._site = site
        self._size = size
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="intact-worker")
        self._lock = threading.Lock()
        self._workers: set[Worker] = set()
        self._idle: list[Worker] = []
        self._is_open = self._is_closed = False

    @cached_property
    def float_score(self) -> float:
        """The score of the float model on all samples."""
        for reply in self._replies([FloatScore()]):
            if isinstance(reply, Score):
                return reply.value
        raise SearchError("the workers died while they ran the float model", remedy=_REMEDY)

    def evaluate(self, asks: Sequence[Ask]) -> Iterator[Measured]:
        """Yield the results in the order asked."""
        return self._results(Measure(ask) for ask in asks)

    def confirm(self, candidates: Sequence[Candidate]) -> Iterator[Measured]:
        """Yield the results on all samples, as the hardware computes them."""
        return self._results(Confirm(candidate) for candidate in candidates)

    def close(self) -> None:
        """End the workers, whatever they do."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            workers = list(self._workers)
        try:
            for worker in workers:
                worker.kill()
            self._threads.shutdown(wait=True, cancel_futures=True)
            for worker in workers:
                worker.close()
        finally:
            self._site.close()

    def __enter__(self) -> Crew:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def _results(self, requests: Iterable[Request]) -> Iterator[Measured]:
        for reply in self._replies(requests):
            if not isinstance(reply, Result):
                raise SearchError(f"a worker answered with {type(reply).__name__}")
            yield reply.measured

    def _replies(self, requests: Iterable[Request]) -> Iterator[Reply]:
        """Yield replies in the order of the requests.

        At most one request a worker has begun and not been yielded: what the caller does with a
        result (write it down) is done before the request that takes its place begins.
        """
        pending: deque[Future[Reply]] = deque()
        try:
            for request in requests:
                if len(pending) == self._size:
                    yield pending.popleft().result()
                self._prepare()
                pending.append(self._threads.submit(self._reply, encode(request)))
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def _prepare(self) -> None:
        if self._is_closed:
            raise _closed()
        if not self._is_open:
            self._site.open()
            self._is_open = True

    def _reply(self, request: bytes) -> Reply:
        """Ask one worker; runs in a thread of its own."""
        worker = self._take()
        began = time.perf_counter()
        try:
            reply = decode_reply(worker.call(request))
        except LostError as lost:
            self._drop(worker)
            if self._is_closed:
                raise _closed() from None
            return Result(failed(str(lost), time.perf_counter() - began))
        self._idle.append(worker)
        if isinstance(reply, Problem):
            reply.throw()
        return reply

    def _take(self) -> Worker:
        """Return a worker that nobody else has, a new one where there is none."""
        reason = ""
        for _ in range(_STARTS):
            worker = self._idle_one()
            if worker is not None:
                return worker
            with self._lock:
                if self._is_closed:
                    raise _closed()
                worker = self._site.start()
                self._workers.add(worker)
            try:
                reply = decode_reply(worker.first())
            except LostError as lost:
                self._drop(worker)
                reason = str(lost)
                continue
            if isinstance(reply, Problem):
                reply.throw()
            if isinstance(reply, Ready):
                return worker
        if self._is_closed:
            raise _closed()
        raise SearchError(f"workers do not start, {_STARTS} times: {reason}", remedy=_REMEDY)

    def _idle_one(self) -> Worker | None:
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None or worker.is_alive:
                return worker
            self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        """Let go of a worker that is lost."""
        with self._lock:
            self._workers.discard(worker)
        worker.close()


_REMEDY = "use fewer workers, fewer samples, or none (one process)"


def _closed() -> SearchError:
    return SearchError("the workers are closed", remedy="make a new pool")
