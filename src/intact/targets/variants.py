"""Targets with one choice of their hardware made differently."""

from __future__ import annotations

import msgspec

from intact.targets.rules import OpRule, ScaleRule
from intact.targets.schema import Target


def without_in_place(target: Target) -> Target:
    """Return a target in which no operator works in place: no scale is passed back to an input.

    Operators that only move codes keep one scale for input and output; it is the input's then.
    """
    rules = tuple(_apart(rule) for rule in target.rules)
    topology = msgspec.structs.replace(target.topology, in_place=False)
    return msgspec.structs.replace(target, rules=rules, topology=topology)


def _apart(rule: OpRule) -> OpRule:
    scales = _INSTEAD.get(rule.scales)
    if scales is None:
        return rule
    return msgspec.structs.replace(rule, scales=scales, max_consumers=None)


_INSTEAD = {
    ScaleRule.INPUT_FOLLOWS_OUTPUT: ScaleRule.FREE,
    ScaleRule.EITHER_FOLLOWS: ScaleRule.OUTPUT_FOLLOWS_INPUT,
}
