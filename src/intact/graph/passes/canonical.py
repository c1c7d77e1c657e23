"""Rewrites operators to canonical ones, so that later passes know one form each.

A Sum of two inputs becomes an Add, for example, and a division by a constant a Mul.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from intact.graph.names import node_names, value_names
from intact.graph.ops import (
    OpKind,
    Role,
    constant_array,
    input_value,
    is_constant,
    moves_values,
    op_spec,
)
from intact.graph.passes.replace import add_constant, replace_constant
from intact.ops.operators import CONVOLUTIONS, Concat, Gather, GatherND, Reduce


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


_SMALLEST = float(np.finfo(np.float32).tiny)
"""The smallest normal number: below it a reciprocal has fewer bits."""


def write_as_products(model: ir.Model) -> int:
    """Replace float32 divisions by constants, and squares written as Pow, by Mul.

    A division by a power of two stays exact; by another number the quotient differs by one
    rounding of float32 (the reciprocal is rounded, and then the product). ``Pow(x, 2)`` is
    ``x * x`` in ONNX Runtime too.

    Returns:
        The number of changed nodes.
    """
    return sum(_multiply(model.graph, node) or _square(node) for node in tuple(model.graph))


def _multiply(graph: ir.Graph, node: ir.Node) -> bool:
    data, divisor = _operands(node, "Div")
    if data is None or divisor is None or divisor.size == 0:
        return False
    with np.errstate(all="ignore"):
        # In float64, so that the reciprocal is rounded once.
        reciprocals = (1.0 / divisor.astype(np.float64)).astype(np.float32)
    # Refused: reciprocals that overflow, vanish or lose bits as subnormal numbers.
    sizes = np.abs(reciprocals)
    if not ((sizes >= _SMALLEST) & np.isfinite(sizes)).all():
        return False
    replace_constant(graph, node, 1, reciprocals, f"{node.name}_reciprocal")
    node.op_type = "Mul"
    return True


def _square(node: ir.Node) -> bool:
    data, exponent = _operands(node, "Pow")
    if data is None or data.shape is None or exponent is None or exponent.size != 1:
        return False
    if exponent.item() != 2 or exponent.ndim > len(data.shape):  # more axes would broadcast
        return False
    node.replace_input_with(1, data)
    node.op_type = "Mul"
    return True


def _operands(node: ir.Node, op_type: str) -> tuple[ir.Value | None, np.ndarray | None]:
    """Return the computed float32 operand and the constant one; None for other nodes."""
    if node.domain != "" or node.op_type != op_type or len(node.inputs) != 2:
        return None, None
    data, constant = input_value(node, 0), constant_array(input_value(node, 1))
    if data is None or is_constant(data) or constant is None:
        return None, None
    types = {data.dtype, node.outputs[0].dtype} - {None}
    return (data, constant) if types == {ir.DataType.FLOAT} else (None, None)


def write_zeros_as_pads(model: ir.Model) -> int:
    """Replace each Concat of one float32 tensor of known rank with constant zeros by a Pad.

    Returns:
        The number of changed nodes.
    """
    return sum(_pad(model.graph, node) for node in tuple(model.graph))


def _pad(graph: ir.Graph, node: ir.Node) -> bool:
    if node.domain != "" or node.op_type != "Concat":
        return False
    data = [value for value in node.inputs if not is_constant(value)]
    if len(data) != 1 or len(node.inputs) < 2 or data[0] is None or data[0].shape is None:
        return False
    if data[0].dtype is not ir.DataType.FLOAT:
        return False
    rank = len(data[0].shape)
    axis = Concat.of(node).axis
    position = node.inputs.index(data[0])
    added = [_zeros(value, axis) for value in node.inputs if value is not data[0]]
    if None in added:
        return False
    lengths = [length for length in added if length is not None]
    pads = np.zeros((2, rank), np.int64)
    pads[:, axis] = sum(lengths[:position]), sum(lengths[position:])
    listed = add_constant(graph, pads.reshape(-1), value_names(graph).fresh(f"{node.name}_pads"))
    node.resize_inputs(2)
    node.replace_input_with(0, data[0])
    node.replace_input_with(1, listed)
    node.op_type = "Pad"
    node.attributes.pop("axis")
    return True


def _zeros(value: ir.Value | None, axis: int) -> int | None:
    """Return the length of constant zeros along an axis; None for anything else, also for -0."""
    array = constant_array(value)
    # Adding or padding +0 is no -0, of which 1 / x has the other sign.
    if array is None or array.dtype != np.float32 or array.any() or np.signbit(array).any():
        return None
    return int(array.shape[axis])


def gather_by_lists(model: ir.Model) -> int:
    """Write a Gather by a constant table of indices as one by a list, and a Reshape.

    Exporters write the windows of ``unfold`` as such tables. ncnn has lists only, and OpenVINO
    2026.4.1 refuses tables where the gathered codes have a scale a channel.

    Returns:
        The number of changed nodes.
    """
    nodes = tuple(model.graph)
    return sum(_gather_by_list(model.graph, n) or _gather_in_order(model.graph, n) for n in nodes)


def _gather_in_order(graph: ir.Graph, node: ir.Node) -> bool:
    """Write a GatherND of all elements in their order as a Reshape: so torch exports masks."""
    if node.domain != "" or node.op_type != GatherND.name or GatherND.of(node).batch_dims:
        return False
    data, table = input_value(node, 0), constant_array(input_value(node, 1))
    if data is None or data.shape is None or not data.shape.is_static() or table is None:
        return False
    shape, result = data.shape.numpy(), node.outputs[0]
    if table.ndim == 0 or table.shape[-1] != len(shape) or is_constant(data):
        return False
    size = math.prod(shape)
    if not size or table.size != size * len(shape) or not ((table >= 0) & (table < shape)).all():
        return False
    places = np.arange(size).reshape(shape)[tuple(np.moveaxis(table, -1, 0))]
    if not np.array_equal(places.reshape(-1), np.arange(size)):
        return False
    lengths = np.array(places.shape, np.int64)
    name = value_names(graph).fresh(f"{result.name}_lengths")
    node.op_type = "Reshape"
    node.attributes.clear()
    node.replace_input_with(1, add_constant(graph, lengths, name))
    return True


def _gather_by_list(graph: ir.Graph, node: ir.Node) -> bool:
    if node.domain != "" or node.op_type != Gather.name:
        return False
    data, table = input_value(node, 0), constant_array(input_value(node, 1))
    if data is None or is_constant(data) or data.shape is None or table is None or table.ndim < 2:
        return False
    axis = Gather.of(node).axis % len(data.shape)
    front, back = data.shape[:axis], data.shape[axis + 1 :]
    # The Reshape copies open lengths in front, and computes one behind.
    target = [0 if not isinstance(each, int) else each for each in front]
    target += [*table.shape, *(-1 if not isinstance(each, int) else each for each in back)]
    if target.count(-1) > 1 or 0 in table.shape or 0 in (*front, *back):
        return False
    result, name = node.outputs[0], str(node.name)
    fresh = value_names(graph).fresh
    listed = add_constant(graph, table.reshape(-1), fresh(f"{name}_list"))
    lengths = add_constant(graph, np.array(target, np.int64), fresh(f"{name}_lengths"))
    gathered = ir.node(Gather.name, [data, listed], {"axis": axis}, num_outputs=1)
    gathered.name = node_names(graph).fresh(f"{name}_list")
    gathered.metadata_props.update(node.metadata_props)
    value = gathered.outputs[0]
    value.name, value.type = fresh(f"{result.name}_list"), data.type
    value.shape = ir.Shape([*front, table.size, *back])
    graph.insert_before(node, gathered)
    node.op_type = "Reshape"
    node.attributes.pop("axis", None)
    node.replace_input_with(0, value)
    node.replace_input_with(1, lengths)
    return True
