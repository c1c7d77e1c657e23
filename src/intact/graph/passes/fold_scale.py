"""Constants by channel that follow a linear node go into it: Mul, Add and Sub.

Exporters write biases as an Add, and some frameworks the second half of BatchNormalization as a
layer of its own (Scale: Mul and Add).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph.batch_norm import BatchNorm, recall, remember
from intact.graph.ops import constant_array, output_channels
from intact.graph.passes.linear import absorb, sole_linear_producer
from intact.graph.passes.replace import replace_value

_SIDES = {"Mul": (0, 1), "Add": (0, 1), "Sub": (0,)}
"""At which input the result of the linear node may stand."""


def fold_scales(model: ir.Model) -> int:
    """Fold every constant that a channel is multiplied with, or that is added to it.

    As with BatchNormalization, the linear node takes the name of the result; what is remembered
    of a folded BatchNormalization is scaled and shifted too.

    Returns:
        How many nodes were folded; the others stay as they are.
    """
    return sum(_fold(model.graph, node) for node in tuple(model.graph))


def _fold(graph: ir.Graph, node: ir.Node) -> bool:
    if node.domain != "":
        return False
    for side in _SIDES.get(node.op_type, ()):
        linear = sole_linear_producer(node.inputs[side], node)
        row = None if linear is None else _row(linear, node.inputs[1 - side])
        if linear is None or row is None:
            continue
        one, zero = np.ones_like(row), np.zeros_like(row)
        ratio = row if node.op_type == "Mul" else one
        beta = {"Mul": zero, "Add": row, "Sub": -row}[node.op_type]
        if absorb(graph, linear, ratio, zero, beta):
            _remember(linear, ratio, beta)
            replace_value(node.outputs[0], linear.outputs[0])
            graph.remove(node, safe=True)
            return True
    return False


def _row(linear: ir.Node, value: ir.Value | None) -> npt.NDArray[np.float64] | None:
    """Return a constant as one number a channel; None where it is none, or differs within one."""
    array, channels = constant_array(value), output_channels(linear)
    weight = constant_array(linear.inputs[1])
    if array is None or weight is None or channels is None or array.ndim > weight.ndim:
        return None
    shape = (1,) * (weight.ndim - array.ndim) + array.shape
    if shape[1] not in (1, channels) or any(size != 1 for size in (shape[0], *shape[2:])):
        return None
    return np.broadcast_to(array.astype(np.float64).reshape(-1), (channels,))


def _remember(
    linear: ir.Node, ratio: npt.NDArray[np.float64], beta: npt.NDArray[np.float64]
) -> None:
    norm = recall(linear)
    if norm is not None:
        gamma, shift = norm.gamma * ratio, norm.beta * ratio + beta
        scaled = gamma.astype(np.float32), shift.astype(np.float32)
        remember(linear, BatchNorm(*scaled, norm.mean, norm.variance, norm.epsilon))
