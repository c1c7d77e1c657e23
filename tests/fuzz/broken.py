"""Readers that do what no reader may do, to see that it is noticed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import numpy as np

from intact.errors import DataError
from tests.fuzz.kinds import Kind

_GOOD, _BAD = b"good", b"bad"


class _ChattyError(DataError):
    def __str__(self) -> str:
        return "first line\nsecond line"


def _raise(path: Path) -> None:
    raise KeyError(path.name)


def _refuse(_path: Path) -> None:
    raise DataError("damaged")


def _say_nothing(_path: Path) -> None:
    raise DataError("")


def _chat(_path: Path) -> None:
    raise _ChattyError("")


def _hang(_path: Path) -> None:
    time.sleep(60)


def _toil(_path: Path) -> None:
    while True:
        pass


def _abort(_path: Path) -> None:
    os.abort()


def _take_memory(_path: Path) -> None:
    np.zeros(1 << 40, np.uint8)


def _hide_taken_memory(path: Path) -> None:
    try:
        _take_memory(path)
    except MemoryError as error:
        raise DataError("damaged") from error


def _kind(act: Callable[[Path], None], seconds: float = 30) -> Kind:
    def feed(path: Path) -> None:
        if path.read_bytes() == _BAD:
            act(path)

    def mutate(_data: bytes, _other: bytes, random: Random) -> bytes:
        return _BAD if random.random() < 0.3 else _GOOD

    return Kind("case.txt", lambda _folder: [_GOOD], mutate, feed, seconds)


BROKEN: Mapping[str, Kind] = {
    "refuse": _kind(_refuse),  # as it should be
    "raise": _kind(_raise),
    "nothing": _kind(_say_nothing),
    "chat": _kind(_chat),
    "hang": _kind(_hang, seconds=0.02),
    "toil": _kind(_toil, seconds=0.1),
    "abort": _kind(_abort),
    "memory": _kind(_take_memory),
    "hidden": _kind(_hide_taken_memory),
}
"""By what they do with about every third case."""
