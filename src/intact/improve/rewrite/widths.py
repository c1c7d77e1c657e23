"""The widths of a plan, for rewrites that measure what they gain."""

from __future__ import annotations

from dataclasses import dataclass

from intact.graph import weight_slot
from intact.plan import QuantizedGraph, TensorEnd


@dataclass(frozen=True)
class Widths:
    """How errors are measured: as a target with such a grid would round.

    Attributes:
        weight_bits: Of symmetric codes.
        activation_bits: Of asymmetric codes, one scale for the tensor.
        per_channel: Whether each output channel of a weight has a scale.
    """

    weight_bits: int = 8
    activation_bits: int = 8
    per_channel: bool = True

    @staticmethod
    def of(plan: QuantizedGraph) -> Widths:
        """Return the fewest bits of a plan's weights and activations."""
        weights, activations = [], []
        for node in plan.graph.nodes:
            slot = weight_slot(node)
            if slot is None or not plan.is_quantized(node):
                continue
            ends = (TensorEnd.input(str(node.name), each) for each in (slot, 0))
            weight, data = (plan.configs.get(end) for end in ends)
            weights += [] if weight is None else [weight]
            activations += [] if data is None else [data]
        return Widths(
            min((each.bits for each in weights), default=8),
            min((each.bits for each in activations), default=8),
            any(each.granularity.axis is not None for each in weights),
        )
