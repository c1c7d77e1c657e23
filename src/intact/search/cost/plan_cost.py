"""What a plan costs as it is, by the costs of a search."""

from __future__ import annotations

from intact.engines.session import Feeds
from intact.errors import DataError
from intact.plan import QuantizedGraph
from intact.search.cost.kinds import make_cost
from intact.search.space import Space

_COMPUTED = ("bytes", "bitops")
"""Costs that need no target's prices and no measurement."""


def plan_costs(
    plan: QuantizedGraph, feeds: Feeds | None = None, *, packs: bool = True
) -> dict[str, float]:
    """Compute the costs of a plan by name: ``bytes`` of the parameters, and ``bitops``.

    Args:
        plan: The plan.
        feeds: Inputs of one sample by name, for models whose shapes depend on it. A cost that
            needs them is left out without.
        packs: The deployed file stores 4-bit codes two per byte.
    """
    space = Space.of_plan(plan)
    found = {}
    for name in _COMPUTED:
        try:
            found[name] = make_cost(name, space, feeds, packs=packs).of(space.default)
        except DataError:
            continue
    return found
