"""Serializes a TFLite file by the object interface of the schema's Python module."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from intact._extras import missing
from intact.errors import ExportError
from intact.formats.tflite.writer.builder import (
    FileBuilder,
    Operator,
    Options,
    Subgraph,
    constant_data,
)
from intact.numerics.packing import pack_bits
from intact.program import Array, Encoding, Tensor

SCHEMA_VERSION = 3
FILE_IDENTIFIER = b"TFL3"
SIGNATURE = "serving_default"

_ALIGNMENT = 16
"""Bytes; the schema asks for it (``force_align``) so that kernels read constants in place."""

_LARGEST = (1 << 31) - 1
"""Bytes of a file whose offsets are 32 bits with sign."""

_NIBBLE = 0xF

_LAST_OLD_CODE = 127
"""Operators beyond stand in the field that files of version 3a added."""

_TYPES = {
    np.dtype(np.float32): "FLOAT32",
    np.dtype(np.float16): "FLOAT16",
    np.dtype(np.int8): "INT8",
    np.dtype(np.uint8): "UINT8",
    np.dtype(np.int16): "INT16",
    np.dtype(np.int32): "INT32",
    np.dtype(np.int64): "INT64",
    np.dtype(np.bool_): "BOOL",
}


def serialize(
    builder: FileBuilder,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    description: str,
    metadata: Mapping[str, str] = {},
) -> bytes:
    """Return the file; the same builder gives the same bytes.

    Args:
        builder: The operators in the order in which they run.
        inputs: The inputs by the name that the signature gives them.
        outputs: The outputs by the name that the signature gives them.
        description: Free text in the file's head.
        metadata: Texts by name.

    Raises:
        MissingExtraError: The schema's module or flatbuffers is not installed.
        ExportError: The constants do not fit into a file.
    """
    schema = load_schema()
    main = Subgraph(builder, tuple(inputs.values()), tuple(outputs.values()))
    graphs = (main, *builder.subgraphs)
    for tensor in (*main.inputs, *main.outputs):
        builder.mention(tensor)
    weight = sum(
        tensor.data.nbytes
        for graph in graphs
        for tensor in graph.builder.tensors.values()
        if tensor.data is not None
    )
    # What is left is room for tensors, operators and their names.
    if weight > _LARGEST - (1 << 26):
        raise ExportError(
            f"the constants have {weight / 2**30:.1f} GiB, a .tflite file holds less than 2",
            remedy="quantize more nodes, or write another format",
        )
    buffers = _Buffers(schema)
    # In the order of first use, so that equal models give equal bytes.
    operators = (each for graph in graphs for each in graph.builder.operators)
    codes = list(dict.fromkeys((each.code, each.version) for each in operators))
    model = schema.ModelT()
    model.version = SCHEMA_VERSION
    model.description = description
    model.operatorCodes = [_operator_code(schema, *each) for each in codes]
    model.subgraphs = [
        _graph(schema, graph, name, buffers, codes)
        for graph, name in zip(graphs, _graph_names(), strict=False)
    ]
    model.metadata = [_metadata(schema, *each, buffers) for each in metadata.items()] or None
    model.buffers = buffers.found
    # AI Edge Quantizer and others open only files with a signature; tensors may have other names
    # than ports.
    model.signatureDefs = [_signature(schema, inputs, outputs, _places(builder))]
    return _packed(model)


def load_schema() -> Any:
    """Return the generated module of TFLite's schema.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import flatbuffers  # noqa: F401
        from ai_edge_litert import schema_py_generated
    except ImportError as error:
        raise missing("a TFLite file", ["ai-edge-litert", "flatbuffers"], "tflite") from error
    return schema_py_generated


def _graph(
    schema: Any, graph: Subgraph, name: str, buffers: _Buffers, codes: list[tuple[str, int]]
) -> Any:
    builder = graph.builder
    places, scales = _places(builder), builder.block_scales
    result = schema.SubGraphT()
    result.name = name
    result.tensors = [
        _tensor(schema, each, builder.lengths(each), buffers, places.get(scales.get(each.name, "")))
        for each in builder.tensors.values()
    ]
    result.inputs = [places[tensor.name] for tensor in graph.inputs]
    result.outputs = [places[tensor.name] for tensor in graph.outputs]
    result.operators = [
        _operator(schema, each, codes.index((each.code, each.version)), places)
        for each in builder.operators
    ]
    return result


def _graph_names() -> Iterator[str]:
    yield "main"
    yield from (f"subgraph_{number}" for number in itertools.count(1))


def _places(builder: FileBuilder) -> dict[str, int]:
    return {name: place for place, name in enumerate(builder.tensors)}


