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
from intact.formats.tflite.reader.decode import Wire
from intact.formats.tflite.reader.file import Parameters
from intact.targets import load_target
from tests.formats.tflite.read_cases import build
from tests.formats.tflite.small_files import FileBuilder

TARGET = load_target("tflite")


def _message(data: bytes) -> str:
    with pytest.raises(ModelError) as caught:
        read_tflite(data, TARGET)
    return str(caught.value)


def test_read_of_truncated_file_raises() -> None:
    data = build("embedding")
    for length in range(0, len(data), 7):
        message = _message(data[:length])
        assert re.search("outside|no identifier|is damaged|cannot be read", message)


def test_read_of_missing_file_raises(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.tflite", tmp_path, tmp_path / "nul\0"):
        with pytest.raises(ModelError, match="cannot read"):
            read_tflite(path, TARGET)


def test_read_of_other_file_type_raises() -> None:
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


def test_read_of_shared_lists_is_bounded() -> None:
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


def test_read_of_huge_shape_takes_no_memory() -> None:
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


@pytest.mark.parametrize("kind", ["CONCATENATION", "PACK"])
def test_read_of_one_input_listed_many_times_is_bounded(kind: str) -> None:
    """Four bytes of the file would become some nodes and configs, each time."""
    b = FileBuilder()
    x, count = b.input((1, 1)), 50_000
    out = b.tensor((1, count) if kind == "CONCATENATION" else (1, count, 1))
    b.op(kind, [x] * count, out, f"{kind.capitalize()}Options", axis=1)
    assert "share their contents too often" in _message(b.build(out))


def test_read_of_one_output_listed_many_times_is_bounded() -> None:
    b = FileBuilder()
    out = b.op("RELU", [b.input((1, 4))], b.tensor((1, 4)))
    assert "share their contents too often" in _message(b.build(*[out] * 50_000))


_LENGTH = 4096


def _grown(name: str) -> bytes:
    """Return a file that makes gigabytes of a few thousand integers."""
    b = FileBuilder()
    b.input((1, 4))
    row = b.ints(*range(_LENGTH), shape=(1, _LENGTH))
    column = b.ints(*[0] * _LENGTH, shape=(_LENGTH, 1))
    out = b.tensor((_LENGTH,), "int32", None)
    match name:
        case "ADD":
            b.op("ADD", [row, column], out, "AddOptions")
        case "GATHER":
            b.op("GATHER", [row, column], out, "GatherOptions", axis=0)
        case _:
            parts = [b.ints(*range(_LENGTH)) for _ in range(300)]
            b.op(name, parts, out, "PackOptions" if name == "PACK" else "ConcatenationOptions")
    return b.build(out)


@pytest.mark.parametrize("name", ["ADD", "GATHER", "CONCATENATION", "PACK"])
def test_integers_that_grow_take_no_memory(name: str) -> None:
    data = _grown(name)
    tracemalloc.start()
    message = _message(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert f"integers where its output has {_LENGTH}" in message
    assert peak < len(data) + (1 << 22)


def test_a_quantizer_for_each_of_many_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scale of one input is looked up, not compared with all before it."""
    compared = 0
    equals = Parameters.equals

    def counted(self: Parameters, other: Parameters | None) -> bool:
        nonlocal compared
        compared += 1
        return equals(self, other)

    monkeypatch.setattr(Parameters, "equals", counted)
    b = FileBuilder()
    x, count = b.input((1, 4), "float32", scale=None), 200
    outputs = []
    for k in range(count):
        codes = b.op("QUANTIZE", [x], b.tensor((1, 4), scale=0.01 + 1e-5 * k))
        outputs.append(b.op("RELU", [codes], b.tensor((1, 4), scale=0.3)))
    plan = read_tflite(b.build(*outputs), TARGET)
    assert len(plan.graph.outputs) == count
    assert compared < 10 * count


def test_read_errors_are_short() -> None:
    b = FileBuilder()
    x = b.input((1, 4), name="x" * 10_000)
    many = b.ints(*[1] * 5_000)
    for k in range(120):
        out = b.tensor((1, 4), name=f"{k}" * 1000)
        b.op("STRIDED_SLICE", [x, many, many, many], out, "StridedSliceOptions", newAxisMask=-1)
    message = _message(b.build(out))
    assert "120 of 120 operators" in message
    assert "and 20 more reasons" in message
    assert len(message) < 60_000
