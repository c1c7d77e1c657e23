"""MatMul and Add of a dense layer become one Gemm, whose bias an integer kernel adds exactly."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.graph.ops import constant_array, input_value
from intact.graph.passes.replace import replace_value


def join_dense_layers(model: ir.Model) -> int:
    """Make a Gemm of every MatMul of a matrix and a constant whose only reader adds a bias.

    The Gemm keeps the name of the MatMul and takes the name of the Add's result.

    Returns:
        How many were made; products of more than two axes stay.
    """
    return sum(_join(model.graph, node) for node in tuple(model.graph))


def _join(graph: ir.Graph, node: ir.Node) -> bool:
    if node.domain != "" or node.op_type != "Add":
        return False
    for side in (0, 1):
        product, bias = node.inputs[side], node.inputs[1 - side]
        dense = _dense(product, node)
        if dense is None or bias is None or not _is_row(bias, dense):
            continue
        dense.op_type = "Gemm"
        dense.resize_inputs(3)
        dense.replace_input_with(2, bias)
        replace_value(node.outputs[0], dense.outputs[0])
        graph.remove(node, safe=True)
        return True
    return False


def _dense(product: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """Return the MatMul of a matrix and a constant matrix that only ``reader`` reads."""
    node = product.producer() if product is not None else None
    if product is None or node is None or node.graph is not reader.graph:
        return None
    if node.domain != "" or node.op_type != "MatMul":
        return None
    if len(product.uses()) != 1 or product.is_graph_output():
        return None
    data, weight = node.inputs[0], constant_array(input_value(node, 1))
    if data is None or data.shape is None or len(data.shape) != 2:
        return None
    if weight is None or weight.ndim != 2 or not np.issubdtype(weight.dtype, np.floating):
        return None  # runtimes have no Gemm of integers
    return node


def _is_row(bias: ir.Value, dense: ir.Node) -> bool:
    array, weight = constant_array(bias), constant_array(dense.inputs[1])
    if array is None or weight is None:
        return False
    return array.shape in {(weight.shape[1],), (1, weight.shape[1])}
