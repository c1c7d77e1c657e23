"""Runs workers as actors of Ray, on this machine or on others.

intact must be installed on every node. Nodes share no disk: the files of a job are sent through
Ray's object store. The module is not called ``ray``: Ray is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from intact._extras import require
from intact.errors import ClusterError
from intact.workers.job import (
    LostError,
    Order,
    Problem,
    Server,
    WorkerJob,
    decode_order,
    decode_reply,
    encode,
    name_of,
    new_owner,
    remove_left,
    temporary_folder,
)
from intact.workers.pool import Deliver

_PATIENCE = 10
"""Seconds to wait for a connection, and for the end of what listens to a killed worker."""
_FIRST = 120
"""Seconds to wait for a first worker."""
_ATTEMPTS = 2
"""Attempts to start a cluster on this machine."""
_LONGEST_REASON = 300
"""Characters of what Ray says."""
_PACKAGES = ("numpy", "onnxruntime")
"""What results depend on, besides intact itself and the processor."""
_STOPPING = (signal.SIGINT, signal.SIGTERM)

_ours: list[Connection] = []
"""Connections that are open and that this program made."""


class Connection:
    """A connection to a cluster; made by `open`.

    Args:
        address: Address of the cluster; None uses the one that this program is connected to or that
            is in the variable ``RAY_ADDRESS``, or starts one on this machine, as ``local`` always
            does.
        what: What needs it, for messages.

    Raises:
        MissingExtraError: Ray is not installed.
    """

    def __init__(self, address: str | None = None, what: str = "--cluster") -> None:
        require(what, ["ray"], "distributed")
        self._address = address

    def open(self) -> None:
        """Connect, where the program is not connected.

        Raises:
            ClusterError: There is no cluster at the address.
        """
        ray = ray_module()
        if ray.is_initialized():
            return
        address = self._address or os.environ.get("RAY_ADDRESS") or "local"
        is_here = address == "local"
        if is_here:
            # Ray would send statistics of its use.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        logging.getLogger("ray").setLevel(logging.ERROR)
        # The dashboard is a web server that nobody asked for.
        here: dict[str, Any] = {"include_dashboard": False} if is_here else {}
        for attempt in range(_ATTEMPTS if is_here else 1):
            try:
                _knock(address)
                with _postpone_signals():
                    ray.init(address, log_to_driver=False, configure_logging=False, **here)
                    _ours.append(self)
                break
            except Exception as error:  # Ray raises a dozen unrelated classes, Exception too
                ray.shutdown()
                if is_here and attempt + 1 < _ATTEMPTS:
                    continue  # on a busy machine Ray gives up after 30 s
                raise ClusterError(
                    f"Ray cannot be reached at {address!r}: {_short(str(error))}",
                    remedy="check the address, and that the cluster runs the same versions",
                ) from error

    @property
    def processors(self) -> int:
        """The number of processors of the cluster."""
        return int(ray_module().cluster_resources().get("CPU", 0))

    def close(self) -> None:
        """Disconnect if `open` connected."""
        if self in _ours:
            _ours.remove(self)
            ray_module().shutdown()


def close_all() -> None:
    """Disconnect what `open` connected; for a process that is about to exit."""
    for each in tuple(_ours):
        each.close()


@contextlib.contextmanager
def _postpone_signals() -> Iterator[None]:
    """Put off Ctrl-C and termination: whoever interrupts Ray's start leaves processes behind."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals do not come here
        return
    came: list[int] = []
    before = {each: signal.getsignal(each) for each in _STOPPING}

    def later(number: int, _frame: object) -> None:
        if number in came:  # whoever insists does not wait
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        came.append(number)

    for each in before:
        signal.signal(each, later)
    try:
        yield
    finally:
        for each, handler in before.items():
            if signal.getsignal(each) is later:  # Ray sets its own for termination
                signal.signal(each, handler)
        for number in came:
            signal.raise_signal(number)


def _knock(address: str) -> None:
    """Check that a cluster listens at the address: Ray itself would try for minutes.

    Raises:
        OSError: It does not.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()


def ray_module() -> Any:
    """Import ray and its exceptions; only the extra installs it."""
    import_module("ray.exceptions")
    return import_module("ray")


def lost_reason(error: Exception) -> str:
    """Say on one line why a worker was lost.

    An error of the worker's own start comes with a traceback, whose last line tells.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return _short(lines[-1] if "Traceback" in str(error) else lines[0])


def _short(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_REASON]


