"""Simulation in small pieces that trials of a search share."""

from intact.engines.piecewise.plan import PiecewisePlan
from intact.engines.piecewise.simulator import PiecewiseSimulator

__all__ = ["PiecewisePlan", "PiecewiseSimulator"]
