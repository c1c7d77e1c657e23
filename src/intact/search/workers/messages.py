"""The messages between a pool and its workers, as msgpack: decoding runs no code."""

from __future__ import annotations

from typing import Any, BinaryIO, TypeAlias

import msgspec
import numpy as np

from intact.cluster.problem import Problem
from intact.search.space import Candidate
from intact.search.trial import Ask, Measured

_LENGTH = 4
"""Size in bytes of a message's length field, little-endian."""


class Start(msgspec.Struct, tag=True, frozen=True):
    """The first message: where the trial data are.

    Attributes:
        folder: The folder of the trial data.
        opener: ``module:function`` that takes the folder and the threads and returns a
            `Measurer`.
        threads: Number of threads for the worker.
    """

    folder: str
    opener: str
    threads: int


class Measure(msgspec.Struct, tag=True, frozen=True):
    """Measure a candidate."""

    ask: Ask


class Confirm(msgspec.Struct, tag=True, frozen=True):
    """Measure a candidate on all samples, as the hardware computes it."""

    candidate: Candidate


class FloatScore(msgspec.Struct, tag=True, frozen=True):
    """Request the score of the float model."""


Request: TypeAlias = Start | Measure | Confirm | FloatScore


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The worker has loaded the trial data."""


class Result(msgspec.Struct, tag=True, frozen=True):
    """The result of a candidate."""

    measured: Measured


class Score(msgspec.Struct, tag=True, frozen=True):
    """A score."""

    value: float


Reply: TypeAlias = Ready | Result | Score | Problem


def _plain(value: object) -> Any:
    """Convert a NumPy scalar to a Python number."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a message cannot hold a {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_requests = msgspec.msgpack.Decoder(Request)
_replies = msgspec.msgpack.Decoder(Reply)


def encode(message: Request | Reply) -> bytes:
    """Encode a message; floats keep every bit."""
    return _encoder.encode(message)


def decode_request(content: bytes) -> Request:
    """Decode a message from the pool."""
    request: Request = _requests.decode(content)
    return request


def decode_reply(content: bytes) -> Reply:
    """Decode a message from a worker."""
    reply: Reply = _replies.decode(content)
    return reply


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
    return content if content and len(content) == size else None
