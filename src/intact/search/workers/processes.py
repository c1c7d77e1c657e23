"""Workers as processes of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from intact.cluster.actors import Savable
from intact.errors import UsageError
from intact.search.workers.messages import Start, encode, receive, send
from intact.search.workers.pool import WorkerLostError
from intact.search.workers.worker import OPENER

_PROGRAM = "from intact.search.workers.worker import main; main()"
_PATIENCE = 10
"""Seconds to wait for the end of a process after the end of its output."""
_LONGEST_REASON = 300
_LAST_BYTES = 4096
_THREADS = (
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Environment variables with the number of threads, read by libraries when they are loaded."""


class ProcessLauncher:
    """Starts worker processes on this machine; see `Launcher`.

    Args:
        trial_data: What they load.
        threads: Number of threads of each.
        opener: Loads the data: ``module:function`` (folder, threads) -> `Measurer`.
    """

    def __init__(self, trial_data: Savable, threads: int, opener: str = OPENER) -> None:
        self._data, self._threads, self._opener = trial_data, threads, opener
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._started = 0

    def open(self) -> None:
        """Save the trial data.

        Raises:
            UsageError: The path of the Python interpreter is unknown.
        """
        if not sys.executable:
            raise UsageError(
                "the path of the Python interpreter is unknown, so no worker can be started",
                remedy="use one process",
            )
        self._temporary = tempfile.TemporaryDirectory(
            prefix="intact-search-", ignore_cleanup_errors=True
        )
        self._data_folder.mkdir()
        self._data.save(self._data_folder)

    def start(self) -> ProcessWorker:
        """Start a process."""
        self._started += 1
        first = Start(str(self._data_folder), self._opener, self._threads)
        return ProcessWorker(first, self._folder / f"worker-{self._started}.txt")

    def close(self) -> None:
        """Remove the saved trial data."""
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def _folder(self) -> Path:
        if self._temporary is None:
            raise RuntimeError("a worker is started before its launcher is open")
        return Path(self._temporary.name)

    @property
    def _data_folder(self) -> Path:
        return self._folder / "data"


class ProcessWorker:
    """A worker process; see `Worker`.

    Args:
        start: The first message.
        complaints: The file for its standard error.
    """

    def __init__(self, start: Start, complaints: Path) -> None:
        self._complaints = complaints
        environment = os.environ | dict.fromkeys(_THREADS, str(start.threads))
        # The user's metric is importable as in this process.
        places = [place or str(Path.cwd()) for place in sys.path]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in places if os.pathsep not in p)
        with complaints.open("wb") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-X", "utf8", "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=environment,
                **_apart(),
            )
        self._start = encode(start)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def first(self) -> bytes:
        """Send the first message; wait until the data are loaded."""
        return self.call(self._start)

    def call(self, request: bytes) -> bytes:
        """Ask, and wait for the reply."""
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise WorkerLostError("the worker has no pipes")
        content = None
        with contextlib.suppress(OSError):  # the process died: there is no reply
            send(process.stdin, request)  # type: ignore[arg-type] # IO[bytes] is a BinaryIO here
            content = receive(process.stdout)  # type: ignore[arg-type]
        if content is None:
            raise WorkerLostError(self._what_happened())
        return content

    def kill(self) -> None:
        """Kill the process: it has nothing to save."""
        self._process.kill()

    def close(self) -> None:
        """Wait for its end."""
        self._end()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # the other end is closed: flushing fails
                    stream.close()
        with contextlib.suppress(OSError):
            self._complaints.unlink()

    def _end(self) -> int:
        try:
            return self._process.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _what_happened(self) -> str:
        """Describe how the process ended, with its last output."""
        code = self._end()
        how = f"exit code {code}" if code >= 0 else _signal(-code)
        said = self._last_line()
        return f"the worker died ({how})" + (f": {said}" if said else "")

    def _last_line(self) -> str:
        with contextlib.suppress(OSError), self._complaints.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = stream.read().decode("utf-8", "replace").split("\n")
            return next((each.strip() for each in lines[::-1] if each.strip()), "")[
                :_LONGEST_REASON
            ]
        return ""


def _apart() -> dict[str, Any]:
    """Return `Popen` options that keep Ctrl-C in the terminal from the process."""
    if os.name == "nt":
        return {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    return {"process_group": 0}


def _signal(number: int) -> str:
    names = {each.value: each.name for each in signal.Signals}
    name = f"signal {number}, {names[number]}" if number in names else f"signal {number}"
    is_kill = names.get(number) == "SIGKILL"
    return f"{name}: the system may be out of memory" if is_kill else name
