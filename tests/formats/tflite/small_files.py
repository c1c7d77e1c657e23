"""Small ``.tflite`` files, written with the schema's own object API, operator by operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

Shape = Sequence[int]

TYPES = {
    "float32": schema.TensorType.FLOAT32,
    "float16": schema.TensorType.FLOAT16,
    "int4": schema.TensorType.INT4,
    "int8": schema.TensorType.INT8,
    "uint8": schema.TensorType.UINT8,
    "int16": schema.TensorType.INT16,
    "uint16": schema.TensorType.UINT16,
    "int32": schema.TensorType.INT32,
    "int64": schema.TensorType.INT64,
    "bool": schema.TensorType.BOOL,
    "resource": schema.TensorType.RESOURCE,
}
_UNION = {name: code for name, code in vars(schema.BuiltinOptions).items() if code}


class FileBuilder:
    """Writes one graph; methods that add tensors return their numbers."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.description = "small file"
        self.model.buffers = [schema.BufferT()]
        self.model.operatorCodes = []
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators = [], []
        self.graph.inputs, self.graph.outputs = [], []
        self.model.subgraphs = [self.graph]

    def tensor(
        self,
        shape: Shape,
        kind: str = "int8",
        scale: float | Sequence[float] | None = 0.05,
        zero: int | Sequence[int] = 0,
        *,
        data: Any = None,
        axis: int = 0,
        name: str | None = None,
    ) -> int:
        """Add a tensor; ``scale`` None means that it is not quantized."""
        tensor = schema.TensorT()
        tensor.name = f"t{len(self.graph.tensors)}" if name is None else name
        tensor.shape, tensor.type = list(shape), TYPES[kind]
        if scale is not None and kind not in ("float32", "float16", "int64", "bool"):
            tensor.quantization = schema.QuantizationParametersT()
            tensor.quantization.scale = np.atleast_1d(np.array(scale, np.float32))
            zeros = np.broadcast_to(np.atleast_1d(zero), tensor.quantization.scale.shape)
            tensor.quantization.zeroPoint = np.array(zeros, np.int64)
            tensor.quantization.quantizedDimension = axis
        if data is not None:
            buffer = schema.BufferT()
            array = np.ascontiguousarray(np.asarray(data).astype(kind))
            buffer.data = np.frombuffer(array.tobytes(), np.uint8)
            tensor.buffer = len(self.model.buffers)
            self.model.buffers.append(buffer)
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def input(self, shape: Shape, kind: str = "int8", **more: Any) -> int:
        """Add an input of the graph."""
        index = self.tensor(shape, kind, **more)
        self.graph.inputs.append(index)
        return index

    def codes(self, shape: Shape, kind: str = "int8", **more: Any) -> int:
        """Add a constant of random codes."""
        low = -127 if kind == "int8" else 0
        return self.tensor(shape, kind, data=self.random.integers(low, 128, shape), **more)

    def bias(self, channels: int, scale: float | Sequence[float], size: int = 500) -> int:
        """Add an int32 bias."""
        codes = self.random.integers(-size, size, channels)
        return self.tensor([channels], "int32", scale, data=codes)

    def sparse(
        self,
        array: Any,
        kind: str = "int8",
        *,
        blocks: Sequence[tuple[int, int]] = (),
        **more: Any,
    ) -> int:
        """Add a constant without its zeros: the last axis is sparse, those before it dense.

        Args:
            array: The numbers or codes, of which whole blocks may be zero.
            kind: Of the elements.
            blocks: Axes that are split, with the length of a block.
            more: As of ``tensor``.
        """
        array = np.asarray(array)
        lengths = dict(blocks)
        split = [(n // lengths.get(k, 1), lengths.get(k, 1)) for k, n in enumerate(array.shape)]
        rank = array.ndim
        order = [*range(0, 2 * rank, 2), *(2 * axis + 1 for axis, _ in blocks)]
        rest = [2 * k + 1 for k in range(rank) if k not in lengths]
        levels = array.reshape([n for pair in split for n in pair]).transpose([*order, *rest])
        rows = levels.reshape(-1, split[-1][0], int(np.prod([n for _, n in blocks])))
        there = (rows != 0).any(axis=2)
        index = self.tensor(array.shape, kind, data=rows[there].reshape(-1), **more)
        self.graph.tensors[index].sparsity = sparsity = schema.SparsityParametersT()
        sparsity.traversalOrder = [*range(rank), *(rank + k for k in range(len(blocks)))]
        sparsity.blockMap = [axis for axis, _ in blocks]
        sparsity.dimMetadata = [_level(n) for n, _ in split[:-1]]
        segments = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
        sparsity.dimMetadata.append(_sparse_level(segments, np.nonzero(there)[1]))
        sparsity.dimMetadata += [_level(n) for _, n in blocks]
        return index

    def ints(self, *numbers: int, shape: Shape | None = None) -> int:
        """Add a constant list of int32."""
        array = np.array(numbers, np.int32)
        array = array if shape is None else array.reshape(shape)
        return self.tensor(array.shape, "int32", None, data=array)

    def op(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: int | Sequence[int],
        options: str = "",
        version: int = 1,
        **fields: Any,
    ) -> int:
        """Add an operator; return its first output.

        Args:
            name: Of the operator in the schema.
            inputs: Numbers of tensors, -1 for an absent one.
            outputs: Numbers of tensors.
            options: Name of the table of options.
            version: Of the operator, which runtimes hold against what they know.
            fields: Of the options, by the names of the schema.
        """
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), version
        operator = schema.OperatorT()
        operator.opcodeIndex = len(self.model.operatorCodes)
        self.model.operatorCodes.append(code)
        operator.inputs = list(inputs)
        operator.outputs = [outputs] if isinstance(outputs, int) else list(outputs)
        if options:
            table = getattr(schema, f"{options}T")()
            for key, value in fields.items():
                if not hasattr(table, key):
                    raise AttributeError(f"{options} has no {key}")
                setattr(table, key, value)
            operator.builtinOptions, operator.builtinOptionsType = table, _UNION[options]
        self.graph.operators.append(operator)
        return int(operator.outputs[0]) if operator.outputs else -1

    def begin_subgraph(self) -> None:
        """Let what is added next be a subgraph that CALL_ONCE may run."""
        self._main, self.graph = self.graph, schema.SubGraphT()
        self.graph.tensors, self.graph.operators = [], []
        self.graph.inputs, self.graph.outputs = [], []
        self.model.subgraphs.append(self.graph)

    def end_subgraph(self) -> None:
        """Go back to the main graph."""
        self.graph = self._main

    def sign(self, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> None:
        """Give the graph a signature."""
        signature = schema.SignatureDefT()
        signature.signatureKey, signature.subgraphIndex = "serving_default", 0
        maps = []
        for names in (inputs, outputs):
            tables = []
            for name, number in names.items():
                table = schema.TensorMapT()
                table.name, table.tensorIndex = name, number
                tables.append(table)
            maps.append(tables)
        signature.inputs, signature.outputs = maps
        self.model.signatureDefs = [signature]

    def build(self, *outputs: int) -> bytes:
        """Return the file."""
        self.graph.outputs = list(outputs)
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def _level(length: int) -> schema.DimensionMetadataT:
    level = schema.DimensionMetadataT()
    level.format, level.denseSize = schema.DimensionType.DENSE, length
    return level


def _sparse_level(segments: Any, indices: Any) -> schema.DimensionMetadataT:
    level = schema.DimensionMetadataT()
    level.format = schema.DimensionType.SPARSE_CSR
    level.arraySegments, level.arrayIndices = schema.Int32VectorT(), schema.Uint8VectorT()
    level.arraySegments.values = np.asarray(segments, np.int32)
    level.arrayIndices.values = np.asarray(indices, np.uint8)
    level.arraySegmentsType = schema.SparseIndexVector.Int32Vector
    level.arrayIndicesType = schema.SparseIndexVector.Uint8Vector
    return level


def reference(data: bytes) -> Interpreter:
    """Return LiteRT with its reference kernels and every tensor kept."""
    interpreter = Interpreter(
        model_content=data,
        experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        experimental_preserve_all_tensors=True,
    )
    interpreter.allocate_tensors()
    return interpreter


def random_feeds(interpreter: Interpreter, seed: int) -> Mapping[int, np.ndarray]:
    """Return random arrays for the inputs, by number of tensor."""
    random = np.random.default_rng(seed)
    feeds = {}
    for detail in interpreter.get_input_details():
        kind = np.dtype(detail["dtype"])
        if kind.kind == "f":
            array = random.standard_normal(detail["shape"]) * 3
        elif kind.itemsize <= 2:
            info = np.iinfo(kind)
            array = random.integers(info.min, info.max + 1, detail["shape"])
        else:
            array = random.integers(0, 3, detail["shape"])
        feeds[int(detail["index"])] = array.astype(kind)
    return feeds
