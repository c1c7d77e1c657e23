"""Simulation in pieces that the trials of a search share; the float model likewise."""

from intact.engines.piecewise.floats import FloatPieces
from intact.engines.piecewise.plan import PiecewisePlan
from intact.engines.piecewise.simulator import PiecewiseSimulator

__all__ = ["FloatPieces", "PiecewisePlan", "PiecewiseSimulator"]
