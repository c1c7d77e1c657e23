"""Ends a command with one line on Ctrl-C, whenever it comes.

An interrupt in the middle of an import surfaces as whatever the package makes of it: an
ImportError, a RuntimeError of a C extension, or nothing. So one that comes while a module loads
ends the process at once: results appear whole or not at all, and the next run removes what is left.
Only a cluster that was started is ended first.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_STOPPED = 130
_STDERR = 2
_LOADING = "<frozen importlib._bootstrap>"
_LINE = b"intact: stopped; nothing was written\n"


@contextmanager
def stoppable() -> Iterator[None]:
    """End the process with one line where Ctrl-C is not caught within."""
    # Whoever started the process may ignore Ctrl-C (a shell's background job does): that stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        _stop()


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, or stop where a module loads."""
    while frame is not None:
        if frame.f_code.co_filename == _LOADING:
            _stop()
        frame = frame.f_back
    raise KeyboardInterrupt


def _stop() -> None:
    with suppress(OSError):
        # Not through `sys.stderr`: the interrupt may have come while its lock is held.
        os.write(_STDERR, _LINE)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # who presses it again does not wait
    # Not imported for this: without the module there is no cluster to end.
    cluster = sys.modules.get("intact.workers.ray_")
    if cluster is not None:
        with suppress(Exception):
            cluster.close_all()
    os._exit(_STOPPED)
