"""Runs ONNX shape inference on a model of onnx-ir.

onnx-ir's own pass makes a second model of the answer, and looks each weight up in a list: the time
of a model with 100,000 weights was minutes. Here types and shapes are read out of the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import onnx
import onnx_ir as ir

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
