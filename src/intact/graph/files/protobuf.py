"""Skips large weights in protobuf files when reading, and streams them when writing.

The protobuf library holds a whole model in memory, several copies of it while it parses or writes.
The format is simple enough to skip the weights: a message is a sequence of fields, each a tag
(number and wire type) and a payload after its length. Source: "Protocol Buffers: Encoding" and
onnx.proto.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

import onnx

_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_RAW_DATA = 7, 5, 9
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
# 64 bits, seven in a byte.
_LONGEST_VARINT = 10


class Span(NamedTuple):
    """Part of a file, from ``start`` to ``end`` (exclusive), in bytes."""

    start: int
    end: int


class _Field(NamedTuple):
    number: int
    kind: int
    """Wire type."""
    whole: Span
    """Tag and payload."""
    payload: Span

    def is_message(self, number: int) -> bool:
        """Tell whether it is the field of that number, with a length in front.

        The protobuf library keeps a field of another wire type as one that it does not know.
        """
        return self.number == number and self.kind == _LENGTH


def read_without_weights(
    pages: mmap.mmap, *, larger_than: int
) -> tuple[onnx.ModelProto, dict[str, Span]]:
    """Parse a model without the ``raw_data`` of its large initializers.

    Args:
        pages: The content of an ``.onnx`` file.
        larger_than: Size in bytes; smaller data is parsed.

    Returns:
        The model, in which those initializers have no data, and the place of their data by name.

    Raises:
        ValueError: The bytes are not a protobuf message, or two such initializers share a name.
    """
    spans: dict[str, Span] = {}
    proto = onnx.ModelProto()
    for field in _fields(pages, Span(0, len(pages))):
        if not field.is_message(_MODEL_GRAPH):
            proto.MergeFromString(pages[slice(*field.whole)])
            continue
        proto.graph.SetInParent()  # also where nothing is in it
        for part in _fields(pages, field.payload):
            large = part.is_message(_GRAPH_INITIALIZER) and _size(part.payload) > larger_than
            if not large:
                proto.graph.MergeFromString(pages[slice(*part.whole)])
                continue
            header, data = _split(pages, part.payload)
            if data is None or _size(data) <= larger_than:
                proto.graph.initializer.add().MergeFromString(pages[slice(*part.payload)])
                continue
            tensor = proto.graph.initializer.add()
            tensor.MergeFromString(header)
            if tensor.name in spans:
                # The data are put back by name.
                raise ValueError(f"two initializers have the name {tensor.name!r}")
            spans[tensor.name] = data
    return proto, spans


def _split(pages: mmap.mmap, tensor: Span) -> tuple[bytes, Span | None]:
    """Split a TensorProto into its bytes without raw data, and the place of the raw data."""
    header, data = b"", None
    for field in _fields(pages, tensor):
        if field.is_message(_TENSOR_RAW_DATA):
            # Of several fields the last counts, as in the protobuf library.
            data = field.payload
        else:
            header += pages[slice(*field.whole)]
    return header, data


def _fields(pages: mmap.mmap, span: Span) -> Iterator[_Field]:
    position = span.start
    while position < span.end:
        start = position
        tag, position = _varint(pages, position, span.end)
        kind, length = tag & 7, 0
        if kind == _LENGTH:
            length, position = _varint(pages, position, span.end)
        elif kind == _VARINT:
            _, after = _varint(pages, position, span.end)
            length = after - position
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if kind == _EIGHT_BYTES else 4
        else:
            # What is left are groups, which onnx.proto does not use.
            raise ValueError(f"wire type {kind}")
        end = position + length
        if end > span.end:
            raise ValueError("a field is longer than its message")
        yield _Field(tag >> 3, kind, Span(start, end), Span(position, end))
        position = end


def _varint(pages: mmap.mmap, position: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(_LONGEST_VARINT):
        if position >= end:
            break
        byte = pages[position]
        position += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position
    raise ValueError("a varint has no end")


def _size(span: Span) -> int:
    return span.end - span.start


def frame_weights(
    proto: onnx.ModelProto, weights: list[tuple[onnx.TensorProto, int]]
) -> list[bytes]:
    """Compute the bytes before each large weight; alternating with the weights they form the file.

    Args:
        proto: The model without these initializers.
        weights: Each initializer without its data, and the size of its data in bytes.

    Returns:
        One piece for each weight, to be written before its ``raw_data``. After the last weight the
        file is complete.
    """
    graph = proto.graph.SerializeToString(deterministic=True)
    rest = onnx.ModelProto()
    rest.CopyFrom(proto)
    rest.ClearField("graph")
    frames = []
    for tensor, size in weights:
        header = tensor.SerializeToString(deterministic=True)
        header += _tag(_TENSOR_RAW_DATA, size)
        frames.append(_tag(_GRAPH_INITIALIZER, len(header) + size) + header)
    # Fields may come in any order: the weights end the graph, and the graph ends the file.
    length = len(graph) + sum(len(frame) for frame in frames) + sum(size for _, size in weights)
    frames[0] = (
        rest.SerializeToString(deterministic=True) + _tag(_MODEL_GRAPH, length) + graph + frames[0]
    )
    return frames


def _tag(number: int, length: int) -> bytes:
    """Encode the tag and length of a length-delimited field."""
    return _encode_varint(number << 3 | _LENGTH) + _encode_varint(length)


def _encode_varint(value: int) -> bytes:
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
