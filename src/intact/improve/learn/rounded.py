"""Integers that rounding has put into a plan: where training starts from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from intact.plan import QuantizedGraph


def without_integers(plan: QuantizedGraph) -> tuple[QuantizedGraph, dict[str, np.ndarray]]:
    """Take the integers of weights and biases out of a plan, so that they can be trained.

    Those of a quantized model that was read stay: they are what its users know.

    Args:
        plan: Not changed.

    Returns:
        The plan, which quantizes the float weights instead, and the numbers that the integers
        stand for, by the name of the constant. Quantized by that plan they are these integers.
    """
    if not plan.baked or plan.provenance.source:
        return plan, {}
    found, nodes = plan.copy(), {str(node.name): node for node in plan.graph.nodes}
    values = {}
    for end, codes in plan.baked.items():
        config = found.configs[end]
        value = nodes[end.node].inputs[end.slot]
        if value is not None:
            values[str(value.name)] = config.dequantize(codes)
        found.configs[end] = config.unbaked()
    return replace(found, baked={}), values
