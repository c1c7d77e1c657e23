"""Tables of a flatbuffer, with every access held against the file.

The format trusts its writer: offsets lead anywhere, vectors may be as long as they say, and tables
may be shared a million times. Here each position is checked before it is read, and what was read is
counted, so that decoding a file takes no longer than its size explains.
Source: the FlatBuffers documentation ("FlatBuffer Internals").
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.formats.binary import BinaryFile

_TABLE = 32
"""Bytes that a table counts for, which bounds the work of those that share all their fields."""


class Wire(BinaryFile):
    """A flatbuffer, and how much of it may still be decoded."""

    def number(self, position: int, form: str) -> Any:
        """Return a scalar of a ``struct`` format."""
        if not 0 <= position <= len(self.data) - struct.calcsize(form):
            raise self.damaged(f"position {position} lies outside it")
        return struct.unpack_from(form, self.data, position)[0]

    def root(self, identifier: bytes) -> Table:
        """Return the root table of a file with an identifier."""
        if bytes(self.data[4:8]) != identifier:
            raise self.damaged(f"it has no identifier {identifier.decode()} at byte 4")
        return Table(self, self.number(0, "<I"))


class Table:
    """One table; fields are named by their slots, absent ones have defaults.

    Raises:
        ModelError: It or its list of fields lies outside the file.
    """

    def __init__(self, wire: Wire, position: int) -> None:
        self._wire = wire
        self._position = position
        wire.charge(_TABLE)
        self._fields = position - wire.number(position, "<i")
        self._fields_size = wire.number(self._fields, "<H")
        self._size = wire.number(self._fields + 2, "<H")
        size = len(wire.data)
        if self._fields_size < 4 or self._fields + self._fields_size > size:
            raise wire.damaged(f"the fields of the table at {position} lie outside it")
        if self._size < 4 or position + self._size > size:
            raise wire.damaged(f"the table at {position} ends outside it")

    def number(self, slot: int, form: str, default: float = 0) -> Any:
        """Return a scalar field of a ``struct`` format."""
        at = self._field(slot, struct.calcsize(form))
        return default if at is None else self._wire.number(at, form)

    def integer(self, slot: int, form: str, default: int = 0) -> int:
        """Return an integer field."""
        return int(self.number(slot, form, default))

    def text(self, slot: int) -> str:
        """Return a string; bytes that are not UTF-8 are replaced."""
        data = self._vector(slot, 1)
        if data is None:
            return ""
        self._wire.charge(len(data))
        return bytes(data).decode("utf-8", "replace")

    def bytes(self, slot: int) -> memoryview | None:
        """Return a vector of bytes, not copied and not counted; None where it is absent."""
        return self._vector(slot, 1)

    def array(self, slot: int, dtype: npt.DTypeLike) -> npt.NDArray[Any] | None:
        """Return a vector of numbers as a read-only array; None where it is absent."""
        kind = np.dtype(dtype).newbyteorder("<")
        data = self._vector(slot, kind.itemsize)
        if data is None:
            return None
        self._wire.charge(len(data))
        return np.frombuffer(data, kind)

    def table(self, slot: int) -> Table | None:
        """Return a table that a field leads to; None where it is absent."""
        at = self._field(slot, 4)
        return None if at is None else Table(self._wire, at + self._wire.number(at, "<I"))

    def tables(self, slot: int, most: int) -> list[Table]:
        """Return a vector of tables.

        Raises:
            ModelError: It has more than ``most``.
        """
        data = self._vector(slot, 4)
        if data is None:
            return []
        offsets = np.frombuffer(data, "<u4")
        if offsets.size > most:
            raise self._wire.damaged(f"a list of it has {offsets.size} entries, more than {most}")
        start = self._target(slot) + 4
        positions = start + 4 * np.arange(offsets.size) + offsets.astype(np.int64)
        return [Table(self._wire, int(position)) for position in positions]

    def has(self, slot: int) -> bool:
        """Tell whether a field is present."""
        return self._field(slot, 1) is not None

    def _field(self, slot: int, size: int) -> int | None:
        at = 4 + 2 * slot
        if at + 2 > self._fields_size:
            return None
        offset = self._wire.number(self._fields + at, "<H")
        if offset == 0:
            return None
        if offset + size > self._size:
            raise self._wire.damaged(f"field {slot} of the table at {self._position} ends outside")
        return self._position + int(offset)

    def _target(self, slot: int) -> int:
        at = self._field(slot, 4)
        return 0 if at is None else at + int(self._wire.number(at, "<I"))

    def _vector(self, slot: int, width: int) -> memoryview | None:
        at = self._target(slot)
        if at == 0:
            return None
        length = int(self._wire.number(at, "<I"))
        if at + 4 + length * width > len(self._wire.data):
            raise self._wire.damaged(f"a list of {length} entries at {at} ends outside it")
        return self._wire.data[at + 4 : at + 4 + length * width]
