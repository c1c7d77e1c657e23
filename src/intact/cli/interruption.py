"""Ctrl-C at any time ends a command with one line.

An interrupt in the middle of an import surfaces as whatever the package makes of it: an
ImportError, a RuntimeError of a C extension, or nothing. So one that comes while a module loads
waits until it is loaded; a second one does not.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_STOPPED = 130
_AGAIN = 0.02
"""Seconds until an interrupt that waits is tried again."""
_LOADING = "<frozen importlib._bootstrap>"
_LINE = "intact: stopped; nothing was written\n"


@contextmanager
def stoppable() -> Iterator[None]:
    """End the process with one line where Ctrl-C is not caught within."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write(_LINE)
        sys.stderr.flush()
        os._exit(_STOPPED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, or wait until what loads is loaded."""
    if _is_loading(frame) and _waits(number):
        return
    raise KeyboardInterrupt


def _is_loading(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _LOADING:
            return True
        frame = frame.f_back
    return False


def _waits(number: int) -> bool:
    """Try again soon; False where that cannot be, or where the user insists."""
    if not hasattr(signal, "setitimer"):
        return False
    is_waiting = signal.getsignal(signal.SIGALRM) is _interrupt
    if is_waiting and number == signal.SIGINT:
        return False
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN)
    return True
