"""The tensors of a whole model: of initializers and attributes, bodies and functions included."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import onnx
import onnx_ir as ir

Change = Callable[[ir.TensorProtocol], ir.TensorProtocol]


def change_tensors(model: ir.Model, change: Change) -> None:
    """Put what ``change`` returns in the place of every tensor of a model."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = change(value.const_value)
    for node in all_nodes(model):
        for name, attribute in tuple(node.attributes.items()):
            if attribute.is_ref():
                continue
            if attribute.type is ir.AttributeType.TENSOR:
                node.attributes[name] = ir.AttrTensor(name, change(attribute.as_tensor()))
            elif attribute.type is ir.AttributeType.TENSORS:
                changed = [change(tensor) for tensor in attribute.as_tensors()]
                node.attributes[name] = ir.AttrTensors(name, changed)


def own_tensors(model: ir.Model) -> None:
    """Give a model tensor objects of its own, over the same numbers.

    onnx-ir shares them between a model, its clones and the proto it was read from, and renaming
    a value renames its tensor: the source would change with the copy.
    """
    change_tensors(model, _own)


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes of the graph, of its bodies and of the functions."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def weight_bytes(model: ir.Model) -> int:
    """Return the size of all initializers, bodies' included."""
    return sum(
        value.const_value.nbytes
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
    )


def _own(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if tensor.dtype is ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy().astype(object), name=tensor.name)
    if isinstance(tensor, ir.TensorProtoTensor):  # each look at its numbers would copy them
        if tensor.size and not any(_has(tensor.raw, field) for field in _DATA):
            raise ValueError(f"tensor {tensor.name!r} has no data")  # onnx-ir would make zeros
        array = tensor.numpy()
        if array.shape != tuple(tensor.shape):  # numpy takes -1 for whatever is left
            raise ValueError(f"tensor {tensor.name!r} has the dimensions {list(tensor.shape)}")
        return ir.Tensor(array, dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)
    return copy.copy(tensor)


_DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def _has(proto: onnx.TensorProto, field: str) -> bool:
    """Whether a tensor has the field, without a look at it, which would copy it."""
    return proto.HasField(field) if field == "raw_data" else len(getattr(proto, field)) > 0