class _Buffers:
    """The file's buffers: the first is empty, equal constants share one."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._by_content: dict[bytes, int] = {}
        self.found: list[Any] = [schema.BufferT()]

    def place(self, data: Array | None) -> int:
        if data is None:
            return 0
        # Files are little-endian, whatever the machine is.
        content = data.astype(data.dtype.newbyteorder("<"), copy=False).tobytes()
        place = self._by_content.setdefault(content, len(self.found))
        if place == len(self.found):
            buffer = self._schema.BufferT()
            # As an array: the generated module packs a list byte by byte, 200 times slower.
            buffer.data = np.frombuffer(content, np.uint8)
            self.found.append(buffer)
        return place


def _metadata(schema: Any, name: str, text: str, buffers: _Buffers) -> Any:
    found = schema.MetadataT()
    found.name = name
    found.buffer = buffers.place(np.frombuffer(text.encode(), np.uint8))
    return found


def _tensor(
    schema: Any, tensor: Tensor, lengths: list[int], buffers: _Buffers, scales: int | None
) -> Any:
    """Return a tensor; ``scales`` is the place of those of its blocks, if it has some."""
    result = schema.TensorT()
    result.name = tensor.name
    result.shape = lengths
    if None in tensor.shape:
        result.shapeSignature = [-1 if length is None else length for length in tensor.shape]
    result.type = getattr(schema.TensorType, _TYPES[_dtype(tensor)])
    if tensor.encoding is not None and tensor.encoding.block is not None:
        result.type = schema.TensorType.INT4
        result.buffer = buffers.place(_nibbles(constant_data(tensor)))
        result.quantization = _by_block(schema, tensor.encoding.block, scales)
        return result
    result.buffer = buffers.place(tensor.data)
    if tensor.encoding is not None:
        result.quantization = _quantization(schema, tensor.encoding)
    return result


def _nibbles(codes: Array) -> Array:
    """Return codes of 4 bits two a byte, the first in the low half."""
    return pack_bits(codes.reshape(-1) & _NIBBLE, 4)


def _by_block(schema: Any, block: int, scales: int | None) -> Any:
    result, details = schema.QuantizationParametersT(), schema.BlockwiseQuantizationT()
    details.scales, details.zeroPoints, details.blockSize = scales, -1, block
    result.detailsType = schema.QuantizationDetails.BlockwiseQuantization
    result.details = details
    return result


def _dtype(tensor: Tensor) -> np.dtype[Any]:
    if tensor.encoding is not None:
        return tensor.encoding.dtype
    return tensor.plain if tensor.data is None else tensor.data.dtype


def _quantization(schema: Any, encoding: Encoding) -> Any:
    result = schema.QuantizationParametersT()
    result.scale = np.atleast_1d(encoding.scale).astype(np.float32)
    result.zeroPoint = np.atleast_1d(encoding.zero_point).astype(np.int64)
    # It is 0 for one scale too, as kernels ask of a bias.
    result.quantizedDimension = encoding.axis or 0
    return result


def _operator(schema: Any, operator: Operator, code: int, places: Mapping[str, int]) -> Any:
    result = schema.OperatorT()
    result.opcodeIndex = code
    # The schema has -1 for an optional input that is absent, which has no name here.
    result.inputs = [places.get(name, -1) for name in operator.inputs]
    result.outputs = [places[name] for name in operator.outputs]
    if operator.options is not None:
        result.builtinOptionsType = getattr(schema.BuiltinOptions, operator.options.table)
        result.builtinOptions = _options(schema, operator.options)
    return result


def _options(schema: Any, options: Options) -> Any:
    result = getattr(schema, f"{options.table}T")()
    for name, value in options.fields.items():
        setattr(result, name, value)
    return result


def _operator_code(schema: Any, code: str, version: int) -> Any:
    result = schema.OperatorCodeT()
    result.builtinCode = getattr(schema.BuiltinOperator, code)
    # Readers from before version 3a know this field only, and take 127 for "see the other".
    result.deprecatedBuiltinCode = min(result.builtinCode, _LAST_OLD_CODE)
    result.version = version
    return result


def _signature(
    schema: Any,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    places: Mapping[str, int],
) -> Any:
    def entries(tensors: Mapping[str, Tensor]) -> list[Any]:
        found = []
        for name, tensor in tensors.items():
            entry = schema.TensorMapT()
            entry.name = name
            entry.tensorIndex = places[tensor.name]
            found.append(entry)
        return found

    result = schema.SignatureDefT()
    result.signatureKey = SIGNATURE
    result.inputs = entries(inputs)
    result.outputs = entries(outputs)
    return result


def _packed(model: Any) -> bytes:
    import flatbuffers

    # Made in here, because flatbuffers belongs to an extra.
    class AlignedBuilder(flatbuffers.Builder):  # type: ignore[misc] # the package has no types
        """Puts the bytes of buffers where the schema wants them; its module does not."""

        def StartVector(self, elemSize: int, numElems: int, alignment: int) -> Any:  # noqa: N802, N803
            if self.packs_bytes:
                alignment = _ALIGNMENT
            return super().StartVector(elemSize, numElems, alignment)

        packs_bytes = False

        def CreateNumpyVector(self, x: Array) -> Any:  # noqa: N802
            self.packs_bytes = x.dtype == np.uint8
            try:
                return super().CreateNumpyVector(x)
            finally:
                self.packs_bytes = False

    builder = AlignedBuilder(1 << 16)
    builder.Finish(model.Pack(builder), FILE_IDENTIFIER)
    return bytes(builder.Output())
