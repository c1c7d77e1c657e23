"""A worker: it loads what trials run on, then answers requests one after the other.

As a process of its own (`main`) it reads requests on standard input and writes replies to standard
output. It is a program and not a forked copy of the user's: a script that searches at its top level
needs no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

from intact.cluster.problem import Problem
from intact.search.workers.messages import (
    Confirm,
    FloatScore,
    Measure,
    Ready,
    Reply,
    Request,
    Result,
    Score,
    Start,
    decode_request,
    encode,
    receive,
    send,
)
from intact.search.workers.pool import Measurer, attempt

OPENER = f"{__name__}:open_evaluator"

"""The opener of saved trial data."""


def open_evaluator(folder: Path, threads: int) -> Measurer:
    """Make an evaluator of the trial data in a folder."""
    from intact.search.measuring.evaluator import Evaluator
    from intact.search.measuring.trial_data_file import load_trial_data

    return Evaluator(load_trial_data(folder), threads=threads)


class Server:
    """Answers requests one after the other."""

    def __init__(self) -> None:
        self._measurer: Measurer | None = None

    def answer(self, content: bytes) -> bytes:
        """Compute the reply to a request; errors are replies too."""
        try:
            return encode(self._reply(decode_request(content)))
        except Exception as error:
            return encode(Problem.of(error))

    def _reply(self, request: Request) -> Reply:
        if isinstance(request, Start):
            self._measurer = _opener(request.opener)(Path(request.folder), request.threads)
            return Ready()
        measurer = self._measurer
        if measurer is None:
            raise RuntimeError("a worker got a request before its start message")
        match request:
            case Measure(ask):
                return Result(attempt(lambda: measurer.measure(ask)))
            case Confirm(candidate):
                return Result(attempt(lambda: measurer.confirm(candidate)))
            case FloatScore():
                return Score(measurer.float_score)


def _opener(name: str) -> Callable[[Path, int], Measurer]:
    module, _, function = name.partition(":")
    found: Callable[[Path, int], Measurer] = getattr(importlib.import_module(module), function)
    return found


_FIRST_VICTIM = 500

"""Added to Linux's score (0 to 1000) of processes to kill when memory runs out: a worker can be
replaced, the search cannot.
"""


def main() -> None:
    """Answer requests until the pool ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool ends its workers
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_FIRST_VICTIM), encoding="ascii")
    requests, replies = _channels()
    waiting: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests, waiting), daemon=True).start()
    server = Server()
    while True:
        send(replies, server.answer(waiting.get()))


def _channels() -> tuple[BinaryIO, BinaryIO]:
    """Reserve stdin and stdout for messages; other output goes to stderr."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, replies


def _listen(requests: BinaryIO, waiting: SimpleQueue[bytes]) -> None:
    """Queue requests. When the pool ends, exit at once, even during a trial.

    A closed pool kills its workers. If the stream just ends, the pool was killed and its folder
    remains: it is removed here.
    """
    folder = ""
    while content := receive(requests):
        if not folder:
            first = decode_request(content)
            folder = first.folder if isinstance(first, Start) else ""
        waiting.put(content)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stderr.flush()
    os._exit(0)
