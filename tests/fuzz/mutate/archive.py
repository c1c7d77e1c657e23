"""Mutations of ``.npy`` and ``.npz`` files: headers and sizes that lie, arrays of other types."""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
from collections.abc import Callable
from random import Random

import numpy as np

from tests.fuzz.mutate.raw import INTEGERS, mutate_bytes

_DESCRIPTIONS = (
    "'<f4'", "'<f8'", "'>i2'", "'<U9'", "'|O'", "'|b1'", "'<M8[s]'", "'|V8'", "'<c16'", "'|S0'",
    "[('a', '<f4'), ('b', '|O')]", "'<f4, <f4'", "'nonsense'", "''", "None", "7", "('<f4', (3,))",
    "'<U536870911'", "__import__('os')",
)  # fmt: skip
_SHAPES = (
    "()", "(0,)", "(-1,)", "(1099511627776,)", "(4294967296, 4294967296)", "(2, 1, 4, 4)",
    "(9223372036854775808,)", "(1, -1)", "(True,)", "'4'", "[4]", "(1.5,)", "(4, 0, 1099511627776)",
    f"({'1, ' * 80})", f"{'(' * 300}",
)  # fmt: skip
_MEMBERS = (
    "x", ".npy", "image.npy", "labels.npy", "../up.npy", "/etc/passwd", "a/b.npy", "a\n.npy",
    "x" * 999, "folder/",
)  # fmt: skip
_BOMB = 1 << 23  # bytes


def mutate_archive(data: bytes, other: bytes, random: Random) -> bytes:
    """Return the archive (or the single array) with some mutations; see `mutate_bytes`."""
    if random.random() < 0.3:
        return mutate_bytes(data, other, random)
    if not data.startswith(b"PK"):
        return _mutate_array(data, other, random)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(members))
        members[at] = random.choice(_MEMBER_MUTATIONS)(members[at], other, random)
        if random.random() < 0.2:
            members.append(random.choice(members))
    result = _zipped(members, random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    return _lie(result, random) if random.random() < 0.3 else result


def _zipped(members: list[tuple[str, bytes]], compression: int) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", compression) as archive:
        warnings.simplefilter("ignore")  # equal names
        for name, content in members:
            # A member made from a name alone gets the time of day, and no case would come again.
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return buffer.getvalue()


def _lie(data: bytes, random: Random) -> bytes:
    """Change a number in the headers of the archive: sizes, offsets, method, flags."""
    marks = [b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"]
    at = data.find(random.choice(marks))
    field = at + random.choice((6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 42))
    packed = struct.pack("<q", random.choice(INTEGERS))[: random.choice((2, 4))]
    return data[:field] + packed + data[field + len(packed) :]


Member = tuple[str, bytes]


def _rename(member: Member, _other: bytes, random: Random) -> Member:
    return random.choice(_MEMBERS), member[1]


def _change_content(member: Member, other: bytes, random: Random) -> Member:
    return member[0], _mutate_array(member[1], other, random)


def _inflate(member: Member, _other: bytes, random: Random) -> Member:
    header = _header(
        random.choice(_DESCRIPTIONS), random.choice((f"({_BOMB},)", f"(1, 1, {_BOMB})"))
    )
    return member[0], header + bytes(_BOMB // random.choice((1, 2)))


def _mutate_array(data: bytes, other: bytes, random: Random) -> bytes:
    if random.random() < 0.2:
        return mutate_bytes(data, other, random)
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception:  # an earlier mutation
        return data[: len(data) // 2]
    if random.random() < 0.5:
        return _saved(_other_array(array, random))
    description, shape = repr(array.dtype.str), repr(array.shape)
    if random.random() < 0.5:
        description = random.choice(_DESCRIPTIONS)
    if random.random() < 0.7:
        shape = random.choice(_SHAPES)
    return _header(description, shape, random) + data[-array.nbytes :]


def _other_array(array: np.ndarray, random: Random) -> np.ndarray:
    """Return the array with another value, type or shape."""
    action = random.choice(("value", "value", "dtype", "shape", "drop", "zero", "order"))
    if action == "value" and array.size and array.dtype.kind in "iuf":
        copy = array.copy()
        value = random.choice((*INTEGERS, np.nan, np.inf) if copy.dtype.kind == "f" else INTEGERS)
        with np.errstate(all="ignore"):
            copy.flat[random.randrange(copy.size)] = np.float64(value).astype(copy.dtype)
        return copy
    if action == "dtype" and array.dtype.kind in "iuf":
        with np.errstate(all="ignore"):
            return array.astype(random.choice(("i1", "u8", "f2", "f8", "c8", "?", "U5", "S3")))
    if action == "shape":
        return array.reshape(random.choice(((-1,), (1, -1), (-1, 1), (*array.shape, 1))))
    if action == "drop" and array.ndim:
        return array[: random.randrange(len(array) + 1)]
    return np.zeros_like(array) if action == "zero" else array[..., None].T


def _saved(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _header(description: str, shape: str, random: Random | None = None) -> bytes:
    """Return the start of an ``.npy``, with whatever text is given in it."""
    text = f"{{'descr': {description}, 'fortran_order': False, 'shape': {shape}, }}"
    version, length = b"\x01\x00", len(text) + 1
    if random is not None and random.random() < 0.2:
        version = random.choice((b"\x02\x00", b"\x03\x00", b"\x09\x09"))
        length = random.choice((0, 5, 65535, length))
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", length)
    return b"\x93NUMPY" + version + size + text.encode() + b"\n"


_MEMBER_MUTATIONS: tuple[Callable[[Member, bytes, Random], Member], ...] = (
    *[_change_content] * 20,
    *[_rename] * 3,
    _inflate,  # slow to make
)
