"""Infers element types behind unknown operators, where ONNX shape inference stops."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from intact.graph.files.save import weights_as_inputs
from intact.graph.ops import OpKind, Role, input_role, op_spec

_KEEPS_TYPE = {
    OpKind.COMPUTE,
    OpKind.ELEMENTWISE,
    OpKind.ACTIVATION,
    OpKind.POOL,
    OpKind.NORMALIZATION,
    OpKind.JOIN,
    OpKind.MOVE,
}
_RUNTIME_TYPES = {
    "tensor(float)": ir.DataType.FLOAT,
    "tensor(double)": ir.DataType.DOUBLE,
    "tensor(int64)": ir.DataType.INT64,
    "tensor(int32)": ir.DataType.INT32,
    "tensor(int8)": ir.DataType.INT8,
    "tensor(uint8)": ir.DataType.UINT8,
    "tensor(bool)": ir.DataType.BOOL,
}


def infer_types(model: ir.Model) -> int:
    """Set an unknown output type to the type of the node's data, weight or bias input.

    ONNX requires that they agree for the operators concerned.

    Returns:
        The number of values that got a type.
    """
    found = 0
    for node in model.graph:
        spec = op_spec(node)
        if spec is None or spec.kind not in _KEEPS_TYPE or spec.converts:
            continue
        known = _input_type(node)
        # Further outputs (masks, indices) have types of their own.
        for value in node.outputs[:1]:
            if known is not None and value.type is None:
                value.type = known
                found += 1
    return found


def ask_runtime(model: ir.Model) -> int:
    """Set unknown types and shapes to those that ONNX Runtime infers.

    It knows its own operators (``com.microsoft``) and functions. A model that it rejects is not
    changed, and it is not called if no known operator reads a value of unknown type or rank.

    Returns:
        The number of values that got a type or a shape.
    """
    unknown = {str(value.name): value for node in model.graph for value in _unknown(node)}
    # A session takes time; what only unknown operators read is never quantized.
    if not any(op_spec(use.node) for value in unknown.values() for use in value.uses()):
        return 0
    proto, _ = weights_as_inputs(model)
    ports = {value.name for value in proto.graph.output}
    proto.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in unknown if name not in ports
    )
    found = 0
    for name, element, dimensions in _inferred_by_runtime(proto):
        value = unknown.get(name)
        if value is None or element not in _RUNTIME_TYPES:
            continue
        gets_type, gets_shape = value.type is None, value.shape is None and bool(dimensions)
        if gets_type:
            value.type = ir.TensorType(_RUNTIME_TYPES[element])
        if gets_shape:  # it gives no dimensions for a scalar, and for what it does not know
            value.shape = ir.Shape(dimensions)
        found += gets_type or gets_shape
    return found


def _unknown(node: ir.Node) -> list[ir.Value]:
    return [
        value
        for value in node.outputs
        if value.name and (value.type is None or value.shape is None)
    ]


def _inferred_by_runtime(
    proto: onnx.ModelProto,
) -> list[tuple[str, str, list[int | str | None]]]:
    """Return name, type and dimensions of the outputs of a model; empty if it is rejected."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    # Only types are asked for: optimizing would take time, and could drop what is asked about.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # the runtime raises a dozen unrelated classes
        return []
    return [(each.name, each.type, list(each.shape)) for each in session.get_outputs()]


def _input_type(node: ir.Node) -> ir.TypeProtocol | None:
    for slot, value in enumerate(node.inputs):
        steering = input_role(node, slot) in {Role.SHAPE, Role.PARAMETER}
        if value is not None and value.type is not None and not steering:
            return value.type
    return None
