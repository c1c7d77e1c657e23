"""Workers as processes of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Protocol

from intact.errors import UsageError
from intact.search.workers.crew import LostError
from intact.search.workers.messages import Start, encode, receive, send
from intact.search.workers.serve import OPENER

_CHILD = "intact.search.workers.child"
_PATIENCE = 10
"""Seconds that a process gets to end once its output has ended."""
_LONGEST_REASON = 300
_LAST_BYTES = 4096
_THREADS = (
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Variables that libraries read when they are loaded."""


class Savable(Protocol):
    """What workers measure with: a bench."""

    def save(self, folder: Path) -> None:
        """Write it into a folder that exists and is empty."""


class ProcessSite:
    """Starts processes with an evaluator each; see `Site`.

    Args:
        bench: What they load.
        threads: That each may use.
        opener: How they load it: ``module:function`` (folder, threads) -> `Measurer`.
    """

    def __init__(self, bench: Savable, threads: int, opener: str = OPENER) -> None:
        self._bench, self._threads, self._opener = bench, threads, opener
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._started = 0

    def open(self) -> None:
        """Save the bench.

        Raises:
            UsageError: This Python does not know its own program.
        """
        if not sys.executable:
            raise UsageError("this Python cannot start another one", remedy="use one process")
        self._temporary = tempfile.TemporaryDirectory(
            prefix="intact-search-", ignore_cleanup_errors=True
        )
        self._bench_folder.mkdir()
        self._bench.save(self._bench_folder)

    def start(self) -> ProcessWorker:
        """Start a process."""
        self._started += 1
        first = Start(str(self._bench_folder), self._opener, self._threads)
        return ProcessWorker(first, self._folder / f"worker-{self._started}.txt")

    def close(self) -> None:
        """Remove the saved bench."""
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def _folder(self) -> Path:
        if self._temporary is None:
            raise RuntimeError("a worker is started before its site is open")
        return Path(self._temporary.name)

    @property
    def _bench_folder(self) -> Path:
        return self._folder / "bench"


class ProcessWorker:
    """A process that measures; see `Worker`.

    Args:
        start: What to measure with.
        complaints: The file that takes what it prints.
    """

    def __init__(self, start: Start, complaints: Path) -> None:
        self._complaints = complaints
        environment = os.environ | dict.fromkeys(_THREADS, str(start.threads))
        # A metric of the user's is found where this process would find it.
        places = [place or str(Path.cwd()) for place in sys.path]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in places if os.pathsep not in p)
        with complaints.open("wb") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-X", "utf8", "-m", _CHILD],
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
        """Hand out what to measure with; wait until that is loaded."""
        return self.call(self._start)

    def call(self, request: bytes) -> bytes:
        """Ask, and wait for the reply."""
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise LostError("the worker has no pipes")
        content = None
        with contextlib.suppress(OSError):  # it died: there is no reply either
            send(process.stdin, request)  # type: ignore[arg-type] # IO[bytes] is a BinaryIO here
            content = receive(process.stdout)  # type: ignore[arg-type]
        if content is None:
            raise LostError(self._what_happened())
        return content

    def kill(self) -> None:
        """End the process: it holds nothing that would have to be saved."""
        self._process.kill()

    def close(self) -> None:
        """Wait for its end."""
        self._end()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was not read cannot be flushed
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
    """Return options that start a process out of reach of Ctrl-C in the terminal."""
    if os.name == "nt":
        return {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    return {"process_group": 0}


def _signal(number: int) -> str:
    names = {each.value: each.name for each in signal.Signals}
    name = f"signal {number}, {names[number]}" if number in names else f"signal {number}"
    is_kill = names.get(number) == "SIGKILL"
    return f"{name}: the system may be out of memory" if is_kill else name
