"""A ``.tflite`` with its resource variables as inputs and outputs, for the runtime.

LiteRT keeps what a variable holds and offers no way to set it. Rewritten like this, the file
computes the same with the same kernels, and every run starts from the state that it is given.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from intact.formats.tflite.reader.file import TfliteFile
from intact.formats.tflite.reader.schema import IDENTIFIER


def stateless(content: bytes, file: TfliteFile) -> bytes:
    """Return the bytes of a file as it was read; of one without states as they are.

    Args:
        content: The file.
        file: What was read from it.
    """
    if not file.states:
        return content
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(content, 0)
    graph = model.subgraphs[0]
    graph.operators = [graph.operators[op.index] for op in file.operators]
    for stored, op in zip(graph.operators, file.operators, strict=True):
        stored.inputs = list(op.inputs)
    graph.inputs, graph.outputs = list(file.inputs), list(file.outputs)
    for tensor, read in zip(graph.tensors, file.tensors, strict=True):
        if read.data is not None and not _has_data(model.buffers[tensor.buffer]):
            tensor.buffer = len(model.buffers)
            model.buffers.append(schema.BufferT())
            model.buffers[-1].data = np.frombuffer(read.data, np.uint8)
    model.subgraphs = [graph]
    model.signatureDefs = [
        _signed(signature, file, schema)
        for signature in model.signatureDefs or ()
        if signature.subgraphIndex == 0
    ]
    builder = flatbuffers.Builder(len(content))
    builder.Finish(model.Pack(builder), IDENTIFIER)
    return bytes(builder.Output())


def _has_data(buffer: Any) -> bool:
    return bool(buffer.offset and buffer.offset > 1) or (
        buffer.data is not None and len(buffer.data) > 0
    )


def _signed(signature: Any, file: TfliteFile, schema: Any) -> Any:
    """Return a signature with the states among its inputs and outputs."""

    def named(name: str, number: int) -> Any:
        table = schema.TensorMapT()
        table.name, table.tensorIndex = name, number
        return table

    signature.inputs = [named(*each) for each in file.signature.inputs.items()]
    signature.outputs = [named(*each) for each in file.signature.outputs.items()]
    return signature
