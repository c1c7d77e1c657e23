"""Declares the protocol of work that may be done elsewhere, its replies and its errors.

Whoever has work makes a `Job`. It is saved into a folder, where the folder is read it is loaded
again, and each worker opens it once. Then a worker answers messages, one after the other. Whoever
sent them merges the answers. Messages are bytes of the job's own, msgpack mostly: nothing is
pickled, and decoding runs no code.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from intact import errors
from intact.errors import IntactError


class Opened(NamedTuple):
    """A job that a worker has opened.

    Attributes:
        answer: Answers a message. What it raises is raised where the message came from.
        hello: What is to be known of the worker before a message is made for it.
    """

    answer: Callable[[bytes], bytes]
    hello: bytes = b""


class Job(Protocol):
    """Work for workers. They find the class by its name, so it is at the top of a module."""

    def save(self, folder: Path) -> None:
        """Write it to an empty folder."""

    @classmethod
    def load(cls, folder: Path) -> Job:
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
        kind: type[Job] = class_named(order.job)
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
