"""A process of its own that feeds damaged files: ``python -m tests.fuzz.worker FOLDER ...``.

Whatever a file does to it (a crash of native code, a hang, too much memory) is seen from outside,
in `tests.fuzz.campaign`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

from intact.errors import IntactError
from tests.fuzz.kinds import Kind, kind_named

MEMORY = 3 << 29
"""Bytes of addresses that a case may take beyond what the libraries took before."""
REPORT = "report.jsonl"
"""File of a line for each case that was begun, and one for each that went wrong."""
WRONG = "wrong-"
"""Starts the names of the files that were not read well; the number of the case follows."""
_LONGEST_MESSAGE = 1000
_PATIENCE = 20
"""How many times its seconds of work a case may last."""


_LOG: list[str] = []
"""What libraries logged, which the command line would print beside its one line."""


class _Listener(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("intact."):
            _LOG.append(f"{record.name}: {record.getMessage()}")


def complaint(kind: Kind, path: Path) -> str | None:
    """Feed one file; return what is wrong with how it was read, None if nothing is."""
    _LOG.clear()
    try:
        kind.feed(path)
    except IntactError as error:
        if _LOG:
            return f"a log beside the error:\n{_LOG[0]}\n{error}"
        return _wrong_message(error)
    except BaseException as error:
        return "".join(traceback.format_exception(error, limit=-8))
    return None


def _wrong_message(error: IntactError) -> str | None:
    message = str(error)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) and "memory" not in message:
            return f"asked for too much memory before: {message}"
        cause = cause.__cause__ or cause.__context__
    if not message.isprintable() or not message.strip():
        return f"not one line of text: {message!r}"
    if len(message) > _LONGEST_MESSAGE:
        return f"{len(message)} characters: {message}"
    return None


def main(name: str, seed: int, first: int, count: int, folder: Path) -> None:
    """Feed the cases ``first`` to ``first + count - 1``, noting what is wrong as JSON lines."""
    kind = kind_named(name)
    seeds = kind.seeds(folder)
    path = folder / kind.file
    for good in seeds:
        path.write_bytes(good)
        kind.feed(path)  # loads the libraries, before what they take is measured
    _limit_memory()
    with (folder / REPORT).open("a", buffering=1, encoding="utf-8") as report:
        for index in range(first, first + count):
            report.write(json.dumps({"case": index}) + "\n")
            data = kind.case(seeds, name, seed, index)
            path.write_bytes(data)
            with _limited_time(kind.seconds):
                wrong = complaint(kind, path)
            if wrong is not None:
                (folder / f"{WRONG}{index}").write_bytes(data)
                report.write(json.dumps({"case": index, "wrong": wrong}) + "\n")
        report.write(json.dumps({"case": first + count}) + "\n")


@contextlib.contextmanager
def _limited_time(seconds: float) -> Iterator[None]:
    """End the process, with a traceback, after so many seconds of work, or far more of waiting.

    Work is what counts: beside other processes a case takes many times as long.
    """
    faulthandler.dump_traceback_later(_PATIENCE * seconds, exit=True)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    faulthandler.cancel_dump_traceback_later()


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.lastResort = _Listener(logging.WARNING)  # that prints what nothing else handles
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)  # and then the process ends
    arguments = sys.argv[1:]
    name, seed, first, count, folder = arguments
    main(name, int(seed), int(first), int(count), Path(folder))
