"""TFLite models of one operator, and the two interpreters that run them: the oracles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from intact.program import Encoding

Array = npt.NDArray[Any]
REFERENCE, OPTIMIZED, XNNPACK = "BUILTIN_REF", "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "BUILTIN"


@dataclass(frozen=True)
class End:
    """A tensor of the model: ``data`` makes it a constant."""

    shape: tuple[int, ...]
    encoding: Encoding
    data: Array | None = None


def one_op(
    operator: str,
    inputs: Sequence[End],
    output: End,
    options: Mapping[str, Any] | None = None,
    options_type: str = "",
    version: int = 2,
) -> bytes:
    """Return a model of one operator.

    Args:
        operator: Its name in the schema's ``BuiltinOperator``.
        inputs: In order; those without data are the model's inputs.
        output: Of the model.
        options: Fields of the schema's object of options.
        options_type: Its name without the final ``T``.
        version: Of the operator.
    """
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    flatbuffers = pytest.importorskip("flatbuffers")
    code = getattr(schema.BuiltinOperator, operator)
    ends = [*inputs, output]
    operator_code = schema.OperatorCodeT()
    operator_code.builtinCode, operator_code.deprecatedBuiltinCode = code, min(code, 127)
    operator_code.version = version
    step = schema.OperatorT()
    step.opcodeIndex = 0
    step.inputs, step.outputs = list(range(len(inputs))), [len(inputs)]
    if options_type:
        step.builtinOptionsType = getattr(schema.BuiltinOptions, options_type)
        step.builtinOptions = getattr(schema, f"{options_type}T")()
        for name, value in (options or {}).items():
            setattr(step.builtinOptions, name, value)
    graph = schema.SubGraphT()
    graph.tensors = [_tensor(schema, index, end) for index, end in enumerate(ends)]
    graph.inputs = [index for index, end in enumerate(inputs) if end.data is None]
    graph.outputs, graph.operators = [len(inputs)], [step]
    model = schema.ModelT()
    model.version, model.operatorCodes, model.subgraphs = 3, [operator_code], [graph]
    model.buffers = [schema.BufferT() for _ in range(len(ends) + 1)]
    for buffer, end in zip(model.buffers[1:], ends, strict=True):
        if end.data is not None:
            buffer.data = np.frombuffer(np.ascontiguousarray(end.data).tobytes(), np.uint8)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _tensor(schema: Any, index: int, end: End) -> Any:
    tensor = schema.TensorT()
    tensor.name, tensor.shape, tensor.buffer = f"t{index}", list(end.shape), index + 1
    names = {"int8": "INT8", "uint8": "UINT8", "int16": "INT16", "int32": "INT32"}
    tensor.type = getattr(schema.TensorType, names[end.encoding.dtype.name])
    tensor.quantization = schema.QuantizationParametersT()
    tensor.quantization.scale = [float(each) for each in end.encoding.scale.reshape(-1)]
    tensor.quantization.zeroPoint = [int(each) for each in end.encoding.zero_point.reshape(-1)]
    return tensor


def litert(model: bytes, *feeds: Array, kernels: str = REFERENCE) -> Array:
    """Return what LiteRT computes with kernels of a kind."""
    module = pytest.importorskip("ai_edge_litert.interpreter")
    interpreter = module.Interpreter(
        model_content=model,
        experimental_op_resolver_type=getattr(module.OpResolverType, kernels),
        num_threads=1,
    )
    interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), feeds, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return np.asarray(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))


def micro(model: bytes, *feeds: Array) -> Array:
    """Return what TensorFlow Lite Micro computes."""
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    interpreter = runtime.Interpreter.from_bytes(model, arena_size=1 << 20)
    for index, array in enumerate(feeds):
        interpreter.set_input(array, index)
    interpreter.invoke()
    return np.asarray(interpreter.get_output(0))
