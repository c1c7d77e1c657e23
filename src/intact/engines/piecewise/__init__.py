"""Simulation in pieces that the trials of a search share."""

from intact.engines.piecewise.plan import PiecewisePlan
from intact.engines.piecewise.simulator import PiecewiseSimulator

__all__ = ["PiecewisePlan", "PiecewiseSimulator"]
