"""Pools: they measure the candidates of a search, in this process or in workers."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from types import TracebackType
from typing import Protocol

from intact.cluster.problem import Problem
from intact.errors import IntactError, SearchError, UsageError
from intact.search.space import Candidate
from intact.search.trial import Ask, Measured, State
from intact.search.workers.messages import (
    Confirm,
    FloatScore,
    Measure,
    Ready,
    Reply,
    Request,
    Result,
    Score,
    decode_reply,
    encode,
)


class Measurer(Protocol):
    """An evaluator, as a pool uses it."""

    @property
    def float_score(self) -> float:
        """The score of the float model on all samples."""

    def measure(self, ask: Ask) -> Measured:
        """Measure a candidate."""

    def confirm(self, candidate: Candidate) -> Measured:
        """Measure a candidate on all samples, as the hardware computes it."""


class Pool(Protocol):
    """Measures candidates; a context manager that ends its workers.

    The same requests give the same results in every pool, except for the time and for trials whose
    worker died. A candidate that cannot be measured (an `IntactError`, or too little memory) is a
    failed trial with its reason; other exceptions are raised.
    """

    @property
    def float_score(self) -> float:
        """The score of the float model on all samples."""

    def evaluate(self, asks: Sequence[Ask]) -> Iterator[Measured]:
        """Measure candidates in parallel; yield the results in the order of the requests.

        Nothing starts before the first result is requested. Closing the iterator cancels what has
        not started.

        Raises:
            SearchError: Workers do not start.
        """

    def confirm(self, candidates: Sequence[Candidate]) -> Iterator[Measured]:
        """Measure candidates as the hardware computes them; otherwise like `evaluate`."""

    def close(self) -> None:
        """End the workers and remove their files; may be called twice."""

    def __enter__(self) -> Pool:
        """Return itself."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""


def failed(reason: str, seconds: float = 0.0) -> Measured:
    """Make the result of a failed trial."""
    return Measured(State.FAILED, math.nan, math.nan, 0, seconds, reason)


def attempt(run: Callable[[], Measured]) -> Measured:
    """Run a trial; an error of the candidate is a failure of the trial, not of the search.

    Raises:
        UsageError: The request is invalid.
        Exception: Any other than `IntactError` and `MemoryError`.
    """
    began = time.perf_counter()
    try:
        return run()
    except UsageError:
        raise  # the request itself is invalid
    except IntactError as error:
        reason = str(error)
    except MemoryError as error:
        reason = f"out of memory ({error})" if str(error) else "out of memory"
    return failed(reason, time.perf_counter() - began)


class InlinePool:
    """A pool that measures one candidate after the other in this process.

    Args:
        make: Makes the evaluator; called for the first measurement.
    """

    def __init__(self, make: Callable[[], Measurer]) -> None:
        self._make = make

    @cached_property
    def _measurer(self) -> Measurer:
        return self._make()

    @property
    def float_score(self) -> float:
        """The score of the float model on all samples."""
        return self._measurer.float_score

    def evaluate(self, asks: Sequence[Ask]) -> Iterator[Measured]:
        """Measure each candidate when its result is requested."""
        for ask in asks:
            yield attempt(partial(self._measurer.measure, ask))

    def confirm(self, candidates: Sequence[Candidate]) -> Iterator[Measured]:
        """Measure candidates on all samples, as the hardware computes them."""
        for candidate in candidates:
            yield attempt(partial(self._measurer.confirm, candidate))

    def close(self) -> None:
        """Drop the evaluator."""
        self.__dict__.pop("_measurer", None)

    def __enter__(self) -> InlinePool:
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


_STARTS = 3

"""Number of attempts to start a worker."""


class WorkerLostError(Exception):
    """A worker died; the message says how."""


class Worker(Protocol):
    """One worker; its methods are called by one thread at a time, except ``kill``."""

    @property
    def is_alive(self) -> bool:
        """False if the worker is known to have died."""

    def first(self) -> bytes:
        """Wait for its first message.

        Raises:
            WorkerLostError: The worker died.
        """

    def call(self, request: bytes) -> bytes:
        """Send a request and wait for the reply.

        Raises:
            WorkerLostError: The worker died.
        """

    def kill(self) -> None:
        """Kill it; calls that wait for it raise `WorkerLostError`."""

    def close(self) -> None:
        """Wait for its end and release its resources."""


class Launcher(Protocol):
    """Starts workers."""

    def open(self) -> None:
        """Prepare for workers; called once, in the caller's thread."""

    def start(self) -> Worker:
        """Start a worker; it may still be loading."""

    def close(self) -> None:
        """Remove what ``open`` made; called once, also without ``open``."""


class WorkerPool:
    """A pool of workers that a launcher starts; see `Pool`.

    Args:
        launcher: Starts the workers.
        size: Maximum number of workers; a worker is started only when a request needs one.
    """

    def __init__(self, launcher: Launcher, size: int) -> None:
        self._launcher = launcher
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
        raise SearchError("the workers died while running the float model", remedy=_REMEDY)

    def evaluate(self, asks: Sequence[Ask]) -> Iterator[Measured]:
        """Measure candidates in parallel; yield the results in the order of the requests."""
        return self._results(Measure(ask) for ask in asks)

    def confirm(self, candidates: Sequence[Candidate]) -> Iterator[Measured]:
        """Measure candidates on all samples, as the hardware computes them."""
        return self._results(Confirm(candidate) for candidate in candidates)

    def close(self) -> None:
        """End the workers, even while they measure."""
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
            self._launcher.close()

    def __enter__(self) -> WorkerPool:
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

        At most one request per worker has started and not been yielded. So the caller has processed
        (logged) a result before the next request starts in its place.
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
            self._launcher.open()
            self._is_open = True

    def _reply(self, request: bytes) -> Reply:
        """Send a request to one worker; runs in a thread of its own."""
        worker = self._take()
        began = time.perf_counter()
        try:
            reply = decode_reply(worker.call(request))
        except WorkerLostError as lost:
            self._drop(worker)
            if self._is_closed:
                raise _closed() from None
            return Result(failed(str(lost), time.perf_counter() - began))
        self._idle.append(worker)
        if isinstance(reply, Problem):
            reply.throw()
        return reply

    def _take(self) -> Worker:
        """Take an idle worker, or start a new one."""
        reason = ""
        for _ in range(_STARTS):
            worker = self._idle_one()
            if worker is not None:
                return worker
            with self._lock:
                if self._is_closed:
                    raise _closed()
                worker = self._launcher.start()
                self._workers.add(worker)
            try:
                reply = decode_reply(worker.first())
            except WorkerLostError as lost:
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
        """Remove a dead worker."""
        with self._lock:
            self._workers.discard(worker)
        worker.close()


_REMEDY = "use fewer samples, or fewer workers (1 runs in this process)"


def _closed() -> SearchError:
    return SearchError("the workers are closed", remedy="make a new pool")
