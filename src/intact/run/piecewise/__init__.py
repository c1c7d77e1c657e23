"""Simulation in small pieces that trials of a search share."""

from intact.run.piecewise.prepared import Prepared
from intact.run.piecewise.simulator import PiecewiseSimulator

__all__ = ["PiecewiseSimulator", "Prepared"]
