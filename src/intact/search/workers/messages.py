"""What a pool and its workers say to each other: msgpack, which cannot run anything."""

from __future__ import annotations

import traceback
from typing import Any, BinaryIO, NoReturn, TypeAlias

import msgspec
import numpy as np

from intact import errors
from intact.errors import IntactError
from intact.search.space import Candidate
from intact.search.trial import Ask, Measured

_LENGTH = 4
"""Bytes before a message in a stream: its length, little-endian."""


class Start(msgspec.Struct, tag=True, frozen=True):
    """The first message: what to measure with.

    Attributes:
        folder: Where the bench is.
        opener: ``module:function``, which takes the folder and the threads and returns a
            `Measurer`.
        threads: That the worker may use.
    """

    folder: str
    opener: str
    threads: int


class Measure(msgspec.Struct, tag=True, frozen=True):
    """Run a candidate."""

    ask: Ask


class Confirm(msgspec.Struct, tag=True, frozen=True):
    """Run a candidate on all samples, as the hardware computes it."""

    candidate: Candidate


class FloatScore(msgspec.Struct, tag=True, frozen=True):
    """Return the score of the float model."""


Request: TypeAlias = Start | Measure | Confirm | FloatScore


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The worker has what it needs."""


class Result(msgspec.Struct, tag=True, frozen=True):
    """What a candidate gave."""

    measured: Measured


class Score(msgspec.Struct, tag=True, frozen=True):
    """A score."""

    value: float


class Problem(msgspec.Struct, tag=True, frozen=True):
    """An error that ends the search.

    Attributes:
        kind: Class of `intact.errors`; empty for others, which are errors in a program.
        text: What it says.
        trace: Where it was raised.
    """

    kind: str
    text: str
    trace: str

    @staticmethod
    def of(error: BaseException) -> Problem:
        """Return an error as a message."""
        trace = "".join(traceback.format_exception(error))
        if isinstance(error, IntactError):
            return Problem(type(error).__name__, str(error), trace)
        return Problem("", f"{type(error).__name__}: {error}", trace)

    def throw(self) -> NoReturn:
        """Raise the error here.

        Raises:
            IntactError: Of the same class.
            WorkerError: It was none.
        """
        kind = getattr(errors, self.kind, None) if self.kind else None
        if isinstance(kind, type) and issubclass(kind, IntactError):
            raise kind(self.text)
        error = WorkerError(self.text)
        error.add_note(f"In the worker:\n{self.trace}")
        raise error


Reply: TypeAlias = Ready | Result | Score | Problem


class WorkerError(RuntimeError):
    """An error in a program that ran in a worker; its note holds the worker's traceback."""


def _plain(value: object) -> Any:
    """Return a NumPy scalar as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a message cannot hold a {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_requests = msgspec.msgpack.Decoder(Request)
_replies = msgspec.msgpack.Decoder(Reply)


def encode(message: Request | Reply) -> bytes:
    """Return a message as bytes; floats keep every bit."""
    return _encoder.encode(message)


def decode_request(content: bytes) -> Request:
    """Decode a message of a pool."""
    request: Request = _requests.decode(content)
    return request


def decode_reply(content: bytes) -> Reply:
    """Decode a message of a worker."""
    reply: Reply = _replies.decode(content)
    return reply


def send(stream: BinaryIO, content: bytes) -> None:
    """Write one message.

    Raises:
        OSError: Nobody reads the stream any more.
    """
    stream.write(len(content).to_bytes(_LENGTH, "little") + content)
    stream.flush()


def receive(stream: BinaryIO) -> bytes | None:
    """Wait for one message; None at the end of the stream, in the middle of a message too."""
    head = stream.read(_LENGTH)
    size = int.from_bytes(head, "little")
    content = stream.read(size) if len(head) == _LENGTH else b""
    return content if content and len(content) == size else None
