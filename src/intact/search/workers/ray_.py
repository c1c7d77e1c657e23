"""Workers as actors of Ray, on one machine or a cluster. The module is not called ``ray``: Ray is.

The messages are those of worker processes. The trial data are sent through Ray's object store,
because nodes share no disk; intact must be installed on every node.
"""

from __future__ import annotations

from typing import Any

from intact.cluster.connection import Connection, lost_reason, packed, ray_module, unpack
from intact.cluster.folders import new_owner, remove_left, temporary_folder
from intact.search.workers.messages import Start, encode
from intact.search.workers.pool import WorkerLostError
from intact.search.workers.processes import Savable
from intact.search.workers.worker import OPENER, Server


class RayLauncher:
    """Starts Ray actors as workers; see `Launcher`.

    Args:
        trial_data: What the workers load.
        workers: Maximum number of workers.
        address: Address of a cluster; None uses the one that this program is connected to or that
            is in the variable ``RAY_ADDRESS``, or starts one on this machine.
        opener: Loads the data: ``module:function`` (folder, threads) -> `Measurer`.

    Raises:
        MissingExtraError: Ray is not installed.
    """

    def __init__(
        self, trial_data: Savable, workers: int, address: str | None = None, opener: str = OPENER
    ) -> None:
        self._connection = Connection(address, "a distributed search")
        self._data, self._workers, self._opener = trial_data, workers, opener
        self._files: Any = None
        self._actor: Any = None
        self._threads = 1
        self._owner = new_owner()

    def open(self) -> None:
        """Connect, and put the trial data into the object store.

        Raises:
            ClusterError: There is no cluster at the address.
        """
        self._connection.open()
        ray, cpus = ray_module(), self._connection.processors
        self._threads = max(1, cpus // self._workers)
        # Each actor claims one processor: more might fit on no node. With fewer processors than
        # workers none is claimed, or some actors would wait forever.
        claimed = 1 if self._workers <= cpus else 0
        self._actor = ray.remote(_Actor).options(
            num_cpus=claimed, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        with temporary_folder(self._owner) as folder:
            self._data.save(folder)
            self._files = ray.put(packed(folder))

    def start(self) -> RayWorker:
        """Start an actor."""
        how = self._owner, self._opener, self._threads
        return RayWorker(self._actor.remote(), self._files, *how)

    def close(self) -> None:
        """Disconnect, if it was `open` that connected."""
        self._files = self._actor = None
        self._connection.close()
        remove_left(self._owner)  # by workers that were killed while they loaded


class RayWorker:
    """An actor; see `Worker`."""

    def __init__(self, actor: Any, files: Any, owner: str, opener: str, threads: int) -> None:
        self._actor = actor
        self._first = actor.start.remote(files, owner, opener, threads)

    @property
    def is_alive(self) -> bool:
        """Always true: a dead actor is found by the next request."""
        return True

    def first(self) -> bytes:
        """Wait until the trial data are loaded."""
        return _got(self._first)

    def call(self, request: bytes) -> bytes:
        """Ask, and wait for the reply."""
        return _got(self._actor.answer.remote(request))

    def kill(self) -> None:
        """End the actor."""
        ray_module().kill(self._actor)

    def close(self) -> None:
        """Drop the reference to the actor, which ends it."""
        self._actor = self._first = None


class _Actor:
    """The worker on a node."""

    def __init__(self) -> None:
        self._server = Server()

    def start(self, files: dict[str, bytes], owner: str, opener: str, threads: int) -> bytes:
        """Load the trial data; their files are removed once they are open."""
        with temporary_folder(owner) as folder:
            unpack(files, folder)
            return self._server.answer(encode(Start(str(folder), opener, threads)))

    def answer(self, request: bytes) -> bytes:
        return self._server.answer(request)


def _got(reference: Any) -> bytes:
    ray = ray_module()
    try:
        content: bytes = ray.get(reference)
    except ray.exceptions.RayTaskError:
        raise  # a bug: errors of evaluators are replies
    except ray.exceptions.RayError as error:
        raise WorkerLostError(f"the worker died ({lost_reason(error)})") from error
    return content
