"""From tensors and nodes to the bytes of a file; equal ones give equal bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from intact.errors import ExportError
from intact.formats.tengine.tmfile.file import FileNode, FileTensor, TmFile
from intact.formats.tengine.tmfile.layout import (
    ALIGNMENT,
    BUFFER,
    HEADER,
    MODEL,
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
    Kind,
    Layout,
    Record,
)
from intact.formats.tengine.tmfile.operators import OPERATORS

_LARGEST_FILE = 2**31 - 1
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
        numbers = [number & 0xFFFFFFFF for number in numbers]
        if not numbers:
            return NOTHING
        return self._put(np.array([len(numbers), *numbers], "<u4").tobytes())

    def _text(self, text: str) -> int:
        data = text.encode("utf-8", "surrogatepass") + b"\0"
        return self._record(TEXT, size=len(data), data=self._put(data))

    def _put(self, data: bytes) -> int:
        self._data += bytes(-len(self._data) % ALIGNMENT)
        offset = len(self._data)
        if offset + len(data) > _LARGEST_FILE:
            raise ExportError(
                "the model takes more than 2 GiB as a Tengine file",
                remedy="Tengine's tools cannot hold it: cut the model in parts",
            )
        self._data += data
        return offset
