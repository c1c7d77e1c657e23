"""Finds all tensors of a model: initializers and attributes, in bodies and functions too.

What is computed from a large one is so when it is written, so that one at a time is in memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import onnx
import onnx_ir as ir

from intact.graph.traversal import all_nodes, graphs_of

Change = Callable[[ir.TensorProtocol], ir.TensorProtocol]


def change_tensors(model: ir.Model, change: Change) -> None:
    """Replace every tensor of a model by the result of ``change``."""
    for graph in graphs_of(model):
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
    """Give a model its own tensor objects, with shared data.

    onnx-ir shares tensor objects between a model, its clones and the proto it was read from, and
    renaming a value renames its tensor: the source would change with the copy.
    """
    change_tensors(model, _own)


def weight_bytes(model: ir.Model) -> int:
    """Compute the size of all initializers in bytes, including bodies."""
    return sum(
        tensor_bytes(value.const_value)
        for graph in graphs_of(model)
        for value in graph.initializers.values()
        if value.const_value is not None
    )


def tensor_bytes(tensor: ir.TensorProtocol) -> int:
    """Compute the size of a tensor in bytes; of strings that of their text."""
    if tensor.dtype is ir.DataType.STRING:
        return sum(map(len, tensor.numpy().reshape(-1)))
    return tensor.nbytes


def _own(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if tensor.dtype is ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy().astype(object), name=tensor.name)
    if isinstance(tensor, ir.TensorProtoTensor):  # every access to its data makes a copy
        if tensor.size and not any(_has(tensor.raw, field) for field in _DATA):
            raise ValueError(f"tensor {tensor.name!r} has no data")  # onnx-ir would return zeros
        array = tensor.numpy()
        if array.shape != tuple(tensor.shape):  # numpy infers a dimension of -1
            raise ValueError(f"tensor {tensor.name!r} has the dimensions {list(tensor.shape)}")
        return ir.Tensor(array, dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)
    # The object is copied, for its name; the data stay shared.
    return copy.copy(tensor)


_DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def _has(proto: onnx.TensorProto, field: str) -> bool:
    """Tell whether a tensor has the field, without copying it."""
    return proto.HasField(field) if field == "raw_data" else len(getattr(proto, field)) > 0


COMPUTED_AT_ONCE = 1 << 24
"""Bytes of a constant up to which what is made of it is computed at once."""


def computed(
    source: ir.TensorProtocol | None, compute: Callable[[], ir.TensorProtocol], dtype: ir.DataType
) -> ir.TensorProtocol:
    """Return a tensor of a constant's shape that is computed from it, of a large one when written.

    Args:
        source: The constant; None for none that takes memory.
        compute: Makes the tensor.
        dtype: Its type.
    """
    if source is None or source.nbytes <= COMPUTED_AT_ONCE:
        return compute()
    return ir.LazyTensor(compute, dtype, ir.Shape(source.shape.numpy()))
