"""How many bits an edge may have: what everything at it declares.

Source: facts, "HAGO, Bits": the smaller of the largest consumer's input bits and the largest
producer's output bits, over the declared alternatives of each operator.
"""

from __future__ import annotations

from collections.abc import Iterable

from intact.graph import Role, input_role
from intact.plan import Direction, QuantizedGraph, TensorEnd
from intact.plan.inference import declared_signatures, factor_slots
from intact.targets import OpRule, TensorScheme

_WIDEST_CODES = 16
"""An int32 is a sum; what is stored between operators is at most int16."""


def widest(plan: QuantizedGraph, ends: Iterable[TensorEnd]) -> int:
    """Return the largest width that every end of a group can have."""
    return min(_widest_at(plan, end) for end in ends)


def _widest_at(plan: QuantizedGraph, end: TensorEnd) -> int:
    node = plan.graph.node(end.node)
    rule = plan.target.rule_for(node)
    if rule is None:
        return plan.configs[end].bits
    signatures = declared_signatures(node, rule, plan.target)
    slots = factor_slots(node)
    if end.direction is Direction.OUTPUT:
        declared = [each.outputs[0] for each in signatures]
    elif end.slot in slots:
        declared = [each.inputs[slots.index(end.slot)] for each in signatures]
    else:
        declared = []
    widths = [dtype.bits for dtype in declared if not dtype.is_float]
    own = _scheme(plan, rule, end).bits
    return max([own, *(bits for bits in widths if bits <= _WIDEST_CODES)])


def _scheme(plan: QuantizedGraph, rule: OpRule, end: TensorEnd) -> TensorScheme:
    node = plan.graph.node(end.node)
    is_weight = end.direction is Direction.INPUT and input_role(node, end.slot) is Role.WEIGHT
    return plan.target.weight_scheme(rule) if is_weight else plan.target.activation_scheme(rule)
