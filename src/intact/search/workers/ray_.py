"""Workers as actors of Ray, on one machine or a cluster. The module is not called ``ray``: Ray is.

The messages are those of worker processes. The trial data are sent through Ray's object store,
because nodes share no disk; intact must be installed on every node.
"""

from __future__ import annotations

from typing import Any

from intact.cluster.actors import Actors, LostError, Savable, kill, reply_of, unpacked
from intact.cluster.connection import Connection
from intact.search.workers.messages import Start, encode
from intact.search.workers.pool import WorkerLostError
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
        self._actors: Actors | None = None

    def open(self) -> None:
        """Connect, and put the trial data into the object store.

        Raises:
            ClusterError: There is no cluster at the address.
        """
        self._connection.open()
        self._actors = Actors(self._connection, _Actor, self._data, workers=self._workers)

    def start(self) -> RayWorker:
        """Start an actor; `open` was called."""
        actors = self._actors
        if actors is None:
            raise WorkerLostError("the connection to the cluster is closed")
        return RayWorker(actors.start(), actors.files, actors.owner, self._opener, actors.threads)

    def close(self) -> None:
        """Disconnect, if it was `open` that connected."""
        actors, self._actors = self._actors, None
        self._connection.close()
        if actors is not None:
            actors.close()


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
        kill(self._actor)

    def close(self) -> None:
        """Drop the reference to the actor, which ends it."""
        self._actor = self._first = None


class _Actor:
    """The worker on a node."""

    def __init__(self) -> None:
        self._server = Server()

    def start(self, files: dict[str, bytes], owner: str, opener: str, threads: int) -> bytes:
        """Load the trial data; their files are removed once they are open."""
        with unpacked(files, owner) as folder:
            return self._server.answer(encode(Start(str(folder), opener, threads)))

    def answer(self, request: bytes) -> bytes:
        return self._server.answer(request)


def _got(reference: Any) -> bytes:
    try:
        return reply_of(reference)
    except LostError as error:
        raise WorkerLostError(f"the worker died ({error})") from error
