"""Decodes the bytes of a ``.tmfile`` into tensors and nodes, and encodes them.

Equal tensors and nodes give equal bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import ExportError, ModelError
from intact.formats.base.foreign import MOST_ELEMENTS, BinaryFile
from intact.formats.tengine.tmfile.file import (
    ALIGNMENT,
    BUFFER,
    HEADER,
    MODEL,
    MOST_DIMENSIONS,
    MOST_NODES,
    NODE,
    NOTHING,
    NUMPY,
    OPERATOR,
    OPERATOR_VERSION,
    ORIGIN_ONNX,
    QUANTIZATION,
    SUBGRAPH,
    TENSOR,
    TEXT,
    VERSION,
    Element,
    FileNode,
    FileTensor,
    Kind,
    Layout,
    Quantization,
    Record,
    TmFile,
)
from intact.formats.tengine.tmfile.operators import OPERATORS, operator_name
from intact.graph.files.regular import open_file, read_file

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
        numbers = kind.packed.unpack_from(self.data, offset)
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


_MOST_TENSORS = 1 << 16
"""Elements of one tensor."""

_LARGEST_FILE = 2**32 - 1

_NEWEST = 15
"""Sub-versions that are believed to be such; all known files have 0."""

_REPEATED = 256
"""Bytes that each mention of a tensor counts for beside its four: nodes are made of it."""


def is_tmfile(source: str | Path | bytes) -> bool:
    """Whether the header of a file is that of a Tengine model; False where there is no file.

    There is no magic number: the version stands first, then where the root is, which must lie in
    the file.
    """
    size = HEADER.packed.size
    try:
        if isinstance(source, bytes):
            head, length = source[:size], len(source)
        else:
            with open_file(Path(source)) as file:
                head = file.read(size)
                length = file.seek(0, 2)
    except (OSError, ValueError):
        return False
    if len(head) < size:
        return False
    main, sub, compiled, root = HEADER.packed.unpack(head)
    known = main == VERSION and sub <= _NEWEST and compiled <= _NEWEST
    return bool(known and size <= root <= length - MODEL.packed.size)


def open_tmfile(source: str | Path | bytes) -> TmFile:
    """Read the graph of a file.

    Raises:
        ModelError: The file cannot be read, is damaged, or is no Tengine model of version 2.
    """
    if isinstance(source, bytes):
        return _decode(Wire(source, "Tengine model"))
    path = Path(source)
    try:
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise ModelError(f"{str(path)!r} has {size} bytes", remedy="4 GiB at most are read")
        data = read_file(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {str(path)!r}: {error}") from error
    return _decode(Wire(data, path.name))


def _decode(wire: Wire) -> TmFile:
    header = wire.record(0, HEADER)
    if header["main"] != VERSION:
        raise ModelError(
            f"{wire.source}: version {header['main']} of Tengine's format",
            remedy=f"version {VERSION} is read: convert the model with Tengine 1.0 or later",
        )
    model = wire.record(header["root"], MODEL)
    subgraphs = wire.numbers(model["subgraphs"], "<u4")
    if not subgraphs:
        raise wire.damaged("it has no graph")
    # Tengine's loader takes the first one as well.
    graph = wire.record(subgraphs[0], SUBGRAPH)
    # Buffers before tensors, and these before nodes: each refers to the ones before by number,
    # which is checked where it is read.
    buffers = _list(wire, graph["buffers"], "buffers", _MOST_TENSORS)
    tensors = tuple(
        _tensor(wire, index, wire.record(offset, TENSOR), buffers)
        for index, offset in enumerate(_list(wire, graph["tensors"], "tensors", _MOST_TENSORS))
    )
    nodes = tuple(
        _node(wire, index, wire.record(offset, NODE), len(tensors))
        for index, offset in enumerate(_list(wire, graph["nodes"], "nodes", MOST_NODES))
    )
    layouts = {graph["graph_layout"], graph["model_layout"]}
    if not layouts <= {*Layout}:
        raise wire.damaged(f"its layouts are {sorted(layouts)}")
    return TmFile(
        wire.source,
        Layout(max(layouts)),
        tensors,
        nodes,
        _numbers(wire, graph["input_nodes"], len(nodes), "the graph's inputs", "node"),
        _numbers(wire, graph["output_nodes"], len(nodes), "the graph's outputs", "node"),
    )


def _list(wire: Wire, offset: int, what: str, most: int) -> tuple[int, ...]:
    offsets = wire.numbers(offset, "<u4")
    if len(offsets) > most:
        raise wire.damaged(f"it has {len(offsets)} {what}, more than {most}")
    return offsets


def _tensor(wire: Wire, index: int, fields: Options, buffers: tuple[int, ...]) -> FileTensor:
    name = wire.text(fields["name"])
    called = f"tensor {index} {name!r}"
    if fields["element"] not in {*Element} or fields["kind"] not in {*Kind}:
        raise wire.damaged(f"{called} is of kind {fields['kind']} and type {fields['element']}")
    element, kind = Element(fields["element"]), Kind(fields["kind"])
    shape = wire.numbers(fields["shape"], "<i4")
    # By magnitude: two negative lengths would make a small product of a large shape.
    if len(shape) > MOST_DIMENSIONS or math.prod(map(abs, shape)) > MOST_ELEMENTS:
        raise wire.damaged(f"{called} has the shape {list(shape[:12])}")
    data = None
    if kind is Kind.CONSTANT:
        if fields["buffer"] >= len(buffers):
            raise wire.damaged(f"{called} has buffer {fields['buffer']} of {len(buffers)}")
        data = _data(wire, called, buffers[fields["buffer"]], element, shape)
    scales = _quantization(wire, called, fields["quantization"], shape)
    return FileTensor(name, shape, kind, element, data, scales)


def _data(
    wire: Wire, called: str, offset: int, element: Element, shape: tuple[int, ...]
) -> np.ndarray:
    """Return the elements of a constant; what the buffer holds beyond them is left.

    Tengine's converter stores int64 shapes in buffers of twice the size that it notes.
    """
    fields = wire.record(offset, BUFFER)
    if any(length < 1 for length in shape):
        raise wire.damaged(f"{called} is a constant of shape {list(shape)}")
    size = math.prod(shape) * np.dtype(NUMPY[element]).itemsize
    if fields["data"] == NOTHING:
        raise ModelError(
            f"{wire.source}: {called} has no data",
            remedy="the file was written for benchmarks: unset TM_FOR_BENCHMARK and convert again",
        )
    if fields["size"] < size:
        raise wire.damaged(f"{called} of shape {list(shape)} has {fields['size']} bytes")
    # Many constants may name one buffer, so that a small file would become a large model.
    wire.charge(size)
    return as_array(wire.bytes(fields["data"], size), NUMPY[element], shape)


def _quantization(
    wire: Wire, called: str, offset: int, shape: tuple[int, ...]
) -> Quantization | None:
    offsets = wire.numbers(offset, "<u4")
    if not offsets:
        return None
    # The file has no axis of scales: Tengine means the first.
    if len(offsets) > 1 and (not shape or len(offsets) != shape[0]):
        raise wire.damaged(f"{called} of shape {list(shape)} has {len(offsets)} scales")
    found = [wire.record(each, QUANTIZATION) for each in offsets]
    return Quantization(
        np.array([each["scale"] for each in found], np.float32),
        np.array([each["zero_point"] for each in found], np.int32),
    )


def _node(wire: Wire, index: int, fields: Options, tensors: int) -> FileNode:
    name = wire.text(fields["name"])
    operator = wire.record(fields["operator"], OPERATOR)
    kind = operator_name(operator["number"])
    options: Options = {}
    # Operators that are not known are kept, so that the reader names all of them at once.
    record = OPERATORS[kind].options if kind in OPERATORS else None
    if record is not None:
        if operator["options"] == NOTHING:
            raise wire.damaged(f"node {index} {name!r}, a {kind}, has no options")
        options = wire.record(operator["options"], record)
    called = f"node {index} {name!r}"
    return FileNode(
        name,
        kind,
        _numbers(wire, fields["inputs"], tensors, f"{called} reads"),
        _numbers(wire, fields["outputs"], tensors, f"{called} writes"),
        options,
    )


def _numbers(
    wire: Wire, offset: int, count: int, what: str, kind: str = "tensor"
) -> tuple[int, ...]:
    """Return numbers of tensors or nodes.

    Raises:
        ModelError: One is none of the file's.
    """
    numbers = wire.numbers(offset, "<u4")
    for number in numbers:
        if number >= count:
            raise wire.damaged(f"{what}: {kind} {number} of {count}")
    # A list may name one tensor millions of times, at four bytes each.
    wire.charge(_REPEATED * (len(numbers) - len(set(numbers))))
    return numbers


_LARGEST_WRITTEN = 2**31 - 1
"""Tengine's tools hold sizes in an int."""


