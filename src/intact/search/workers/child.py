"""A worker process: requests on its standard input, replies on its standard output.

A program of its own (``python -m intact.search.workers.child``) rather than a spawned copy of the
user's: a script that searches at its top level needs no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

from intact.search.workers.messages import Start, decode_request, receive, send
from intact.search.workers.serve import Server

_FIRST_VICTIM = 500
"""Added to what Linux weighs (0 to 1000) when memory runs out: a worker can be replaced."""


def main() -> None:
    """Answer until the pool is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool decides
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_FIRST_VICTIM), encoding="ascii")
    requests, replies = _channels()
    waiting: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests, waiting), daemon=True).start()
    server = Server()
    while True:
        send(replies, server.answer(waiting.get()))


def _channels() -> tuple[BinaryIO, BinaryIO]:
    """Take over stdin and stdout for messages; anything else that prints goes to stderr."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, replies


def _listen(requests: BinaryIO, waiting: SimpleQueue[bytes]) -> None:
    """Pass requests on. When the pool is gone, end at once, in the middle of a trial too.

    A pool that is closed kills its workers; one that only goes was killed itself, and its folder
    is still there.
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


if __name__ == "__main__":
    main()
