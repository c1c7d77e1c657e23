"""Activations that a quantiser's own saturation performs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.graph import constant_array, input_value
from intact.plan import QuantizedGraph


def is_saturation(plan: QuantizedGraph, node: ir.Node, config: TensorQuantConfig) -> bool:
    """Tell whether quantising without the node gives the same integers.

    True for a Relu or Clip that is fused to its producer, whose result is not quantised on its
    own, and whose bounds land on the ends of the integer range: what lies beyond a bound saturates
    to the same code.

    Args:
        plan: The plan.
        node: The producer of the quantised value.
        config: The config of its output.
    """
    bounds = _bounds(node)
    if bounds is None or not _is_fused(plan, node):
        return False
    axis = config.granularity.axis
    scales = 1 if config.scale is None else config.scale.size
    shape = () if axis is None else (1,) * axis + (scales,)
    low, high = (config.quantize(np.full(shape, bound, np.float32)) for bound in bounds)
    return bool((low == config.quant_min).all() and (high == config.quant_max).all())


def _is_fused(plan: QuantizedGraph, node: ir.Node) -> bool:
    """Tell whether a node computes inside the one before it.

    Between two pairs it does not: without it they would touch, and ONNX Runtime makes one of them.
    """
    value = node.inputs[0]
    producer = None if value is None else plan.producer_config(value)
    states = {plan.input_config(node, 0).state, None if producer is None else producer.state}
    return states == {QuantState.OVERLAPPED}


def _bounds(node: ir.Node) -> tuple[float, float] | None:
    if node.domain != "" or node.op_type not in {"Relu", "Clip"}:
        return None
    if node.op_type == "Relu":
        return 0.0, np.inf
    found = []
    for slot, default in ((1, -np.inf), (2, np.inf)):
        value = input_value(node, slot)
        array = constant_array(value)
        if value is not None and array is None:
            return None
        found.append(default if array is None else float(array.reshape(())))
    return found[0], found[1]