def encode(file: TmFile) -> bytes:
    """Return the bytes of a file.

    Everything that is numbers lies on a multiple of four bytes.

    Raises:
        ExportError: The file would be too large, or has too many nodes.
    """
    if len(file.nodes) > MOST_NODES:
        raise ExportError(
            f"the model has {len(file.nodes)} nodes, constants counted in",
            remedy=f"Tengine numbers {MOST_NODES} at most: cut the model in parts",
        )
    return _Encoder().file(file)


class _Encoder:
    def __init__(self) -> None:
        self._data = bytearray(HEADER.packed.size)
        self._buffers: list[int] = []

    def file(self, file: TmFile) -> bytes:
        # Nodes first, then tensors, which fill the list of buffers that stands behind both.
        nodes = [self._node(number, node) for number, node in enumerate(file.nodes)]
        tensors = [self._tensor(number, tensor) for number, tensor in enumerate(file.tensors)]
        graph = self._record(
            SUBGRAPH,
            id=0,
            graph_layout=Layout.CHANNELS_FIRST,
            model_layout=Layout.CHANNELS_FIRST,
            input_nodes=self._list(file.inputs),
            output_nodes=self._list(file.outputs),
            nodes=self._list(nodes),
            tensors=self._list(tensors),
            buffers=self._list(self._buffers),
            name=NOTHING,
            info=NOTHING,
        )
        root = self._record(
            MODEL,
            original_format=ORIGIN_ONNX,
            sub_format=0,
            subgraphs=self._list([graph]),
            name=NOTHING,
        )
        # In the end, as only now it is known where the root lies.
        self._data[: HEADER.packed.size] = HEADER.packed.pack(VERSION, 0, 0, root)
        return bytes(self._data)

    def _tensor(self, number: int, tensor: FileTensor) -> int:
        quantization = NOTHING
        if tensor.quantization is not None:
            width = 8 * np.dtype(NUMPY[tensor.element]).itemsize
            pairs = zip(
                tensor.quantization.zero_point.tolist(),
                tensor.quantization.scale.tolist(),
                strict=True,
            )
            records = [
                self._record(QUANTIZATION, zero_point=zero_point, scale=scale, width=width)
                for zero_point, scale in pairs
            ]
            quantization = self._list(records)
        if tensor.kind is Kind.CONSTANT:
            self._buffers.append(self._buffer(tensor))
        return self._record(
            TENSOR,
            id=number,
            # A tensor that is no constant names a buffer too, which Tengine does not read.
            buffer=max(len(self._buffers) - 1, 0),
            shape=self._list(tensor.shape),
            name=self._text(tensor.name),
            quantization=quantization,
            layout=Layout.CHANNELS_FIRST,
            kind=tensor.kind,
            element=tensor.element,
        )

    def _buffer(self, tensor: FileTensor) -> int:
        data = np.ascontiguousarray(tensor.data, NUMPY[tensor.element]).tobytes()
        return self._record(BUFFER, size=len(data), data=self._put(data))

    def _node(self, number: int, node: FileNode) -> int:
        kind = OPERATORS[node.operator]
        options = NOTHING
        if kind.options is not None:
            lists = {name: self._list(node.options[name] or ()) for name in kind.options.lists}
            options = self._record(kind.options, **{**node.options, **lists})
        return self._record(
            NODE,
            id=number,
            inputs=self._list(node.inputs),
            outputs=self._list(node.outputs),
            operator=self._record(
                OPERATOR, version=OPERATOR_VERSION, number=kind.number, options=options
            ),
            name=self._text(node.name),
            attributes=NOTHING,
            dynamic_shape=0,
        )

    # ---- pieces ------------------------------------------------------------------------------

    def _record(self, struct: Record, /, **fields: Any) -> int:
        return self._put(struct.packed.pack(*(fields[name] for name in struct.names)))

    def _list(self, numbers: Iterable[int]) -> int:
        """Put a list of numbers of 32 bits; an empty one is nothing."""
        # Lists of int32 and of offsets are written alike, negative numbers in two's complement.
        numbers = [number & 0xFFFFFFFF for number in numbers]
        if not numbers:
            return NOTHING
        return self._put(np.array([len(numbers), *numbers], "<u4").tobytes())

    def _text(self, text: str) -> int:
        # A name made in Python may hold lone surrogates, which plain UTF-8 refuses.
        data = text.encode("utf-8", "surrogatepass") + b"\0"
        return self._record(TEXT, size=len(data), data=self._put(data))

    def _put(self, data: bytes) -> int:
        # Tengine casts pointers into the file to structs, which some processors refuse where they
        # are not aligned.
        self._data += bytes(-len(self._data) % ALIGNMENT)
        offset = len(self._data)
        if offset + len(data) > _LARGEST_WRITTEN:
            raise ExportError(
                "the model takes more than 2 GiB as a Tengine file",
                remedy="Tengine's tools cannot hold it: cut the model in parts",
            )
        self._data += data
        return offset
