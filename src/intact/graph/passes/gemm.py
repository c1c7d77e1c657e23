"""Brings dense layers to one plain Gemm: MatMul and Add are fused, alpha and beta folded.

Weights of MatMul that are matrices in all but their shape become matrices, and large ones that are
transposed become weights.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.graph.names import value_names
from intact.graph.ops import (
    bias_slot,
    constant_array,
    is_constant,
    output_channel_axis,
    weight_slot,
)
from intact.graph.passes.pattern import Bindings, constant, op, value
from intact.graph.passes.replace import replace_constant, replace_value
from intact.ops.operators import Gemm, Transpose


def flatten_weights(model: ir.Model) -> int:
    """Make matrices of the constant factors of MatMul that have further axes, all of length 1.

    ``[1, K, N]`` is the matrix ``[K, N]`` where the other factor has at least as many axes: the
    result has the same values and the same shape.

    Returns:
        The number of weights that changed.
    """
    return sum(_flatten(model.graph, node) for node in model.graph)


def _flatten(graph: ir.Graph, node: ir.Node) -> bool:
    slot = weight_slot(node)
    if node.domain != "" or node.op_type != "MatMul" or slot is None:
        return False
    weight, other = constant_array(node.inputs[slot]), node.inputs[1 - slot]
    if weight is None or weight.ndim <= 2 or any(length != 1 for length in weight.shape[:-2]):
        return False
    # With fewer axes the result would lose those of length 1.
    if other is None or other.shape is None or len(other.shape) < weight.ndim:
        return False
    replace_constant(graph, node, slot, weight.reshape(weight.shape[-2:]), f"{node.name}_weight")
    return True


def turn_weights(model: ir.Model) -> int:
    """Transpose constant matrices that are the right factor of MatMul; return how many.

    Those are too large to be folded as others are: language models multiply with the table of
    their words. The numbers stay where they are until they are read.
    """
    return sum(_turn(model.graph, node) for node in tuple(model.graph))


def _turn(graph: ir.Graph, node: ir.Node) -> bool:
    source = node.inputs[0] if node.op_type == "Transpose" and node.domain == "" else None
    if source is None or not is_constant(source) or source.const_value is None:
        return False
    tensor, result = source.const_value, node.outputs[0]
    order = Transpose.of(node).perm
    if len(tensor.shape) != 2 or (order and list(order) != [1, 0]) or result.is_graph_output():
        return False
    uses = [(use.node, use.idx) for use in result.uses()]
    if not uses or any((reader.op_type, slot) != ("MatMul", 1) for reader, slot in uses):
        return False
    shape = tuple(tensor.shape.numpy())[::-1]
    turned = ir.LazyTensor(
        lambda: ir.Tensor(tensor.numpy().T), tensor.dtype, ir.Shape(shape), name=result.name
    )
    weight = ir.Value(
        name=value_names(graph).fresh(f"{source.name}_turned"),
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(shape),
        const_value=turned,
    )
    turned.name = weight.name
    graph.register_initializer(weight)
    result.replace_all_uses_with(weight)
    graph.remove(node, safe=True)
    return True


def join_dense_layers(model: ir.Model) -> int:
    """Fuse every MatMul of a matrix and a constant with the Add of a bias into a Gemm.

    The Gemm keeps the name of the MatMul; its output takes the name of the Add's result.

    Returns:
        The number of new Gemm nodes; products of more than two axes do not change.
    """
    return sum(_join(model.graph, node) for node in tuple(model.graph))


_DATA = value(lambda each: each.shape is not None and len(each.shape) == 2)
# Runtimes have no Gemm of integers.
_WEIGHT = constant(lambda array: array.ndim == 2 and np.issubdtype(array.dtype, np.floating))
_BIAS = constant()
_PRODUCT = op("MatMul", _DATA, _WEIGHT)
# Whoever else reads the product needs it without the bias.
_SUM = _PRODUCT.sole + _BIAS


def _adds_row(found: Bindings) -> bool:
    channels = found.array(_WEIGHT).shape[1]
    return found.array(_BIAS).shape in {(channels,), (1, channels)}


def _join(graph: ir.Graph, node: ir.Node) -> bool:
    """``MatMul(x, w) + b`` -> ``Gemm(x, w, b)``."""
    found = _SUM.given(_adds_row).at(node)
    if found is None:
        return False
    dense = found.node(_PRODUCT)
    dense.op_type = "Gemm"
    dense.resize_inputs(3)
    dense.replace_input_with(2, found[_BIAS])
    replace_value(node.outputs[0], dense.outputs[0])
    graph.remove(node, safe=True)
    return True


def plain_gemms(model: ir.Model) -> int:
    """Fold alpha and beta of every Gemm with a constant weight; return the number of changes."""
    return sum(_plain(model.graph, node) for node in model.graph)


def _plain(graph: ir.Graph, node: ir.Node) -> bool:
    slot, axis = weight_slot(node), output_channel_axis(node)
    if node.domain != "" or node.op_type != "Gemm" or slot is None or axis is None:
        return False
    weight = constant_array(node.inputs[slot])
    if weight is None or weight.ndim != 2:
        return False
    changed = _fold_alpha(graph, node, slot, weight)
    return _fold_beta(graph, node, slot, weight.shape[axis]) or changed


def _fold_alpha(graph: ir.Graph, node: ir.Node, slot: int, weight: np.ndarray) -> bool:
    alpha = Gemm.of(node).alpha
    if alpha == 1.0:
        return False
    scaled = (weight.astype(np.float64) * alpha).astype(weight.dtype)
    replace_constant(graph, node, slot, scaled, f"{node.name}_weight")
    del node.attributes["alpha"]
    return True


def _fold_beta(graph: ir.Graph, node: ir.Node, slot: int, channels: int) -> bool:
    bias = bias_slot(node)
    old = constant_array(node.inputs[bias]) if bias is not None else None
    if bias is None or old is None:
        return False
    beta = Gemm.of(node).beta
    row = old
    if slot == 1 and _is_row_vector(old, channels):
        row = np.broadcast_to(old.reshape(-1), (channels,))
    if beta == 1.0 and row.shape == old.shape:
        return False
    scaled = (row.astype(np.float64) * beta).astype(old.dtype)
    replace_constant(graph, node, bias, scaled, f"{node.name}_bias")
    node.attributes.pop("beta", None)
    return True


def _is_row_vector(bias: np.ndarray, channels: int) -> bool:
    """Tell whether a bias that broadcasts to [rows, channels] is the same in every row."""
    return bias.size == 1 or (bias.size == channels and bias.shape[-1] == channels)
