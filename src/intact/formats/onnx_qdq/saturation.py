"""Activations that a quantiser's own saturation performs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.graph import constant_array, input_value
from intact.plan import QuantizedGraph


def is_saturation(plan: QuantizedGraph, node: ir.Node, config: TensorQuantConfig) -> bool:
    """Tell whether quantising without the node gives the same integers.

    True for a Relu or Clip whose input is not quantised on its own (it is fused to its
    producer) and whose bounds land on the ends of the integer range: what lies beyond a bound
    saturates to the same code.

    Args:
        plan: The plan.
        node: The producer of the quantised value.
        config: The config of its output.
    """
    bounds = _bounds(node)
    if bounds is None or plan.input_config(node, 0).state is not QuantState.OVERLAPPED:
        return False
    codes = config.quantize(np.array(bounds, np.float32))
    return (int(codes[0]), int(codes[1])) == (config.quant_min, config.quant_max)


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
