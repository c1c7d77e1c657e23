"""Structs and lists of a file, with every access held against it.

The format trusts its writer: offsets lead anywhere, lists may be as long as they say, and structs
may be shared a million times. Here each position is checked before it is read, and what was read is
counted, so that decoding a file takes no longer than its size explains.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.formats.base.binary import BinaryFile
from intact.formats.tengine.tmfile.layout import NOTHING, TEXT, Record

_LIST = 16
"""Bytes that each list and text counts for beside its content."""

Number = int | float
Options = dict[str, Any]
"""Fields of a struct by name: numbers, and tuples of int32 (None where a list is not there)."""


class Wire(BinaryFile):
    """A file of structs, and how much of it may still be decoded."""

    def record(self, offset: int, kind: Record) -> Options:
        """Return the fields of a struct; lists are read too.

        Raises:
            ModelError: It, or a list of it, lies outside the file.
        """
        size = kind.packed.size
        self._inside(offset, size)
        self.charge(size)
        try:
            numbers = kind.packed.unpack_from(self.data, offset)
        except struct.error as error:  # pragma: no cover - the length was checked
            raise self.damaged(f"the struct at {offset} cannot be read") from error
        fields: Options = dict(zip(kind.names, numbers, strict=True))
        for name in kind.lists:
            at = fields[name]
            fields[name] = None if at == NOTHING else self.numbers(at, "<i4")
        return fields

    def numbers(self, offset: int, dtype: str) -> tuple[int, ...]:
        """Return a list of integers of 32 bits; an empty one where there is none."""
        if offset == NOTHING:
            return ()
        data = self._list(offset, 4)
        self.charge(len(data) + _LIST)
        return tuple(np.frombuffer(data, dtype).tolist())

    def text(self, offset: int) -> str:
        """Return a text without its final NUL; bytes that are not UTF-8 are replaced."""
        if offset == NOTHING:
            return ""
        fields = self.record(offset, TEXT)
        size, at = fields["size"], fields["data"]
        self._inside(at, size)
        self.charge(size + _LIST)
        return bytes(self.data[at : at + size]).rstrip(b"\0").decode("utf-8", "replace")

    def bytes(self, offset: int, size: int) -> memoryview:
        """Return a piece of the file, not copied and not counted."""
        self._inside(offset, size)
        return self.data[offset : offset + size]

    def _list(self, offset: int, width: int) -> memoryview:
        self._inside(offset, 4)
        length = int(struct.unpack_from("<I", self.data, offset)[0])
        return self.bytes(offset + 4, length * width)

    def _inside(self, offset: int, size: int) -> None:
        if not 0 <= offset <= len(self.data) - size:
            raise self.damaged(f"{size} bytes at {offset} lie outside it")


def as_array(data: memoryview, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return a piece of a file as a read-only array."""
    return np.frombuffer(data, dtype).reshape(shape)
