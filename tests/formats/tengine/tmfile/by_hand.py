"""``.tmfile`` put together and taken apart by hand, sharing nothing with the package.

Formats are those of the structs in Tengine's ``tm2_format.h``, in order: `TENSOR` is ``tensor_id,
buffer_id, offset_vd_dims, offset_s_tname, offect_vo_quantparams, layout, type, data_type`` and so
on.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

HEADER = "<HHH2xI"
MODEL = "<iiII"
SUBGRAPH = "<IiiIIIIIII"
NODE = "<IIIIIIB3x"
OPERATOR = "<III"
TENSOR = "<IIIIIiii"
QUANT_PARAM = "<ifi"
BUFFER = "<II"
STRING = "<II"

CONST, CONVOLUTION, FLATTEN, FULLY_CONNECTED, INPUT = 4, 5, 10, 11, 12
POOLING, RELU, SOFTMAX = 16, 20, 28
VAR_TENSOR, CONST_TENSOR, INPUT_TENSOR = 1, 2, 3
FP32, FP16, INT8, UINT8, INT32 = 0, 1, 2, 3, 4

OPTIONS = {
    CONVOLUTION: "<14i",
    FLATTEN: "<ii",
    FULLY_CONNECTED: "<i",
    POOLING: "<I10i",
    RELU: "<f",
    SOFTMAX: "<i",
}


@dataclass
class Tensor:
    """One tensor; ``data`` are the bytes of a constant."""

    name: str
    dims: tuple[int, ...]
    kind: int = VAR_TENSOR
    dtype: int = FP32
    data: bytes = b""
    scales: list[tuple[int, float]] = field(default_factory=list)


@dataclass
class Node:
    """One node; tensors by name."""

    name: str
    op: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options: tuple[Any, ...] = ()


@dataclass
class Hand:
    """A graph."""

    tensors: list[Tensor]
    nodes: list[Node]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def assembled(hand: Hand, *, layout: int = 0, version: int = 2) -> bytes:
    """Return a graph as the bytes of a file, in the order of Tengine's own writer."""
    out = bytearray(struct.calcsize(HEADER))

    def put(form: str, *values: Any) -> int:
        out.extend(bytes(-len(out) % 4))
        at = len(out)
        out.extend(struct.pack(form, *values))
        return at

    def text(words: str) -> int:
        data = words.encode() + b"\0"
        at = len(out)  # text and data lie anywhere
        out.extend(data)
        return put(STRING, len(data), at)

    def vector(*numbers: int) -> int:
        return put(f"<I{len(numbers)}I", len(numbers), *numbers) if numbers else 0

    number = {tensor.name: k for k, tensor in enumerate(hand.tensors)}
    nodes, position = [], {}
    for k, node in enumerate(hand.nodes):
        position[node.name] = k
        name = text(node.name)
        reads = vector(*(number[each] for each in node.inputs))
        writes = vector(*(number[each] for each in node.outputs))
        options = put(OPTIONS[node.op], *node.options) if node.options else 0
        operator = put(OPERATOR, 1, node.op, options)
        nodes.append(put(NODE, k, reads, writes, operator, name, 0, 0))
    node_list = vector(*nodes)
    tensors, buffers = [], []
    for k, tensor in enumerate(hand.tensors):
        if tensor.kind == CONST_TENSOR:
            buffers.append(tensor.data)
        name, dims = text(tensor.name), vector(*tensor.dims)
        quant = vector(*(put(QUANT_PARAM, zero, scale, 0) for zero, scale in tensor.scales))
        buffer = (len(buffers) - 1) % 2**32
        kind = (0, tensor.kind, tensor.dtype)
        tensors.append(put(TENSOR, k, buffer, dims, name, quant, *kind))
    tensor_list = vector(*tensors)
    stored = []
    for data in buffers:
        at = len(out)
        out.extend(data)
        stored.append(put(BUFFER, len(data), at))
    ends = [vector(*(position[each] for each in names)) for names in (hand.inputs, hand.outputs)]
    lists = (node_list, tensor_list, vector(*stored))
    graph = put(SUBGRAPH, 0, layout, layout, *ends, *lists, 0, 0)
    root = put(MODEL, 0, 0, vector(graph), 0)
    struct.pack_into(HEADER, out, 0, version, 0, 0, root)
    return bytes(out)


def taken_apart(data: bytes) -> Hand:
    """Return the graph of a file."""

    def get(form: str, at: int) -> tuple[Any, ...]:
        assert at % 4 == 0
        return struct.unpack_from(form, data, at)

    def text(at: int) -> str:
        size, start = get(STRING, at)
        assert data[start + size - 1] == 0
        return data[start : start + size - 1].decode()

    def vector(at: int, kind: str = "I") -> tuple[int, ...]:
        if at == 0:
            return ()
        (length,) = get("<I", at)
        return get(f"<{length}{kind}", at + 4)

    main, sub, compiled, root = get(HEADER, 0)
    assert (main, sub, compiled) == (2, 0, 0)
    _, _, subgraphs, _ = get(MODEL, root)
    (graph,) = vector(subgraphs)
    _, first, second, ins, outs, node_list, tensor_list, buffer_list, _, _ = get(SUBGRAPH, graph)
    assert (first, second) == (0, 0)
    buffers = vector(buffer_list)
    tensors, nodes = [], []
    for k, at in enumerate(vector(tensor_list)):
        number, buffer, dims, name, quant, layout, kind, dtype = get(TENSOR, at)
        assert (number, layout) == (k, 0)
        stored = b""
        if kind == CONST_TENSOR:
            size, start = get(BUFFER, buffers[buffer])
            stored = data[start : start + size]
        params = [get(QUANT_PARAM, each)[:2] for each in vector(quant)]
        tensors.append(Tensor(text(name), vector(dims, "i"), kind, dtype, stored, params))
    for k, at in enumerate(vector(node_list)):
        number, reads, writes, operator, name, _, _ = get(NODE, at)
        version, op, options = get(OPERATOR, operator)
        assert (number, version) == (k, 1)
        names = [tuple(tensors[each].name for each in vector(each)) for each in (reads, writes)]
        values = get(OPTIONS[op], options) if options else ()
        nodes.append(Node(text(name), op, names[0], names[1], values))
    ends = [tuple(nodes[each].name for each in vector(at)) for at in (ins, outs)]
    return Hand(tensors, nodes, ends[0], ends[1])
