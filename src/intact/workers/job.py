"""Declares the protocol of work that may be done elsewhere, its replies and its errors.

Whoever has work makes a `WorkerJob`. It is saved into a folder, where the folder is read it is
loaded again, and each worker opens it once. Then a worker answers messages, one after the other.
Whoever sent them merges the answers. Messages are bytes of the job's own, msgpack mostly: nothing
is pickled, and decoding runs no code. The folders are temporary: they go even where their process
is killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from intact import errors
from intact._files import is_ours
from intact.errors import IntactError


class Opened(NamedTuple):
    """A job that a worker has opened.

    Attributes:
        answer: Answers a message. What it raises is raised where the message came from.
        hello: What is to be known of the worker before a message is made for it.
    """

    answer: Callable[[bytes], bytes]
    hello: bytes = b""


class WorkerJob(Protocol):
    """Work for workers. They find the class by its name, so it is at the top of a module."""

    def save(self, folder: Path) -> None:
        """Write it to an empty folder."""

    @classmethod
    def load(cls, folder: Path) -> WorkerJob:
        """Read it. The folder may go once the job is open: what is mapped by then stays."""

    def open(self, threads: int) -> Opened:
        """Prepare to work, with so many threads."""


class LostError(Exception):
    """A worker died; the message says how."""


class WorkerError(RuntimeError):
    """An unexpected exception in a worker; its note holds the worker's traceback."""


class Done(msgspec.Struct, tag=True, frozen=True):
    """An answer."""

    content: bytes


class Problem(msgspec.Struct, tag=True, frozen=True):
    """An exception.

    Attributes:
        kind: Class of `intact.errors`; empty for other exceptions, which are bugs.
        text: Its message.
        trace: Its traceback.
    """

    kind: str
    text: str
    trace: str

    @staticmethod
    def of(error: BaseException) -> Problem:
        """Convert an exception to a message."""
        trace = "".join(traceback.format_exception(error))
        if isinstance(error, IntactError):
            return Problem(type(error).__name__, error.with_flags, trace)
        return Problem("", f"{type(error).__name__}: {error}", trace)

    def error(self) -> IntactError | WorkerError:
        """Return the exception: an `IntactError` of the same class, or else a `WorkerError`."""
        kind = getattr(errors, self.kind, None) if self.kind else None
        # A name from another process picks a class of errors, and nothing else.
        if isinstance(kind, type) and issubclass(kind, IntactError):
            return kind(self.text)
        error = WorkerError(self.text)
        error.add_note(f"In the worker:\n{self.trace}")
        return error


class Order(msgspec.Struct, frozen=True):
    """The first message to a worker elsewhere.

    Attributes:
        job: The name of its class.
        threads: Threads of the worker.
        folder: Path of the saved job, where the worker is on the same machine.
        versions: Versions that it must have, by package.
    """

    job: str
    threads: int
    folder: str = ""
    versions: dict[str, str] = {}


def name_of(value: object) -> str:
    """Return the name by which a worker finds the class of something: ``module:class``."""
    return f"{type(value).__module__}:{type(value).__qualname__}"


def class_named(name: str) -> Any:
    """Import the class of a name of `name_of`."""
    module, _, kind = name.partition(":")
    return getattr(import_module(module), kind)


class Server:
    """A worker's side: answers in bytes, errors too."""

    def __init__(self) -> None:
        self._answer: Callable[[bytes], bytes] | None = None

    def open(self, order: Order, folder: Path) -> bytes:
        """Load and open a job; reply with its hello."""
        return _encode_outcome(lambda: self._open_job(order, folder))

    def answer(self, message: bytes) -> bytes:
        """Reply to a message."""
        return _encode_outcome(lambda: self._answer_message(message))

    def _open_job(self, order: Order, folder: Path) -> bytes:
        kind: type[WorkerJob] = class_named(order.job)
        self._answer, hello = kind.load(folder).open(order.threads)
        return hello

    def _answer_message(self, message: bytes) -> bytes:
        if self._answer is None:
            raise RuntimeError("a worker was asked before it had opened its job")
        return self._answer(message)


def _encode_outcome(work: Callable[[], bytes]) -> bytes:
    try:
        return encode(Done(work()))
    except Exception as error:
        # Not BaseException: a worker that is told to end has to.
        return encode(Problem.of(error))


encode = msgspec.msgpack.Encoder().encode
decode_order = msgspec.msgpack.Decoder(Order).decode
_replies = msgspec.msgpack.Decoder(Done | Problem)


def decode_reply(content: bytes) -> bytes | Exception:
    """Decode a reply of `Server`: the answer, or what was raised."""
    reply: Done | Problem = _replies.decode(content)
    return reply.content if isinstance(reply, Done) else reply.error()


# Makes temporary folders that go even where their process is killed.
#
# Others remove what it left.
#
# A folder is locked by the process that made it, and a lock ends with its process, however that
# ends.

_PREFIX = "intact-workers-"
_OWNED = f"{_PREFIX}????????-*"
"""The names of all: with the owner's eight characters."""
_PATIENCE = 5.0
"""Seconds that processes which were killed may take to end."""
_PAUSE = 0.02


def new_owner() -> str:
    """Return a name that nobody else has."""
    return secrets.token_hex(4)


@contextlib.contextmanager
def temporary_folder(owner: str) -> Iterator[Path]:
    """Make a folder; it is removed at the end, and first those that others have left.

    Args:
        owner: Part of its name, for `remove_left`; of `new_owner`.
    """
    _remove_unlocked()
    while True:
        # Only for this user: a job has the user's data in it.
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{owner}-"))
        descriptor = _lock_folder(folder, waits=True)
        if folder.is_dir():
            break
        _close(descriptor)  # somebody took it for one that was left, before it was locked
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _close(descriptor)


def remove_left(owner: str) -> None:
    """Remove what ended processes have left on this machine.

    Args:
        owner: Its processes were killed just now: they are waited for.
    """
    ends = time.monotonic() + _PATIENCE
    while any(folder.match(f"{_PREFIX}{owner}-*") for folder in _remove_unlocked()):
        if time.monotonic() > ends:
            return
        time.sleep(_PAUSE)


def _remove_unlocked() -> list[Path]:
    """Remove the folders of processes that ended; return those that are in use."""
    used = []
    for folder in Path(tempfile.gettempdir()).glob(_OWNED):
        descriptor = _lock_folder(folder, waits=False)
        if descriptor is None:
            used.append(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            _close(descriptor)
    return used


def _lock_folder(folder: Path, *, waits: bool) -> int | None:
    """Lock a folder until the descriptor is closed.

    Returns:
        The descriptor; None where it is another user's, is locked, or cannot be.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        # The temporary folder is everybody's: a link there may lead anywhere.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # it is gone, or another user's
        return None
    try:
        if not is_ours(os.fstat(descriptor)):
            raise PermissionError(errno.EPERM, "another user's")
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except OSError:  # it is another user's or in use, or the file system has no locks
        os.close(descriptor)
        return None
    return descriptor


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
