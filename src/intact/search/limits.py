"""How many bits an edge may have: what everything at it declares.

Source: facts, "HAGO, Bits": the smaller of the largest consumer's input bits and the largest
producer's output bits, over the declared alternatives of each operator.
"""

from __future__ import annotations

from collections.abc import Iterable

from intact.graph import Role, data_slots, input_role, weight_slot
from intact.plan import Direction, QuantizedGraph, TensorEnd
from intact.targets import DType, OpRule, TensorScheme

_WIDEST_CODES = 16
"""An int32 is a sum; what is stored between operators is at most int16."""


def widest(plan: QuantizedGraph, ends: Iterable[TensorEnd]) -> int:
    """Return the largest width that every end of a group can have."""
    return min(_widest_at(plan, end) for end in ends)


def declared_dtypes(rule: OpRule, inputs: int, position: int | None) -> set[DType]:
    """Return what a rule declares for an input (by position) or, with None, for the output.

    Args:
        rule: The operator's.
        inputs: How many inputs count, the weight included and last.
        position: 0 is the first data input; ``inputs - 1`` the last one, or the weight.
    """
    signatures = [(rule.inputs, rule.outputs)]
    signatures += [(each.inputs, each.outputs) for each in rule.alternatives]
    found: set[DType] = set()
    for taken, given in signatures:
        dtypes = given[:1] if position is None else taken
        if position is None or not dtypes:
            found.update(dtypes)
        elif position == inputs - 1 or position >= len(dtypes):
            found.add(dtypes[-1])
        else:
            found.add(dtypes[position])
    return found


def _widest_at(plan: QuantizedGraph, end: TensorEnd) -> int:
    node = plan.graph.node(end.node)
    config = plan.configs[end]
    rule = plan.target.rule_for(node)
    if rule is None:
        return config.bits
    weight = weight_slot(node)
    slots = [*(slot for slot in data_slots(node) if slot != weight)]
    slots += [] if weight is None else [weight]
    position = slots.index(end.slot) if _is_counted(end, slots) else None
    own = _scheme(plan, rule, end).bits
    dtypes = declared_dtypes(rule, len(slots), position)
    widths = [dtype.bits for dtype in dtypes if not dtype.is_float]
    return max([own, *(bits for bits in widths if bits <= _WIDEST_CODES)])


def _is_counted(end: TensorEnd, slots: list[int]) -> bool:
    return end.direction is Direction.INPUT and end.slot in slots


def _scheme(plan: QuantizedGraph, rule: OpRule, end: TensorEnd) -> TensorScheme:
    node = plan.graph.node(end.node)
    is_weight = end.direction is Direction.INPUT and input_role(node, end.slot) is Role.WEIGHT
    return plan.target.weight_scheme(rule) if is_weight else plan.target.activation_scheme(rule)
