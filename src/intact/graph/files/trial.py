"""Tries compiled code in a child process, where a file may make it abort.

onnx 1.22 stops the whole process where a Slice reads a tensor that its own inference gave a
negative size, such as what is left of an image of 4 pixels behind a window of 7.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class ProcessTask(NamedTuple):
    """Some work as a process of its own can do it, where this one cannot be forked.

    Attributes:
        function: ``module:function``; takes the content and the numbers.
        content: Makes the content.
        numbers: Further arguments.
    """

    function: str
    content: Callable[[], bytes]
    numbers: tuple[int, ...] = ()


def survives(work: Callable[[], object], elsewhere: ProcessTask | None = None) -> bool:
    """Tell whether some work can be done without ending the process.

    It is done in a forked copy of this process, which costs some 20 ms of the processor and the
    work itself once more; what it changes or raises there is lost. Windows has no copies, and on
    macOS threads of the system's libraries do not outlive them: there another process is started,
    in about a second. True where the end of neither can be learned.

    Args:
        work: Done in a forked copy.
        elsewhere: The same for another process; None where there is no such form of it.
    """
    if _Trial.runs:
        return True  # this is the process in which it is tried
    if not _FORKS:
        return elsewhere is None or _survives_elsewhere(elsewhere)
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
        # Ctrl-C or a signal: the copy must not go on alone.
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return not os.WIFSIGNALED(status)


_FORKS = sys.platform not in ("win32", "darwin") and hasattr(os, "fork")
_PROGRAM = "from intact.graph.files.trial import main; main()"


def _survives_elsewhere(work: ProcessTask) -> bool:
    import subprocess  # only where there is no fork

    # The interpreter finds the package where this one found it, however that was installed.
    places = [place or str(Path.cwd()) for place in sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    # `-P`: a file in the working folder must not take the place of a module.
    command = [sys.executable, "-P", "-c", _PROGRAM, work.function, *map(str, work.numbers)]
    try:
        done = subprocess.run(
            command, input=work.content(), env=environment, capture_output=True, check=False
        )
    except OSError:  # no interpreter, or no memory for one
        return True
    return done.returncode == 0


class _Trial:
    """Whether this process was started to try something."""

    runs = False


def main() -> None:
    """Do the work that the arguments name, on what comes in; an error of Python is no end."""
    module, _, name = sys.argv[1].partition(":")
    content = sys.stdin.buffer.read()
    _Trial.runs = True
    with contextlib.suppress(Exception):
        getattr(importlib.import_module(module), name)(content, *map(int, sys.argv[2:]))
    os._exit(0)


def _be_silent() -> None:
    """Say nothing and leave no dump of memory."""
    import faulthandler
    import resource

    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
