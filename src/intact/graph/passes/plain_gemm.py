"""Gemm without factors: ``alpha A B + beta C`` with constants becomes ``A (alpha B) + (beta C)``.

Integer kernels and file formats have no alpha or beta. The bias becomes a row of one number an
output channel where it is one number, or a row with leading axes of size 1.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.graph.ops import bias_slot, constant_array, output_channel_axis, weight_slot
from intact.graph.passes.replace import replace_constant


def plain_gemms(model: ir.Model) -> int:
    """Fold alpha and beta of every Gemm with a constant weight; return how many changed."""
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
    alpha = node.attributes.get_float("alpha", 1.0)
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
    beta = node.attributes.get_float("beta", 1.0)
    row = old
    if slot == 1 and _is_row(old, channels):
        row = np.broadcast_to(old.reshape(-1), (channels,))
    if beta == 1.0 and row.shape == old.shape:
        return False
    scaled = (row.astype(np.float64) * beta).astype(old.dtype)
    replace_constant(graph, node, bias, scaled, f"{node.name}_bias")
    node.attributes.pop("beta", None)
    return True


def _is_row(bias: np.ndarray, channels: int) -> bool:
    """Whether a bias that broadcasts to [rows, channels] is the same in every row."""
    return bias.size == 1 or (bias.size == channels and bias.shape[-1] == channels)