class RayLauncher:
    """Starts actors on the nodes of a cluster; see `intact.workers.pool.Launcher`.

    Args:
        connection: Connection to the cluster; opened when workers are needed, it stays open.
        threads: Threads of each; 0 divides the processors of the cluster.

    Attributes:
        owner: Part of the names of the workers' temporary folders.
    """

    patience = _FIRST
    remedy = "check the nodes (intact on each, and enough memory), or leave out --cluster"

    def __init__(self, connection: Connection, threads: int = 0) -> None:
        self.owner = new_owner()
        self._connection, self._threads = connection, threads
        self._actor: Any = None
        self._files: Any = None
        self._order = b""

    def open(self, job: WorkerJob, workers: int) -> None:
        """Connect, and put the files of the job into the object store.

        Raises:
            ClusterError: There is no cluster at the address.
        """
        self._connection.open()
        ray, processors = ray_module(), max(1, self._connection.processors)
        # Each claims a processor, for more might fit on no node. With fewer processors than
        # workers none is claimed, or some would wait for ever.
        claimed = 1 if workers <= processors else 0
        self._actor = ray.remote(_Actor).options(
            num_cpus=claimed, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        threads = self._threads or max(1, processors // workers)
        self._order = encode(Order(name_of(job), threads, versions=versions()))
        # Saved and read again: nodes share no disk, and the object store takes bytes.
        with temporary_folder(self.owner) as folder:
            job.save(folder)
            self._files = ray.put(pack(folder))

    def start(self, deliver: Deliver) -> RayWorker:
        """Start an actor."""
        # Calls of one actor are done in order, so the job is open before the first message.
        actor = self._actor.remote()
        return RayWorker(actor, actor.open.remote(self._order, self._files, self.owner), deliver)

    def close(self) -> None:
        """Remove what actors that were killed while they loaded have left on this machine."""
        if self._actor is not None:
            remove_left(self.owner)


class RayWorker:
    """An actor; see `intact.workers.pool.Worker`.

    Args:
        actor: Its handle.
        hello: The reference of its first reply.
        deliver: Takes its replies, in a thread that waits for them.
    """

    is_alive = True  # that it died is known by its replies only

    def __init__(self, actor: Any, hello: Any, deliver: Deliver) -> None:
        self._actor = actor
        self._references: SimpleQueue[Any] = SimpleQueue()
        self._references.put(hello)
        self._listener = threading.Thread(
            target=self._listen, args=(deliver,), name="intact-worker", daemon=True
        )
        self._listener.start()

    def send(self, message: bytes) -> None:
        """Send a message."""
        self._references.put(self._actor.answer.remote(message))

    def kill(self) -> None:
        """End the actor."""
        with contextlib.suppress(Exception):  # it, or the whole cluster, is dead already
            ray_module().kill(self._actor)

    def close(self) -> None:
        """Wait for the end of the thread."""
        self._references.put(None)
        # Not for ever: `ray.get` may hang where the cluster is gone.
        self._listener.join(_PATIENCE)

    def _listen(self, deliver: Deliver) -> None:
        ray = ray_module()
        while (reference := self._references.get()) is not None:
            try:
                deliver(decode_reply(ray.get(reference)))
            except ray.exceptions.RayTaskError as error:  # a bug: errors are replies
                deliver(error)
            except ray.exceptions.RayError as error:
                deliver(LostError(f"the worker died ({lost_reason(error)})"))
                return


class _Actor:
    """The worker on a node."""

    def __init__(self) -> None:
        self._server = Server()

    def open(self, order: bytes, files: dict[str, bytes], owner: str) -> bytes:
        """Load the job; its files are removed once they are open."""
        try:
            # Before the files are read: a worker of another version might not understand them.
            wanted = decode_order(order)
            _refuse_other_versions(wanted.versions)
        except ClusterError as error:
            return encode(Problem.of(error))
        with unpack(files, owner) as folder:
            return self._server.open(wanted, folder)

    def answer(self, message: bytes) -> bytes:
        """Answer a message."""
        return self._server.answer(message)


def versions() -> dict[str, str]:
    """Return the versions of what results depend on, by package."""
    import intact

    found = {name: str(import_module(name).__version__) for name in _PACKAGES}
    return {"intact": intact.__version__} | found


def _refuse_other_versions(wanted: dict[str, str]) -> None:
    machine = os.uname().nodename if hasattr(os, "uname") else "a node"
    for name, own in versions().items():
        if own != wanted.get(name):
            raise ClusterError(
                f"{machine}: a worker has {name} {own}, this program {wanted.get(name)}: their "
                "results could differ",
                remedy=f"install {name} {wanted.get(name)} on every node",
            )


@contextmanager
def unpack(files: dict[str, bytes], owner: str) -> Iterator[Path]:
    """Write the files of a job to a folder, which is removed again: what is open stays readable.

    Args:
        files: Contents by relative path, from `pack`.
        owner: The launcher's owner.
    """
    with temporary_folder(owner) as folder:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield folder


def pack(folder: Path) -> dict[str, bytes]:
    """Read all files below a folder, by relative path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
