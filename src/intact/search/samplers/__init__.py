"""Samplers by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from intact.errors import UsageError, nearest
from intact.search.samplers.annealing import Annealing
from intact.search.samplers.base import Cost, WalkingSampler
from intact.search.samplers.greedy import BatchedGreedy, Greedy
from intact.search.samplers.optuna_ import ParetoGenetic, TreeParzen
from intact.search.samplers.random_draws import RandomDraws
from intact.search.samplers.sensitivity import Sensitivity
from intact.search.space import Space
from intact.search.trial import Goal, Sampler

__all__ = ["SAMPLERS", "Cost", "SamplerKind", "WalkingSampler", "make_sampler"]

Constructor: TypeAlias = Callable[[Space, Goal, Cost, int], Sampler]


@dataclass(frozen=True)
class SamplerKind:
    """A sampler that can be chosen.

    Attributes:
        make: From space, goal, cost and seed.
        help: One line.
        extra: What `pip install 'intact[...]'` must name for it; empty where nothing.
    """

    make: Constructor
    help: str
    extra: str = ""


SAMPLERS: dict[str, SamplerKind] = {
    "random": SamplerKind(RandomDraws, "each group draws a width"),
    "greedy": SamplerKind(Greedy, "lower one group after the other as far as the score allows"),
    "batched-greedy": SamplerKind(
        BatchedGreedy, "try a step of every group side by side, take those that go together"
    ),
    "annealing": SamplerKind(Annealing, "simulated annealing"),
    "sensitivity": SamplerKind(
        Sensitivity, "measure each group alone, then solve an integer program"
    ),
    "tpe": SamplerKind(TreeParzen, "Optuna's tree-structured Parzen estimator", "search"),
    "nsga2": SamplerKind(
        ParetoGenetic, "Optuna's NSGA-II: the whole front of score and cost", "search"
    ),
}


def make_sampler(name: str, space: Space, goal: Goal, cost: Cost, seed: int) -> Sampler:
    """Return a sampler by its name.

    Raises:
        UsageError: There is none of that name.
        MissingExtraError: It needs a package that is not installed.
    """
    if name not in SAMPLERS:
        raise UsageError(f"no sampler {name!r}", remedy=nearest(name, SAMPLERS))
    return SAMPLERS[name].make(space, goal, cost, seed)
