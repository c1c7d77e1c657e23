"""Spaces, costs and scores made up, so that samplers can be tried without a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from intact.plan import Overrides, QuantizedGraph
from intact.search.cost import CostModel, Term
from intact.search.space import FLOAT, Candidate, Group, GroupKind, Space
from intact.search.trial import Ask, Goal, Sampler, State, Trial, TrialResult

SAMPLES = 100


def space_of(*choices: Sequence[int]) -> Space:
    """Return a space of groups with these choices, without a graph behind it."""
    groups = tuple(
        Group(
            f"group{index}", GroupKind.WEIGHT, (), ("node",) if FLOAT in each else (), tuple(each)
        )
        for index, each in enumerate(choices)
    )
    return Space(cast(QuantizedGraph, None), Overrides(), groups)


def bits_cost(space: Space, weights: Sequence[int]) -> CostModel:
    """Return the cost: bits, times a weight for each group."""
    choices = tuple(group.choices for group in space.groups)
    terms = tuple(
        Term((index,), np.array([float(weight * bits) for bits in choices[index]]))
        for index, weight in enumerate(weights)
    )
    return CostModel("bits", "bits", 0.0, terms, choices)


Score = Callable[[Candidate], float]


@dataclass(frozen=True)
class Landscape:
    """A search to be made.

    Attributes:
        space: The candidates.
        cost: Of them.
        score: Of them; NaN fails.
        is_misjudged: The candidates of which the wrong is foreseen.
    """

    space: Space
    cost: CostModel
    score: Score
    is_misjudged: Callable[[Candidate], bool] = lambda _: False

    def measured(self, ask: Ask) -> TrialResult:
        """Return what an evaluator would: stopped below the bar, with a bad estimate."""
        score = self.score(ask.candidate)
        noise = 1.0 - score
        if math.isnan(score):
            return TrialResult(State.FAILED, score, score, 0, reason="made up")
        if ask.bar is not None and ask.is_enough:
            reaches = (score >= ask.bar) is not self.is_misjudged(ask.candidate)
            state = State.REACHED if reaches else State.STOPPED
            return TrialResult(state, ask.bar - 0.001, noise, SAMPLES // 10)
        if ask.bar is not None and score < ask.bar:  # an estimate may even lie above the bar
            guess = score + 0.001 if math.isinf(ask.bar) else ask.bar + 0.001
            return TrialResult(State.STOPPED, guess, noise, SAMPLES // 10)
        return TrialResult(State.COMPLETE, score, noise, ask.samples or SAMPLES)


def damage(bits: int) -> float:
    """Return what rounding to some bits costs: a quarter for each bit more; 0 for floats."""
    return 0.0 if bits == FLOAT else 4.0 ** (4 - bits)


def additive(space: Space, harms: Sequence[float], weights: Sequence[int]) -> Landscape:
    """Return a landscape where each group does its own damage."""

    def score(candidate: Candidate) -> float:
        return 1.0 - sum(harm * damage(bits) for harm, bits in zip(harms, candidate, strict=True))

    return Landscape(space, bits_cost(space, weights), score)


def mixed(count: int, seed: int, choices: Sequence[int] = (32, 8, 7, 6, 5, 4)) -> Landscape:
    """Return a landscape with neighbours that make each other worse, and a few bad groups."""
    generator = np.random.default_rng(seed)
    harms = 0.1 * generator.pareto(1.5, count) / count
    weights = [int(each) for each in generator.integers(1, 100, count)]
    space = space_of(*[choices] * count)

    def score(candidate: Candidate) -> float:
        each = np.array([damage(bits) for bits in candidate]) * harms
        return float(np.exp(-each.sum() - 3.0 * np.sqrt(each[1:] * each[:-1]).sum()))

    return Landscape(space, bits_cost(space, weights), score)


def constant(count: int = 6) -> Landscape:
    """Return a landscape whose score says nothing."""
    return _alike(count, lambda _: 0.5)


def failing(count: int = 6) -> Landscape:
    """Return a landscape where every trial fails."""
    return _alike(count, lambda _: math.nan)


def _alike(count: int, score: Score) -> Landscape:
    space = space_of(*[(32, 8, 6, 4)] * count)
    return Landscape(space, bits_cost(space, [1] * count), score)


def sometimes_failing(count: int = 8) -> Landscape:
    """Return a mixed landscape where a third of the trials fail, the default too."""
    whole = mixed(count, 7)

    def score(candidate: Candidate) -> float:
        place = sum((index + 1) * bits for index, bits in enumerate(candidate)) % 3
        is_default = candidate == whole.space.default
        return math.nan if place == 0 or is_default else whole.score(candidate)

    return Landscape(whole.space, whole.cost, score)


def infinite() -> Landscape:
    """Return a landscape of signal-to-noise ratios: infinite where nothing is quantized."""
    whole = mixed(5, 3)

    def score(candidate: Candidate) -> float:
        noise = 1.0 - whole.score(candidate)
        return math.inf if noise <= 0 else -10 * math.log10(noise)

    return Landscape(whole.space, whole.cost, score)


def search(sampler: Sampler, landscape: Landscape, budget: int) -> list[Trial]:
    """Lead a sampler as the driver does, and return the trials."""
    trials: list[Trial] = []
    while len(trials) < budget:
        asks = sampler.ask()
        if not asks:
            break
        told = [
            Trial(len(trials) + n, ask.candidate, landscape.cost.of(ask.candidate), measured)
            for n, ask in enumerate(asks)
            for measured in [landscape.measured(ask)]
        ]
        trials += told
        if len(trials) > budget:
            return trials[:budget]
        sampler.tell(told)
    return trials


def winner(trials: Sequence[Trial], goal: Goal) -> Trial | None:
    """Return the best of the trials, written down anew and not by `front.best`."""
    found = None
    for trial in trials:
        if not trial.counts(SAMPLES) or not goal.accepts(trial):
            continue
        if found is None or goal.rank(trial.score, trial.cost) > goal.rank(found.score, found.cost):
            found = trial
    return found
