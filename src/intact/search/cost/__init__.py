"""The cost of candidates: tables over the choices of groups, or measurements."""

from __future__ import annotations

from intact.search.cost.kinds import COSTS, CostKind, make_cost
from intact.search.cost.model import CostModel, Measure, Term, prune, tabulate

__all__ = ["COSTS", "CostKind", "CostModel", "Measure", "Term", "make_cost", "prune", "tabulate"]
