"""Trying compiled code in a child process, where a file may make it abort.

onnx 1.22 stops the whole process where a Slice reads a tensor that its own inference gave a
negative size, such as what is left of an image of 4 pixels behind a window of 7.
"""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from collections.abc import Callable


def survives(work: Callable[[], object]) -> bool:
    """Tell whether some work can be done without ending the process.

    It is done in a forked copy of this process, which costs some 20 ms of the processor and the
    work itself once more; what it changes or raises there is lost. True where processes cannot be
    forked (Windows), or their end cannot be learned.
    """
    if not hasattr(os, "fork"):
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries, which are idle
        child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            _be_silent()
            work()
        # Not `sys.exit`: the copy must not run the parent's exit handlers or flush its buffers.
        os._exit(0)
    try:
        _, status = os.waitpid(child, 0)
    except ChildProcessError:  # a host that ignores SIGCHLD: how it ended is lost
        return True
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return not os.WIFSIGNALED(status)


def _be_silent() -> None:
    """Say nothing and leave no dump of memory."""
    import faulthandler
    import resource

    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
