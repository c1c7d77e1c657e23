"""Files whose tables, lists and offsets lie: an error of one line, and no memory or time."""

from __future__ import annotations

import re
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from intact.errors import ModelError
from intact.formats.tflite.read import read_tflite
from intact.formats.tflite.reading.wire import Wire
from intact.targets import load_target
from tests.formats.tflite.read_cases import build

TARGET = load_target("tflite")


def _message(data: bytes) -> str:
    with pytest.raises(ModelError) as caught:
        read_tflite(data, TARGET)
    return str(caught.value)


def test_a_file_that_ends_early() -> None:
    data = build("embedding")
    for length in range(0, len(data), 7):
        message = _message(data[:length])
        assert re.search("outside|no identifier|is damaged|cannot be read", message)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.tflite", tmp_path, tmp_path / "nul\0"):
        with pytest.raises(ModelError, match="cannot read"):
            read_tflite(path, TARGET)


def test_another_kind_of_file() -> None:
    assert "no identifier TFL3" in _message(b"\x08\x00\x00\x00ONNX" + bytes(100))


def _table(*fields: bytes) -> bytes:
    """Return a file whose root table has fields, four bytes each."""
    size = 4 + 2 * len(fields)
    vtable = struct.pack("<HH", size, 4 + 4 * len(fields))
    vtable += b"".join(struct.pack("<H", 4 + 4 * k) for k in range(len(fields)))
    vtable += bytes(-len(vtable) % 4)
    root = 8 + len(vtable)
    return (
        struct.pack("<I", root) + b"TFL3" + vtable + struct.pack("<i", root - 8) + b"".join(fields)
    )


def _root(data: bytes) -> Wire:
    return Wire(data, "file")


def test_scalars_defaults_and_absent_fields() -> None:
    table = _root(_table(struct.pack("<I", 7), struct.pack("<f", 0.5))).root(b"TFL3")
    assert table.integer(0, "<I") == 7
    assert table.number(1, "<f") == 0.5
    assert table.integer(2, "<I", 9) == 9
    assert table.text(2) == ""
    assert table.array(2, np.int32) is None
    assert table.table(2) is None
    assert table.tables(2, 5) == []


@pytest.mark.parametrize("offset", [2**32 - 1, 2**31, 1000, 6])
def test_lists_outside_of_the_file(offset: int) -> None:
    table = _root(_table(struct.pack("<I", offset))).root(b"TFL3")
    for read in (table.text, table.bytes, lambda slot: table.array(slot, np.int64)):
        with pytest.raises(ModelError, match="outside"):
            read(0)
    with pytest.raises(ModelError, match=r"outside|entries"):
        table.tables(0, 100)


@pytest.mark.parametrize("back", [2**31 - 1, -(2**31), 10_000, -10_000])
def test_fields_outside_of_the_file(back: int) -> None:
    data = bytearray(_table(struct.pack("<I", 7)))
    (root,) = struct.unpack_from("<I", data)
    struct.pack_into("<i", data, root, back)
    with pytest.raises(ModelError, match="outside"):
        _root(bytes(data)).root(b"TFL3")


def test_a_list_with_more_entries_than_are_read() -> None:
    entries = struct.pack("<I", 20) + struct.pack("<I", 0) * 20
    data = _table(struct.pack("<I", 4)) + entries
    with pytest.raises(ModelError, match="20 entries, more than 19"):
        _root(data).root(b"TFL3").tables(0, 19)


def test_tables_that_share_a_list_a_million_times() -> None:
    """Decoding costs what the file is long, not what its tables claim together."""
    count, length = 100_000, 1 << 20
    inner = _table(struct.pack("<I", 4))[8:]  # one table with a list right behind it
    strings = struct.pack("<I", length) + bytes(length)
    head = _table(struct.pack("<I", 4))
    start = len(head) + 4 + 4 * count
    table = start + 8
    offsets = (table - (len(head) + 4 + 4 * np.arange(count))).astype("<u4").tobytes()
    data = head + struct.pack("<I", count) + offsets + inner + strings
    wire = _root(data)
    tables = wire.root(b"TFL3").tables(0, count)
    with pytest.raises(ModelError, match="share their contents too often"):
        [each.text(0) for each in tables]


def test_a_tensor_of_exabytes_takes_no_memory() -> None:
    data = build("computed_shape")
    shape = np.array([1, 8, 8, 4], "<i4").tobytes()
    assert shape in data
    huge = data.replace(shape, np.array([1, 46340, 46340, 4], "<i4").tobytes())
    tracemalloc.start()
    message = _message(huge)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "its shape is [1, 46340, 46340, 4]" in message
    assert peak < 1 << 24
