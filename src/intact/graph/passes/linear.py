"""An affine map by channel put into the constants of the linear node in front of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph.ops import constant_array, input_value
from intact.graph.passes.replace import replace_constant

_Doubles = npt.NDArray[np.float64]


def sole_linear_producer(source: ir.Value | None, reader: ir.Node) -> ir.Node | None:
    """Return the Conv, ConvTranspose or Gemm whose result only ``reader`` reads, once."""
    producer = source.producer() if source is not None else None
    if source is None or producer is None or producer.graph is not reader.graph:
        return None
    if producer.domain != "" or producer.op_type not in {"Conv", "ConvTranspose", "Gemm"}:
        return None
    return producer if len(source.uses()) == 1 and not source.is_graph_output() else None


def absorb(
    graph: ir.Graph,
    linear: ir.Node,
    ratio: npt.NDArray[np.floating],
    mean: npt.NDArray[np.floating],
    beta: npt.NDArray[np.floating],
) -> bool:
    """Let a linear node compute ``ratio * (y - mean) + beta`` where it computed ``y``.

    Computed in float64, stored in the weight's own type.

    Args:
        graph: The graph that the node is in.
        linear: A Conv, ConvTranspose or Gemm.
        ratio: ``[channels]``.
        mean: ``[channels]``.
        beta: ``[channels]``.

    Returns:
        Whether it was done: not for computed weights, for a bias that differs within a channel,
        or where a number would not be finite.
    """
    weight = constant_array(input_value(linear, 1))
    bias_value = input_value(linear, 2)
    bias = constant_array(bias_value)
    if weight is None or (bias_value is not None and bias is None):
        return False
    with np.errstate(all="ignore"):
        shift = _bias_row(linear, bias, ratio.shape[0])
        scaled = _scale_weight(linear, weight, ratio)
        if shift is None or scaled is None:
            return False
        new_weight = scaled.astype(weight.dtype)
        new_bias = (ratio * (shift - mean) + beta).astype(weight.dtype)
    if not (np.isfinite(new_weight).all() and np.isfinite(new_bias).all()):
        return False
    replace_constant(graph, linear, 1, new_weight, f"{linear.name}_weight")
    replace_constant(graph, linear, 2, new_bias, f"{linear.name}_bias")
    if linear.op_type == "Gemm":
        linear.attributes.pop("beta", None)  # now inside the bias
    return True


def _bias_row(linear: ir.Node, bias: np.ndarray | None, channels: int) -> _Doubles | None:
    """Return the bias as one number a channel; None where it differs within a channel."""
    if bias is None:
        return np.zeros(channels)
    if bias.ndim > 1 and bias.size != bias.shape[-1]:
        return None  # Gemm may add a whole matrix
    factor = linear.attributes.get_float("beta", 1.0) if linear.op_type == "Gemm" else 1.0
    row = bias.astype(np.float64).reshape(-1) * factor
    return np.broadcast_to(row, (channels,)) if row.size in {1, channels} else None


def _scale_weight(
    linear: ir.Node, weight: np.ndarray, ratio: npt.NDArray[np.floating]
) -> _Doubles | None:
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
