"""Says what runs a model, whatever computes it: a batch of inputs in, outputs by name out.

What only wants outputs takes a `Run`, and `float_run`, `simulated_run` and `integer_run` make one.
Behind them, and where one wants more than outputs, are a few executors. They differ in what may
change from one run to the next, because each saves the work that stays the same:

- `session.FloatModel`: nothing. Any tensors of the float model are returned.
- `simulate.Simulator`: scales, and which quantizers are on. They are inputs of one session.
- `integer.IntegerEngine`: nothing, but it computes the codes of the target, and steps may be given
  other inputs than the program computed.
- `piecewise.PiecewiseSimulator`: the plan's structure. Its batches have numbers, since what earlier
  plans computed for a batch is taken up again.
- `piecewise.FloatPieces`: tensors and constants of the float model. Only what is behind runs again.

Two more run node by node, since what they run changes while they run: `improve.refine.walk.Walk`
(the plan changes at each node) and `improve.learn.slices.Slices` (gradients, on torch).

How many samples run at once is said in `intact.limits`, once for each way of running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy.typing as npt

from intact.engines.session import Feeds, FloatModel
from intact.engines.simulate import Simulator
from intact.graph import Graph
from intact.plan import QuantizedGraph

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""Arrays by name."""
Run: TypeAlias = Callable[[Feeds], Arrays]
"""Runs a model on a batch and returns its outputs by name."""


def float_run(graph: Graph, *, threads: int = 0) -> Run:
    """Return what runs a float model.

    Args:
        graph: The model.
        threads: Threads inside one operator; 0 lets the runtime choose.
    """
    return FloatModel(graph, threads=threads).run


def simulated_run(plan: QuantizedGraph, *, threads: int = 0) -> Run:
    """Return what simulates a plan in float32.

    Args:
        plan: A calibrated plan.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        PlanError: An end has no scale yet.
    """
    simulator = Simulator(plan, threads=threads)
    return lambda feeds: simulator.run(feeds)[0]


def integer_run(plan: QuantizedGraph, *, threads: int = 0) -> Run:
    """Return what computes a plan in integers, as its target does.

    Args:
        plan: A calibrated plan.
        threads: Threads of what stays float; 0 lets the runtime choose.

    Raises:
        PlanError: There is no integer program of the plan.
    """
    from intact.engines.integer import IntegerEngine  # compiled code, slow to load
    from intact.program.lower import lower

    engine = IntegerEngine(lower(plan), threads=threads)
    return lambda feeds: engine.run(feeds).outputs
