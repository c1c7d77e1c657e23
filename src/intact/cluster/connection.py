"""The connection to a Ray cluster; intact must be installed on every node."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from intact._extras import require
from intact.errors import ClusterError

_PATIENCE = 10
"""Seconds to wait for a connection."""
_ATTEMPTS = 2
"""To start a cluster on this machine."""
_LONGEST_REASON = 300
"""Characters of what Ray says."""
_STOPPING = (signal.SIGINT, signal.SIGTERM)

_ours: list[Connection] = []
"""Those that are open and that this program made."""


class Connection:
    """A connection to a cluster; made by `open`.

    Args:
        address: Of the cluster; None uses the one that this program is connected to or that is in
            the variable ``RAY_ADDRESS``, or starts one on this machine, as ``local`` always does.
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
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        logging.getLogger("ray").setLevel(logging.ERROR)
        here: dict[str, Any] = {"include_dashboard": False} if is_here else {}
        for attempt in range(_ATTEMPTS if is_here else 1):
            try:
                _knock(address)
                with _undisturbed():
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
def _undisturbed() -> Iterator[None]:
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
