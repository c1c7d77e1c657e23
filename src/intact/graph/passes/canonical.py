"""Canonical operators: Sum as Add, spatial means as pools, ConstantOfShape as constants."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from intact.graph.names import node_names, value_names
from intact.graph.ops import OpKind, Role, constant_array, input_value, moves_values, op_spec
from intact.graph.passes.replace import add_constant
from intact.ops.operators import CONVOLUTIONS, Reduce


def write_sums_as_adds(model: ir.Model) -> int:
    """Replace every Sum of two inputs by an Add; return the number of changes."""
    changed = 0
    for node in model.graph:
        if node.domain == "" and node.op_type == "Sum" and len(node.inputs) == 2:
            node.op_type = "Add"
            changed += 1
    return changed


_TRANSPARENT = {OpKind.ACTIVATION, OpKind.ELEMENTWISE}


def pool_spatial_means(model: ir.Model) -> int:
    """Replace each ReduceMean over the axes 2, 3, ... of a [N, C, spatial...] tensor.

    A ReduceMean without keepdims becomes a pool and a Flatten. A rank-3 mean over the last axis is
    replaced only behind a convolution or pool: elsewhere (in a decomposed LayerNormalization) the
    last axis is not spatial.

    Returns:
        The number of replaced nodes.
    """
    means = [node for node in model.graph if _is_spatial_mean(node)]
    for node in means:
        _replace(model.graph, node)
    return len(means)


def _is_spatial_mean(node: ir.Node) -> bool:
    data = input_value(node, 0)
    if node.domain != "" or node.op_type != "ReduceMean" or data is None or data.shape is None:
        return False
    if data.dtype is not ir.DataType.FLOAT:
        return False  # runtimes have no pools of integers or doubles
    rank = len(data.shape)
    axes = _axes(node)
    if not 3 <= rank <= 5 or axes is None or any(not -rank <= axis < rank for axis in axes):
        return False
    if {axis % rank for axis in axes} != set(range(2, rank)):
        return False
    return rank > 3 or _is_feature_map(data)


def _axes(node: ir.Node) -> list[int] | None:
    """Return the constant axes of a reduction: an attribute up to opset 17, an input from 18 on."""
    if "axes" in node.attributes:
        return list(Reduce.of(node).axes)
    array = constant_array(input_value(node, 1))
    return None if array is None else [int(axis) for axis in array]


def _is_feature_map(value: ir.Value | None) -> bool:
    """Tell whether a value comes from a convolution or pool through element-wise operators only."""
    while value is not None:
        node = value.producer()
        spec = op_spec(node) if node is not None else None
        if node is None or spec is None:
            return False
        if node.op_type in CONVOLUTIONS or spec.kind is OpKind.POOL:
            return True
        if spec.kind not in _TRANSPARENT and node.op_type != "BatchNormalization":
            return False
        value = input_value(node, 0)
    return False


def _replace(graph: ir.Graph, node: ir.Node) -> None:
    data, result = node.inputs[0], node.outputs[0]
    keep = Reduce.of(node).keepdims != 0
    pool = ir.node("GlobalAveragePool", [data], num_outputs=1)
    pool.metadata_props.update(node.metadata_props)
    pooled = pool.outputs[0]
    pooled.type = result.type
    pooled.shape = _pooled_shape(data)
    new = [pool]
    if not keep:
        new.append(ir.node("Flatten", [pooled], {"axis": 1}, num_outputs=1))
    name, shape, node_name = result.name, result.shape, node.name
    node.name, result.name = None, None
    last = new[-1].outputs[0]
    graph.insert_after(node, new)
    result.replace_all_uses_with(last, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    last.name, last.type = name, pooled.type
    last.shape = shape if shape is not None else last.shape
    pool.name = node_name
    if not keep:
        pooled.name = value_names(graph).fresh(f"{name}_pooled")
        new[-1].name = node_names(graph).fresh(f"{node_name}_flatten")


def _pooled_shape(data: ir.Value | None) -> ir.Shape | None:
    if data is None or data.shape is None:
        return None
    shape = data.shape
    return ir.Shape([shape[0], shape[1], *(1,) * (len(shape) - 2)])


_SMALL = 1 << 20
"""Results up to this number of elements are always computed: as many as folding may add."""

MOST_FILLED = 1 << 28

"""Limit for the elements of all results, since a few bytes can claim any number: 1 GiB of float32,
twice the weights of the largest image classifiers.
"""


def fill_weights(model: ir.Model, room: int) -> int:
    """Compute ConstantOfShape nodes that are small or produce weights.

    Args:
        model: The model; it is changed in place.
        room: Limit for the elements of all of them together.

    Returns:
        The number of computed elements, at least one for each node.
    """
    left = room
    for node in tuple(model.graph):
        sizes = _sizes(node)
        if sizes is None:
            continue
        elements = max(1, math.prod(sizes))
        if elements <= (left if _is_weight(node.outputs[0]) else min(left, _SMALL)):
            _fill(model.graph, node, sizes)
            left -= elements
    return room - left


def _sizes(node: ir.Node) -> tuple[int, ...] | None:
    """Return the constant shape of a ConstantOfShape; None if it cannot be computed."""
    if node.domain != "" or node.op_type != "ConstantOfShape":
        return None
    shape = constant_array(input_value(node, 0))
    if shape is None or shape.ndim != 1 or (shape < 0).any() or node.outputs[0].is_graph_output():
        return None
    return tuple(int(size) for size in shape)


def _fill(graph: ir.Graph, node: ir.Node, sizes: tuple[int, ...]) -> None:
    result = node.outputs[0]
    name, number = str(result.name), _number(node)
    result.name = None  # free for the constant
    constant = add_constant(graph, np.full(sizes, number), name)
    result.replace_all_uses_with(constant)
    graph.remove(node, safe=True)


def _is_weight(value: ir.Value) -> bool:
    """Tell whether a value is used as a weight, perhaps after a Reshape or Transpose."""
    ahead = [value]
    while ahead:
        for node, slot in ahead.pop().uses():
            spec = op_spec(node)
            if spec is not None and spec.role(slot) is Role.WEIGHT:
                return True
            if slot == 0 and moves_values(node):
                ahead.append(node.outputs[0])
    return False


def _number(node: ir.Node) -> np.generic:
    """Return the fill value in its type; float32 zero by default."""
    attribute = node.attributes.get("value")
    array = None if attribute is None else attribute.as_tensor().numpy().reshape(-1)
    return np.float32(0) if array is None or array.size != 1 else array[0]
