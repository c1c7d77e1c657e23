"""Mutations of any file, which know nothing of its format."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

INTEGERS = (0, 1, -1, 2, 127, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**63 - 1)
"""Where sizes, signs and widths go over; all fit int64."""


def mutate_bytes(data: bytes, other: bytes, random: Random) -> bytes:
    """Return the file with one to six mutations.

    Args:
        data: The file.
        other: Another file of the format, for splicing.
        random: Decides everything.
    """
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        data = random.choice(_MUTATIONS)(data, other, random)
    return data


def _flip_bit(data: bytes, _other: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) or 1)
    return (
        data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :] if data else b""
    )


def _replace(data: bytes, _other: bytes, random: Random) -> bytes:
    at, length = _piece(data, random, 8)
    return data[:at] + random.randbytes(length) + data[at + length :]


def _truncate(data: bytes, _other: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _insert(data: bytes, _other: bytes, random: Random) -> bytes:
    at, length = _piece(data, random, 16)
    filling = random.choice((b"\0", b"\xff", b"\n", b"\x80", random.randbytes(1)))
    return data[:at] + filling * length + data[at:]


def _duplicate(data: bytes, _other: bytes, random: Random) -> bytes:
    at, length = _piece(data, random, 256)
    return data[: at + length] + data[at:]


def _delete(data: bytes, _other: bytes, random: Random) -> bytes:
    at, length = _piece(data, random, 256)
    return data[:at] + data[at + length :]


def _splice(data: bytes, other: bytes, random: Random) -> bytes:
    return _truncate(data, b"", random) + other[random.randrange(len(other) + 1) :]


def _put_integer(data: bytes, _other: bytes, random: Random) -> bytes:
    value = random.choice(INTEGERS)
    width = random.choice((1, 2, 4, 8))
    packed = random.choice((struct.pack("<q", value)[:width], _varint(value)))
    at, _ = _piece(data, random, 1)
    return data[:at] + packed + data[at + len(packed) :]


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _piece(data: bytes, random: Random, longest: int) -> tuple[int, int]:
    at = random.randrange(len(data) + 1)
    return at, min(random.randint(1, longest), len(data) - at)


_MUTATIONS: tuple[Callable[[bytes, bytes, Random], bytes], ...] = (
    _flip_bit,
    _replace,
    _truncate,
    _insert,
    _duplicate,
    _delete,
    _splice,
    _put_integer,
)
