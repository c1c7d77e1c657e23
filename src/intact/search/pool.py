"""Measures the candidates of a search in this process, in others, or on Ray."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from intact.errors import IntactError, UsageError
from intact.search.measuring.trial_data import TrialData
from intact.search.space import Candidate
from intact.search.trial import Ask, State, TrialResult
from intact.workers.job import LostError, Opened, WorkerJob
from intact.workers.pool import InProcessLauncher, Launcher, Pool, cores
from intact.workers.processes import ProcessLauncher
from intact.workers.ray_ import Connection, RayLauncher


class Measurer(Protocol):
    """An evaluator, as a worker uses it."""

    def measure(self, ask: Ask) -> TrialResult:
        """Measure a candidate."""

    def confirm(self, candidate: Candidate) -> TrialResult:
        """Measure a candidate on all samples, as the hardware computes it."""


class _Request(msgspec.Struct, frozen=True):
    ask: Ask
    confirms: bool = False


def _plain(value: object) -> Any:
    """Convert a NumPy scalar to a Python number, with every bit."""
    # Scores may be NumPy's numbers, which msgpack has no form for.
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a message cannot hold a {type(value).__name__}")


_encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_decode_request = msgspec.msgpack.Decoder(_Request).decode
_decode_measured = msgspec.msgpack.Decoder(TrialResult).decode


class TrialJob:
    """Measures candidates on trial data; see `intact.workers.job.WorkerJob`."""

    def __init__(self, trial_data: TrialData) -> None:
        self._data = trial_data

    def save(self, folder: Path) -> None:
        """Write the trial data.

        Raises:
            UsageError: The metric is a function that cannot be imported by name.
        """
        # Imported late, because a search with one worker writes no file.
        from intact.search.measuring.trial_data_file import save_trial_data

        save_trial_data(self._data, folder)

    @classmethod
    def load(cls, folder: Path) -> TrialJob:
        """Read the trial data that ``save`` wrote."""
        from intact.search.measuring.trial_data_file import load_trial_data

        return cls(load_trial_data(folder))

    def open(self, threads: int) -> Opened:
        """Make an evaluator of this process."""
        from intact.search.measuring.evaluator import Evaluator

        return Opened(answers(Evaluator(self._data, threads=threads)))


def answers(measurer: Measurer) -> Callable[[bytes], bytes]:
    """Return what answers the messages of a `TrialPool`."""

    def answer(message: bytes) -> bytes:
        request = _decode_request(message)
        return _encode(_attempt(measurer, request))

    return answer


def _attempt(measurer: Measurer, request: _Request) -> TrialResult:
    """Run a trial; an error of the candidate is a failure of the trial, not of the search.

    Raises:
        UsageError: The request is invalid.
        Exception: Any other than `IntactError` and `MemoryError`.
    """
    began = time.perf_counter()
    try:
        if request.confirms:
            return measurer.confirm(request.ask.candidate)
        return measurer.measure(request.ask)
    except UsageError:
        raise  # the request itself is invalid
    # Other exceptions are faults of the program and end the search.
    except IntactError as error:
        reason = str(error)
    # A wide candidate may need more than a narrow one; the others go on.
    except MemoryError as error:
        reason = f"out of memory ({error})" if str(error) else "out of memory"
    return _failed(reason, time.perf_counter() - began)


def _failed(reason: str, seconds: float = 0.0) -> TrialResult:
    return TrialResult(State.FAILED, math.nan, math.nan, 0, seconds, reason)


class TrialPool:
    """Measures candidates; a context manager that ends its workers.

    The same requests give the same results with every launcher and number of workers, except for
    the time and for trials whose worker died: these have failed, for they may be the reason. A
    candidate that cannot be measured (an `IntactError`, or too little memory) is a failed trial
    with its reason; other exceptions are raised.

    Args:
        launcher: Starts workers.
        job: What they open.
        workers: Candidates measured in parallel.
        connection: Closed with the pool; None for no cluster.

    Raises:
        UsageError: The number of workers is out of range.
    """

    def __init__(
        self,
        launcher: Launcher,
        job: WorkerJob,
        workers: int = 1,
        connection: Connection | None = None,
    ) -> None:
        self._pool = Pool(launcher, job, workers)
        self._connection = connection

    def evaluate(self, asks: Sequence[Ask]) -> Iterator[TrialResult]:
        """Measure candidates in parallel; yield the results in the order of the requests.

        Nothing starts before the first result is requested, and no trial starts in the place of
        another before the caller has dealt with its result. Closing the iterator gives up what has
        not started.

        Raises:
            ClusterError: Workers do not start.
        """
        return self._results([_Request(ask) for ask in asks])

    def confirm(self, candidates: Sequence[Candidate]) -> Iterator[TrialResult]:
        """Measure candidates as the hardware computes them; otherwise like `evaluate`."""
        return self._results([_Request(Ask(each), confirms=True) for each in candidates])

    def close(self) -> None:
        """End the workers and remove their files; may be called twice."""
        self._pool.close()
        if self._connection is not None:
            self._connection.close()

    def __enter__(self) -> TrialPool:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pool."""
        self.close()

    def _results(self, requests: Sequence[_Request]) -> Iterator[TrialResult]:
        began: dict[int, float] = {}

        # Called when a worker takes the request, so that waiting in the queue does not count.
        def message(item: tuple[int, _Request], _: bytes) -> bytes:
            began[item[0]] = time.perf_counter()
            return _encode(item[1])

        replies = self._pool.results(enumerate(requests), message, in_order=True)
        for (number, _), reply in replies:
            # Not tried again, unlike other jobs: a candidate that kills its worker would kill each
            # one.
            if isinstance(reply, LostError):
                yield _failed(str(reply), time.perf_counter() - began[number])
            else:
                yield _decode_measured(reply)


def make_pool(
    trial_data: TrialData,
    workers: int = 1,
    *,
    threads: int = 0,
    distributed: bool = False,
    address: str | None = None,
) -> TrialPool:
    """Make a pool; nothing is started before it is used.

    Args:
        trial_data: What workers load.
        workers: Number of candidates measured in parallel.
        threads: Threads of this machine, divided among the workers; 0 uses all cores. On a cluster
            its own processors are divided.
        distributed: Use Ray: the cluster at ``address``, in the variable ``RAY_ADDRESS``, or that
            the program is already connected to; otherwise a new one on this machine.
        address: Address of a Ray cluster; implies ``distributed``.

    Raises:
        UsageError: The number of workers is out of range.
        MissingExtraError: Ray is required and not installed.
    """
    job = TrialJob(trial_data)
    if distributed or address is not None:
        connection = Connection(address, "a distributed search")
        return TrialPool(RayLauncher(connection), job, workers, connection)
    if workers == 1:
        return TrialPool(InProcessLauncher(threads), job)
    # `max(1, workers)`, because the pool itself refuses 0 with a message.
    return TrialPool(ProcessLauncher(max(1, (threads or cores()) // max(1, workers))), job, workers)
