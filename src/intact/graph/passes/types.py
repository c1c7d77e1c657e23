"""Infers shapes and types by ONNX, and element types behind unknown operators, where that stops."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

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


# Runs ONNX shape inference on a model of onnx-ir.
#
# onnx-ir's own pass makes a second model of the answer, and looks each weight up in a list: the
# time of a model with 100,000 weights was minutes. Here types and shapes are read out of the
# answer.

_log = logging.getLogger(__name__)

_LARGEST = 1000
"""Size in bytes of constants whose values inference may use, as those of shapes."""


def infer(model: ir.Model) -> bool:
    """Set the types and shapes that ONNX infers, bodies included; return whether any is new.

    A model that ONNX rejects stays as it is. Data of large weights are neither needed nor copied.
    """
    _declare_constants(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(
            # Not strict: one node that ONNX rejects would end it for all others. With data, as
            # lengths are computed by nodes.
            _with_few_constants(model),
            check_type=False,
            strict_mode=False,
            data_prop=True,
        )
    except Exception as error:  # it raises what protobuf and its own checks raise
        _log.warning("shapes are not inferred: %s", error)
        return False
    return sum(_learned(*pair) for pair in _graphs(model.graph, inferred.graph)) > 0


def _declare_constants(model: ir.Model) -> None:
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None:
            value.dtype = value.dtype or tensor.dtype
            if value.shape is None:
                value.shape = ir.Shape(tensor.shape.numpy())


def _with_few_constants(model: ir.Model) -> onnx.ModelProto:
    """Serialize a model with inputs in place of large weights."""
    stored, ports = model.graph.initializers, set(model.graph.inputs)
    given = dict(stored)
    large = [value for value in given.values() if _is_large(value)]
    for value in large:
        del stored[str(value.name)]
    try:
        proto = ir.to_proto(model)
    finally:
        if large:  # in the order that they had
            stored.clear()
            stored.update(given)
    # One that is also a graph input is declared already.
    inputs = [ir.to_proto(value) for value in large if value not in ports]
    proto.graph.input.extend(inputs)
    return proto


def _is_large(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is None or tensor.nbytes > _LARGEST


def _graphs(graph: ir.Graph, proto: onnx.GraphProto) -> Iterator[tuple[ir.Graph, onnx.GraphProto]]:
    """Yield a graph and all bodies, each with its message."""
    yield graph, proto
    for node, message in zip(graph, proto.node, strict=True):
        if not node.attributes:
            continue
        bodies = {each.name: each for each in message.attribute}
        for name, attribute in node.attributes.items():
            if attribute.is_ref():
                continue
            if attribute.type is ir.AttributeType.GRAPH:
                yield from _graphs(attribute.as_graph(), bodies[name].g)
            elif attribute.type is ir.AttributeType.GRAPHS:
                for body, each in zip(attribute.as_graphs(), bodies[name].graphs, strict=True):
                    yield from _graphs(body, each)


def _learned(graph: ir.Graph, proto: onnx.GraphProto) -> int:
    """Set what the values of one graph have in the answer; return how many are new."""
    said = {each.name: each for each in (*proto.value_info, *proto.input, *proto.output)}
    return sum(_set_type(value, said) for value in _values(graph) if value.name in said)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _set_type(value: ir.Value, said: Mapping[str, onnx.ValueInfoProto]) -> bool:
    message = said[str(value.name)].type
    found = ir.serde.deserialize_type_proto_for_type(message)
    shape = ir.serde.deserialize_type_proto_for_shape(message)
    has_new_shape = shape is not None and value.shape != shape
    has_new_type = found is not None and value.type != found
    if has_new_shape:
        value.shape = shape
    if has_new_type:
        value.type = found
    return has_new_shape or has_new_type
