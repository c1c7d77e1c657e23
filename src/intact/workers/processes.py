"""Runs workers as processes of this machine; both sides of the pipe.

A worker reads messages on standard input and writes replies to standard output. It is a program and
not a forked copy of the user's: a script that searches at its top level needs no
``if __name__ == "__main__"``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

from intact.errors import UsageError
from intact.workers.job import (
    LostError,
    Order,
    Server,
    WorkerJob,
    decode_order,
    decode_reply,
    encode,
    name_of,
    new_owner,
    temporary_folder,
)
from intact.workers.pool import Deliver

_PROGRAM = "from intact.workers.processes import main; main()"
_PATIENCE = 10
"""Seconds to wait for the end of a process after the end of its output."""
_LONGEST_REASON = 300
_LAST_BYTES = 4096
_LENGTH = 4
"""Bytes of a message's length, little-endian."""
_THREADS = (
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Environment variables with the number of threads, read by libraries when they are loaded."""
_FIRST_VICTIM = 500
"""Added to Linux's score (0 to 1000) of processes to kill when memory runs out: a worker can be
replaced, who has started it cannot.
"""


class ProcessLauncher:
    """Starts worker processes on this machine; see `intact.workers.pool.Launcher`.

    Args:
        threads: Threads of each.
    """

    patience = None
    remedy = "use fewer samples, or fewer workers (1 runs in this process)"

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._files = ExitStack()
        self._folder: Path | None = None
        self._order = b""
        self._started = 0

    def open(self, job: WorkerJob, workers: int) -> None:
        """Save the job.

        Raises:
            UsageError: The path of the Python interpreter is unknown.
        """
        del workers
        if not sys.executable:
            raise UsageError(
                "the path of the Python interpreter is unknown, so no worker can be started",
                remedy="use one process",
            )
        self._folder = self._files.enter_context(temporary_folder(new_owner()))
        # Beside the workers' complaints, so that a job has a folder of its own.
        data = self._folder / "data"
        data.mkdir()
        job.save(data)
        self._order = encode(Order(name_of(job), self._threads, str(data)))

    def start(self, deliver: Deliver) -> ProcessWorker:
        """Start a process."""
        if self._folder is None:
            raise RuntimeError("a worker is started before its launcher is open")
        self._started += 1
        complaints = self._folder / f"worker-{self._started}.txt"
        worker = ProcessWorker(self._threads, complaints, deliver)
        worker.send(self._order)
        return worker

    def close(self) -> None:
        """Remove the saved job."""
        self._files.close()


class ProcessWorker:
    """A worker process; see `intact.workers.pool.Worker`.

    Args:
        threads: Number of threads that its libraries use.
        complaints: The file for its standard error.
        deliver: Takes its replies, in a thread that waits for them.
    """

    def __init__(self, threads: int, complaints: Path, deliver: Deliver) -> None:
        self._complaints = complaints
        # Libraries read these when they are loaded, before any code of a worker could set them.
        environment = os.environ | dict.fromkeys(_THREADS, str(threads))
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
                **_group_options(),
            )
        self._listener = threading.Thread(
            target=self._listen, args=(deliver,), name="intact-worker", daemon=True
        )
        # A thread for each worker, because pipes cannot be waited for together on every system.
        self._listener.start()

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def send(self, message: bytes) -> None:
        """Send a message."""
        with contextlib.suppress(OSError):  # the process died: who listens will say so
            send(self._process.stdin, message)  # type: ignore[arg-type] # IO[bytes] here

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def close(self) -> None:
        """Wait for its end."""
        self._end()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # the other end is closed: flushing fails
                    stream.close()
        with contextlib.suppress(OSError):
            self._complaints.unlink()

    def _listen(self, deliver: Deliver) -> None:
        while (content := receive(self._process.stdout)) is not None:  # type: ignore[arg-type]
            deliver(decode_reply(content))
        deliver(LostError(self._end_in_words()))

    def _end(self) -> int:
        try:
            return self._process.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _end_in_words(self) -> str:
        """Describe how the process ended, with its last output."""
        code = self._end()
        how = f"exit code {code}" if code >= 0 else _signal(-code)
        said = self._last_line()
        return f"the worker died ({how})" + (f": {said}" if said else "")

    def _last_line(self) -> str:
        with contextlib.suppress(OSError), self._complaints.open("rb") as stream:
            # The end of it: a library may have written megabytes.
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = stream.read().decode("utf-8", "replace").split("\n")
            return next((each.strip() for each in lines[::-1] if each.strip()), "")[
                :_LONGEST_REASON
            ]
        return ""


def _group_options() -> dict[str, Any]:
    """Return `Popen` options that keep Ctrl-C in the terminal from the process."""
    if os.name == "nt":
        return {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    return {"process_group": 0}


def _signal(number: int) -> str:
    names = {each.value: each.name for each in signal.Signals}
    name = f"signal {number}, {names[number]}" if number in names else f"signal {number}"
    is_kill = names.get(number) == "SIGKILL"
    return f"{name}: the system may be out of memory" if is_kill else name


def send(stream: BinaryIO, content: bytes) -> None:
    """Write one message.

    Raises:
        OSError: The stream is closed at the other end.
    """
    stream.write(len(content).to_bytes(_LENGTH, "little") + content)
    stream.flush()


def receive(stream: BinaryIO) -> bytes | None:
    """Wait for one message; None if the stream ends, also within a message."""
    head = stream.read(_LENGTH)
    size = int.from_bytes(head, "little")
    content = stream.read(size) if len(head) == _LENGTH else b""
    return content if len(head) == _LENGTH and len(content) == size else None


def main() -> None:
    """Answer messages until the pool ends: a worker's program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool ends its workers
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_FIRST_VICTIM), encoding="ascii")
    requests, replies = _channels()
    order = receive(requests)
    if order is None:
        return
    first, server = decode_order(order), Server()
    folder = Path(first.folder)
    waiting: SimpleQueue[bytes] = SimpleQueue()
    # Before the job is opened, which takes long: a pool that ends meanwhile is noticed.
    threading.Thread(target=_queue, args=(requests, waiting, folder), daemon=True).start()
    send(replies, server.open(first, folder))
    while True:
        send(replies, server.answer(waiting.get()))


def _channels() -> tuple[BinaryIO, BinaryIO]:
    """Reserve stdin and stdout for messages; other output goes to stderr."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device
        os.dup2(nothing.fileno(), 0)
    # What libraries print would be taken for a message.
    os.dup2(2, 1)
    return requests, replies


def _queue(requests: BinaryIO, waiting: SimpleQueue[bytes], folder: Path) -> None:
    """Queue messages. When the pool ends, exit at once, even during work.

    A closed pool kills its workers. If the stream just ends, the pool was killed and its folder
    remains: it is removed here.
    """
    while (content := receive(requests)) is not None:
        waiting.put(content)
    shutil.rmtree(folder, ignore_errors=True)
    sys.stderr.flush()
    # At once: threads of runtimes may be at work, and nothing is left to save.
    os._exit(0)
