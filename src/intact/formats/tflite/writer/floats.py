"""Nodes of the float model that the engine runs as they are, and TFLite has operators for.

Attention masks are made by them: a comparison, a Cast, a choice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from intact.errors import Unsupported
from intact.formats.tflite.writer.builder import WRITERS, FileBuilder, Options
from intact.graph import constant_array, is_constant
from intact.program import Step, Tensor
from intact.program.forms import plain_type, shape_of
from intact.program.operations import FloatNodes

_OPERATORS: dict[str, tuple[str, str]] = {
    "And": ("LOGICAL_AND", "LogicalAndOptions"),
    "Cast": ("CAST", "CastOptions"),
    "Equal": ("EQUAL", "EqualOptions"),
    "Greater": ("GREATER", "GreaterOptions"),
    "GreaterOrEqual": ("GREATER_EQUAL", "GreaterEqualOptions"),
    "Less": ("LESS", "LessOptions"),
    "LessOrEqual": ("LESS_EQUAL", "LessEqualOptions"),
    "Not": ("LOGICAL_NOT", "LogicalNotOptions"),
    "Or": ("LOGICAL_OR", "LogicalOrOptions"),
    "Pow": ("POW", "PowOptions"),
    "Where": ("SELECT_V2", "SelectV2Options"),
}
"""Operator and table of options by the node's type; operands are the same, in the same order."""

_TYPES = {np.dtype(np.float32): 0, np.dtype(np.int32): 2, np.dtype(np.int64): 4, np.dtype(bool): 6}
"""``TensorType`` of the schema, of what these operators take."""

_CAST_TYPES = {
    **_TYPES,
    np.dtype(np.uint8): 3,
    np.dtype(np.int16): 7,
    np.dtype(np.int8): 9,
}
"""The same for Cast: images are often fed as uint8."""


def has_no_operator(node: ir.Node) -> bool:
    """Tell whether TFLite has no operator for a node of the float model."""
    return node.domain != "" or node.op_type not in _OPERATORS


@WRITERS.register(FloatNodes)
def _write_nodes(operation: FloatNodes, step: Step, builder: FileBuilder) -> None:
    """Write the nodes of a step one by one."""
    known = dict(zip(operation.inputs, step.inputs, strict=True))
    results = dict(zip(operation.outputs, step.outputs, strict=True))
    for node in operation.nodes:
        operands = [_operand(node, slot, known, builder) for slot in range(len(node.inputs))]
        value = node.outputs[0]
        result = results.get(value) or _between(value, operands[0], builder)
        known[value] = result
        types = _CAST_TYPES if node.op_type == "Cast" else _TYPES
        for tensor in (*operands, result):
            if _type(tensor) not in types:
                raise Unsupported(f"{tensor.name!r} is {_type(tensor)}, not for {node.op_type}")
        code, table = _OPERATORS[node.op_type]
        options = Options(table) if table else None
        if node.op_type == "Cast":
            options = _cast(_type(operands[0]), _type(result))
        builder.operator(code, operands, (result,), options)


def _operand(
    node: ir.Node, slot: int, known: dict[ir.Value, Tensor | None], builder: FileBuilder
) -> Tensor:
    value = node.inputs[slot]
    tensor = None if value is None else known.get(value)
    if tensor is not None:
        return tensor
    array = constant_array(value)
    if value is None or array is None or not is_constant(value):
        raise Unsupported(f"input {slot} of {node.op_type} is neither computed nor a constant")
    return builder.constant(str(value.name), array)


def _type(tensor: Tensor) -> np.dtype[Any]:
    return tensor.dtype if tensor.data is None else tensor.data.dtype


def _between(value: ir.Value, like: Tensor, builder: FileBuilder) -> Tensor:
    kind = plain_type(value).type
    return builder.intermediate(str(value.name), shape_of(value), None, like, plain=kind)


def _cast(before: np.dtype[Any], after: np.dtype[Any]) -> Options:
    """Return the options of a Cast between types that runtimes convert alike.

    Raises:
        Unsupported: It cuts floats off, or integers: what is too large becomes another number.
    """
    if after.kind in "iu" and not np.can_cast(before, after):
        raise Unsupported(f"it casts {before} to {after}")
    types = {"inDataType": _CAST_TYPES[before], "outDataType": _CAST_TYPES[after]}
    return Options("CastOptions", types)
