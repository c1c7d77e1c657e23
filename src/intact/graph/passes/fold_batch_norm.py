"""BatchNormalization folded into the convolution or Gemm in front of it.

With ``r = gamma / sqrt(variance + epsilon)`` per output channel::

    gamma * (W x + b - mean) / sqrt(variance + epsilon) + beta  =  (r W) x + r (b - mean) + beta

(Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-
Only Inference", eq. 14.) Computed in float64, stored in the weight's own type. Own code although
onnxscript has rules for it: those drop node names and the BatchNormalization's parameters, ignore
training mode, and refuse weights that two nodes share.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph.batch_norm import BatchNorm, remember
from intact.graph.ops import constant_array, input_value
from intact.graph.passes.replace import replace_constant, replace_value

_EPSILON = float(np.float32(1e-5))  # ONNX's default, a float32 as all its attributes

_Doubles = npt.NDArray[np.float64]


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
    weight = constant_array(input_value(linear, 1))
    bias_value = input_value(linear, 2)
    bias = constant_array(bias_value)
    if weight is None or (bias_value is not None and bias is None):
        return False
    channels = norm.gamma.shape[0]
    with np.errstate(all="ignore"):
        ratio = norm.gamma.astype(np.float64) / np.sqrt(
            norm.variance.astype(np.float64) + norm.epsilon
        )
        shift = _bias_row(linear, bias, channels)
        scaled = _scale_weight(linear, weight, ratio)
        if shift is None or scaled is None:
            return False
        new_weight = scaled.astype(weight.dtype)
        new_bias = (ratio * (shift - norm.mean) + norm.beta).astype(weight.dtype)
    if not (np.isfinite(new_weight).all() and np.isfinite(new_bias).all()):
        return False
    replace_constant(graph, linear, 1, new_weight, f"{linear.name}_weight")
    replace_constant(graph, linear, 2, new_bias, f"{linear.name}_bias")
    if linear.op_type == "Gemm":
        linear.attributes.pop("beta", None)  # now inside the bias
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
    source = input_value(node, 0)
    producer = source.producer() if source is not None else None
    if source is None or producer is None or producer.graph is not node.graph:
        return None
    if producer.domain != "" or producer.op_type not in {"Conv", "ConvTranspose", "Gemm"}:
        return None
    return producer if len(source.uses()) == 1 and not source.is_graph_output() else None


def _parameters(node: ir.Node) -> BatchNorm | None:
    arrays = [constant_array(input_value(node, slot)) for slot in (1, 2, 3, 4)]
    if any(array is None or array.ndim != 1 for array in arrays):
        return None
    gamma, beta, mean, variance = (np.asarray(array, dtype=np.float32) for array in arrays)
    return BatchNorm(gamma, beta, mean, variance, node.attributes.get_float("epsilon", _EPSILON))


def _bias_row(linear: ir.Node, bias: np.ndarray | None, channels: int) -> _Doubles | None:
    """Return the bias as one number a channel; None where it differs within a channel."""
    if bias is None:
        return np.zeros(channels)
    if bias.ndim > 1 and bias.size != bias.shape[-1]:
        return None  # Gemm may add a whole matrix
    factor = linear.attributes.get_float("beta", 1.0) if linear.op_type == "Gemm" else 1.0
    row = bias.astype(np.float64).reshape(-1) * factor
    return np.broadcast_to(row, (channels,)) if row.size in {1, channels} else None


def _scale_weight(linear: ir.Node, weight: np.ndarray, ratio: _Doubles) -> _Doubles | None:
    wide = weight.astype(np.float64)
    channels = ratio.shape[0]
    if linear.op_type == "ConvTranspose":
        group = linear.attributes.get_int("group", 1)
        if weight.shape[0] % group or weight.shape[1] * group != channels:
            return None
        by_group = wide.reshape(group, -1, *weight.shape[1:])
        factors = ratio.reshape(group, 1, -1, *(1,) * (weight.ndim - 2))
        return (by_group * factors).reshape(weight.shape)
    axis = 0
    if linear.op_type == "Gemm":
        axis = 0 if linear.attributes.get_int("transB", 0) else 1
    if weight.shape[axis] != channels:
        return None
    return wide * ratio.reshape([-1 if each == axis else 1 for each in range(weight.ndim)])


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
