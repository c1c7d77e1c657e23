"""Workers as actors of Ray, on one machine or a cluster. The module is not called ``ray``: Ray is.

The messages are those of worker processes. The trial data are sent through Ray's object store,
because nodes share no disk; intact must be installed on every node.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from intact.errors import MissingExtraError, SearchError
from intact.search.workers.messages import Start, encode
from intact.search.workers.pool import WorkerLostError
from intact.search.workers.processes import Savable
from intact.search.workers.worker import OPENER, Server

_PATIENCE = 10
"""Seconds to wait for a connection to a cluster."""
_REASON = 300
"""Maximum length of Ray's message on a dead actor."""


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
        if find_spec("ray") is None:
            raise MissingExtraError(
                "a distributed search needs ray, which is not installed",
                remedy="pip install 'intact[distributed]'",
            )
        self._data, self._workers, self._opener = trial_data, workers, opener
        self._address = address
        self._is_ours = False
        self._files: Any = None
        self._actor: Any = None
        self._threads = 1

    def open(self) -> None:
        """Connect, and put the trial data into the object store.

        Raises:
            SearchError: There is no cluster at the address.
        """
        ray = _ray()
        if not ray.is_initialized():
            self._connect()
        cpus = int(ray.cluster_resources().get("CPU", 0))
        self._threads = max(1, cpus // self._workers)
        # Each actor claims one processor: more might fit on no node. With fewer processors than
        # workers none is claimed, or some actors would wait forever.
        claimed = 1 if self._workers <= cpus else 0
        self._actor = ray.remote(_Actor).options(
            num_cpus=claimed, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        with tempfile.TemporaryDirectory(prefix="intact-search-") as folder:
            self._data.save(Path(folder))
            self._files = ray.put(_packed(Path(folder)))

    def start(self) -> RayWorker:
        """Start an actor."""
        return RayWorker(self._actor.remote(), self._files, self._opener, self._threads)

    def close(self) -> None:
        """Disconnect if `open` connected."""
        self._files = self._actor = None
        if self._is_ours:
            self._is_ours = False
            _ray().shutdown()

    def _connect(self) -> None:
        address = self._address or os.environ.get("RAY_ADDRESS") or "local"
        here: dict[str, Any] = {}
        if address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            here = {"include_dashboard": False}
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            _knock(address)
            _ray().init(address, log_to_driver=False, configure_logging=False, **here)
        except (ValueError, RuntimeError, OSError) as error:
            said = " ".join(str(error).split())[:_REASON]
            raise SearchError(
                f"Ray cannot be reached at {address!r}: {said}",
                remedy="check the address, and that the cluster runs the same versions",
            ) from error
        self._is_ours = True


def _knock(address: str) -> None:
    """Check that a cluster listens at the address: Ray itself would try for minutes.

    Raises:
        OSError: It does not.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()


class RayWorker:
    """An actor; see `Worker`."""

    def __init__(self, actor: Any, files: Any, opener: str, threads: int) -> None:
        self._actor = actor
        self._first = actor.start.remote(files, opener, threads)

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
        _ray().kill(self._actor)

    def close(self) -> None:
        """Drop the reference to the actor, which ends it."""
        self._actor = self._first = None


class _Actor:
    """The worker on a node."""

    def __init__(self) -> None:
        self._server = Server()

    def start(self, files: dict[str, bytes], opener: str, threads: int) -> bytes:
        """Load the trial data; their files are removed once they are open."""
        folder = Path(tempfile.mkdtemp(prefix="intact-search-"))
        try:
            _unpack(files, folder)
            return self._server.answer(encode(Start(str(folder), opener, threads)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def answer(self, request: bytes) -> bytes:
        return self._server.answer(request)


def _ray() -> Any:
    """Import ray and its exceptions; only the extra installs it."""
    import_module("ray.exceptions")
    return import_module("ray")


def _got(reference: Any) -> bytes:
    ray = _ray()
    try:
        content: bytes = ray.get(reference)
    except ray.exceptions.RayTaskError:
        raise  # a bug: errors of evaluators are replies
    except ray.exceptions.RayError as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise WorkerLostError(f"the worker died ({said[:_REASON]})") from error
    return content


def _packed(folder: Path) -> dict[str, bytes]:
    """Read all files below a folder, by relative path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _unpack(files: dict[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
