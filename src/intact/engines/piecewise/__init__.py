"""Simulation in small pieces that trials of a search share."""

from intact.engines.piecewise.prepared import Prepared
from intact.engines.piecewise.simulator import PiecewiseSimulator

__all__ = ["PiecewiseSimulator", "Prepared"]
