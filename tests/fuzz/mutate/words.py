"""Mutations of files that are made of words of 32 bits: offsets, counts, sizes and options."""

from __future__ import annotations

import struct
from random import Random

from tests.fuzz.mutate.raw import INTEGERS, mutate_bytes

_TRIES = 20
"""Draws for a word that looks like an offset or a count: most words are weights."""


def mutate_words(data: bytes, other: bytes, random: Random) -> bytes:
    """Return the file with some mutations; see `mutate_bytes` for the arguments."""
    if random.random() < 0.2 or len(data) < 16:
        return mutate_bytes(data, other, random)
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        at = _word(changed, random)
        values = (*INTEGERS, *range(9), len(data), at, random.randrange(len(data)))
        struct.pack_into("<I", changed, at, random.choice(values) & 0xFFFFFFFF)
    return bytes(changed)


def _word(data: bytearray, random: Random) -> int:
    at = 0
    for _ in range(_TRIES):
        at = random.randrange(len(data) // 4) * 4
        if struct.unpack_from("<I", data, at)[0] < len(data):
            break
    return at
