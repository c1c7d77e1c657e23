"""The samplers by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from intact.errors import UsageError, nearest
from intact.search.samplers.annealing import Annealing
from intact.search.samplers.base import Cost, GeneratorSampler
from intact.search.samplers.greedy import BatchedGreedy, Greedy
from intact.search.samplers.optuna_ import ParetoGenetic, TreeParzen
from intact.search.samplers.random_search import RandomSearch
from intact.search.samplers.sensitivity import Sensitivity
from intact.search.space import Space
from intact.search.trial import Goal, Sampler

__all__ = ["SAMPLERS", "Cost", "GeneratorSampler", "SamplerKind", "make_sampler"]

Constructor: TypeAlias = Callable[[Space, Goal, Cost, int], Sampler]


@dataclass(frozen=True)
class SamplerKind:
    """An entry of the table of samplers.

    Attributes:
        make: Makes the sampler from space, goal, cost and seed.
        help: One line of help.
        extra: The extra of the package that it needs; empty if none.
    """

    make: Constructor
    help: str
    extra: str = ""


SAMPLERS: dict[str, SamplerKind] = {
    "random": SamplerKind(RandomSearch, "choose a random width for each group"),
    "greedy": SamplerKind(Greedy, "lower one group after the other as far as the score allows"),
    "batched-greedy": SamplerKind(
        BatchedGreedy, "try a step of every group in parallel, combine those that keep the score"
    ),
    "annealing": SamplerKind(Annealing, "simulated annealing"),
    "sensitivity": SamplerKind(
        Sensitivity, "measure each group alone, then solve an integer program"
    ),
    "tpe": SamplerKind(TreeParzen, "Optuna's tree-structured Parzen estimator", "search"),
    "nsga2": SamplerKind(
        ParetoGenetic, "Optuna's NSGA-II: the whole Pareto front of score and cost", "search"
    ),
}


def make_sampler(name: str, space: Space, goal: Goal, cost: Cost, seed: int) -> Sampler:
    """Make a sampler by its name.

    Raises:
        UsageError: The name is unknown.
        MissingExtraError: The sampler needs a package that is not installed.
    """
    if name not in SAMPLERS:
        raise UsageError(f"no sampler {name!r}", remedy=nearest(name, SAMPLERS))
    return SAMPLERS[name].make(space, goal, cost, seed)
