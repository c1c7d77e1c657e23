"""Keeps nodes in float32 whose values, as samples show them, float16 cannot hold."""

from __future__ import annotations

from dataclasses import replace

from intact.calibrate.statistics import Statistics
from intact.graph.passes.narrow import LARGEST
from intact.limits import FLOAT16_ROOM
from intact.plan import QuantizedGraph
from intact.plan.float16 import float16_notes, float16_values


def keep_within_range(plan: QuantizedGraph, statistics: Statistics | None) -> QuantizedGraph:
    """Keep in float32 what reads or gives a value beyond the range of float16, and say so.

    Args:
        plan: A plan, perhaps with nodes in float16.
        statistics: What samples have shown; None where there were none.
    """
    found = plan.float16
    if found is None:
        return plan
    reasons: dict[str, str] = {}
    for node, value in float16_values(plan) if statistics is not None else ():
        name = str(value.name)
        known = None if statistics is None else statistics.tensors.get(name)
        if known is None:
            reasons.setdefault(str(node.name), f"what {name!r} reaches is not known")
            continue
        reach = max(abs(known.minimum), abs(known.maximum)) if known.samples else 0.0
        if FLOAT16_ROOM * reach > LARGEST:
            reason = f"{name!r} reaches {reach:.3g}, and float16 ends at 65,504"
            reasons[str(node.name)] = reason
    plan = replace(plan, float16=found.without(reasons))
    return plan.with_notes(float16_notes(plan, observed=statistics is not None))
