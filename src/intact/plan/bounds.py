"""Gives bounds of a Clip and values of a Pad the scale of the data (passive parameters).

They have no scale of their own: as codes they are the data's, [ppq]. Nothing is rounded to these
codes, though. A runtime either compares codes on the grid of the result (a fused Clip, where data
and result share one scale, so that comparing the numbers gives the same codes) or compares numbers
before it rounds. Quantizing the bound to another grid first would be a second rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import onnx_ir as ir

from intact.config import QuantState, TensorQuantConfig
from intact.graph import Role, input_role, is_constant
from intact.ops.operators import Clip, Pad
from intact.plan.quantized_graph import QuantizedGraph, TensorEnd, quantizes

_SLOTS: Mapping[str, tuple[int, ...]] = MappingProxyType({Clip.name: (1, 2), Pad.name: (2,)})
"""Inputs that are compared with the data, or put beside them, by operator."""


def follow_data(plan: QuantizedGraph) -> None:
    """Make the constant bounds of quantized data PASSIVE, in place, once the data has its scale."""
    for node, slot in _bounds(plan):
        data = plan.input_config(node, 0)
        root = data.dominator
        is_quantized = quantizes(data) or data.state is QuantState.OVERLAPPED
        # With scales by channel a bound would be another code in each.
        if not is_quantized or root.params is None or root.grid.axis is not None:
            continue
        config = TensorQuantConfig.on_grid(root.grid, observer=root.observer)
        root.dominate(config)
        config.transition(QuantState.PASSIVE)
        plan.configs[TensorEnd.input(str(node.name), slot)] = config


def _bounds(plan: QuantizedGraph) -> Iterator[tuple[ir.Node, int]]:
    """Yield the places of bounds that nothing quantizes."""
    for node in plan.graph.nodes:
        for slot in _SLOTS.get(node.op_type, ()) if node.domain == "" else ():
            value = node.inputs[slot] if slot < len(node.inputs) else None
            if (
                value is not None
                and is_constant(value)
                and plan.graph.is_float(value)
                and plan.input_config(node, slot).state is QuantState.FP32
            ):
                yield node, slot


def is_bound(node: ir.Node, slot: int, config: TensorQuantConfig) -> bool:
    """Tell whether an input is a bound that only follows its data, and is not quantized."""
    return config.state in _PASSIVE and input_role(node, slot) is Role.PARAMETER


_PASSIVE = (QuantState.PASSIVE, QuantState.PASSIVE_BAKED)
