"""Finds output channels whose weights are all 0: their min-max scale is 0."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.graph import constant_array, weight_slot
from intact.plan.quantized_graph import QuantizedGraph

Mask = npt.NDArray[np.bool_]


def dead_channels(plan: QuantizedGraph, node: ir.Node) -> Mask | None:
    """Tell which scales of a node's constant weight belong to zeros alone.

    Returns:
        bool, ``[channels]`` or ``[]`` like the weight's scale; None where there is no such weight.
    """
    slot = weight_slot(node)
    weight = None if slot is None else constant_array(node.inputs[slot])
    if slot is None or weight is None or not weight.size:
        return None
    axis = plan.input_config(node, slot).granularity.axis
    if axis is None:
        return np.asarray(not weight.any())
    others = tuple(each for each in range(weight.ndim) if each != axis)
    return np.asarray(~weight.any(axis=others))


def nodes_with_dead_channels(plan: QuantizedGraph) -> Iterator[tuple[ir.Node, Mask]]:
    """Yield the quantized nodes that have such channels."""
    for node in plan.graph.nodes:
        found = dead_channels(plan, node) if plan.is_quantized(node) else None
        if found is not None and found.any():
            yield node, found
