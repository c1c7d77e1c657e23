"""BatchNormalization folded into the convolution or Gemm in front of it.

With ``r = gamma / sqrt(variance + epsilon)`` per output channel::

    gamma * (W x + b - mean) / sqrt(variance + epsilon) + beta  =  (r W) x + r (b - mean) + beta

(Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-
Only Inference", eq. 14.) Own code although
onnxscript has rules for it: those drop node names and the BatchNormalization's parameters, ignore
training mode, and refuse weights that two nodes share.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.graph.batch_norm import BatchNorm, remember
from intact.graph.ops import constant_array, input_value
from intact.graph.passes.linear import absorb, sole_linear_producer
from intact.graph.passes.replace import replace_value

_EPSILON = float(np.float32(1e-5))  # ONNX's default, a float32 as all its attributes


def fold_batch_norms(model: ir.Model) -> int:
    """Fold every BatchNormalization whose input comes from one linear node and goes nowhere else.

    The folded node's output takes the BatchNormalization's output name, because it holds those
    values now. The parameters are remembered on the node, see `intact.graph.batch_norm`.

    Returns:
        How many were folded; the others stay as they are.
    """
    return sum(_fold(model.graph, node) for node in tuple(model.graph))


def _fold(graph: ir.Graph, node: ir.Node) -> bool:
    linear = _linear_producer(node)
    norm = _parameters(node)
    if linear is None or norm is None:
        return False
    with np.errstate(all="ignore"):
        ratio = norm.gamma.astype(np.float64) / np.sqrt(
            norm.variance.astype(np.float64) + norm.epsilon
        )
    if not absorb(graph, linear, ratio, norm.mean, norm.beta):
        return False
    remember(linear, norm)
    replace_value(node.outputs[0], linear.outputs[0])
    graph.remove(node, safe=True)
    return True


def _linear_producer(node: ir.Node) -> ir.Node | None:
    """Return the Conv, ConvTranspose or Gemm that only this BatchNormalization reads."""
    if node.domain != "" or node.op_type != "BatchNormalization":
        return None
    if node.attributes.get_int("training_mode", 0) or any(_is_used(v) for v in node.outputs[1:]):
        return None
    return sole_linear_producer(input_value(node, 0), node)


def _parameters(node: ir.Node) -> BatchNorm | None:
    arrays = [constant_array(input_value(node, slot)) for slot in (1, 2, 3, 4)]
    if any(array is None or array.ndim != 1 for array in arrays):
        return None
    if len({array.shape for array in arrays if array is not None}) != 1:
        return None
    gamma, beta, mean, variance = (np.asarray(array, dtype=np.float32) for array in arrays)
    return BatchNorm(gamma, beta, mean, variance, node.attributes.get_float("epsilon", _EPSILON))


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
