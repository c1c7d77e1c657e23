"""Searches by Optuna's samplers: TPE for one objective, NSGA-II for the Pareto front.

Extra ``search``: optuna from 4.2 on, including 5. Only the interface that both have is used:
``ask`` with fixed distributions, ``tell``, ``enqueue_trial``. Limits are passed as values and not
as optuna's constraints, whose interface changed in 5.0. Candidates within the limits rank before
all others, and those by their violation, relative to the default's score and cost (Deb's
constrained domination; both algorithms depend on the order of values only).

A parameter is the index of a group's choice, an integer, since widths are ordered. Both start with
the candidates of one width everywhere. No candidate is measured twice. Costs are known without a
trial: a candidate that its cost rules out is reported at once. Where the algorithm proposes no new
candidate, a neighbour of the best one is measured.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from intact._extras import require
from intact.search.samplers.annealing import neighbour_of
from intact.search.samplers.base import Cost, GeneratorSampler, SearchGenerator
from intact.search.space import Candidate, Space
from intact.search.trial import Ask, Goal, State, Trial

LARGEST = 1e8
"""Largest absolute score that is passed to optuna: signal-to-noise ratios may be infinite."""

RULED_OUT, BROKEN = 1e9, 2e9
"""Values of candidates that their cost rules out, and of those that violate limits; plus the
amount.
"""

WASTED = 2
"""Proposals in a row without a new candidate, after which a neighbour is tried."""

STEPS = 200
"""Maximum number of random moves to find a new neighbour; the search ends where none is found."""


class OptunaSampler(GeneratorSampler):
    """The common part of both: one study.

    Attributes:
        batch: Number of candidates in a batch.
    """

    batch: int

    def __init__(self, space: Space, goal: Goal, cost: Cost, seed: int) -> None:
        require(f"the sampler {self.name!r}", ["optuna"], "search")
        super().__init__(space, goal, cost, seed)

    @abstractmethod
    def study(self) -> Any:
        """Make an empty study of the algorithm; it minimizes."""

    @abstractmethod
    def values(self, score: float, cost: float) -> list[float]:
        """Compute the values of a candidate within the limits: below ``RULED_OUT``."""

    def ruled_out(self, cost: float) -> float | None:
        """Compute the value of a candidate that its cost rules out; None if a trial is needed."""
        limit = self.goal.max_cost
        return None if limit is None or cost <= limit else self._broken(math.inf, cost)

    def search(self, base: Trial) -> SearchGenerator:
        """Ask the study for batches until it has no new candidate."""
        self._score_unit = _unit(base.score)
        self._cost_unit = _unit(base.cost)
        generator = np.random.default_rng(self.seed)
        with _quiet():
            study = self.study()
        # Told to the study as well, so that its model begins with the diagonal of the space.
        batch = self._enqueue_uniform(study)
        while batch:
            new = [candidate for candidate in batch if self.is_new(candidate)]
            if new:
                yield [Ask(candidate, bar=self.stops_below(candidate)) for candidate in new]
            for candidate, asked in batch.items():
                self._tell(study, asked, candidate)
            batch = self._draw(study, generator)

    def _enqueue_uniform(self, study: Any) -> dict[Candidate, Any]:
        """Make the candidates of one width that may become the best, the default first.

        The narrowest one is always included: it shows how near a limit is.
        """
        widths = sorted({bits for group in self.space.groups for bits in group.choices})
        uniform = [self.space.uniform(bits) for bits in widths]
        # From the widest down, without the narrowest, which follows unasked.
        useful = [each for each in uniform[:0:-1] if self.ruled_out(self.guess(each)) is None]
        candidates = dict.fromkeys([self.space.default, *useful, uniform[0]])
        return {each: self._enqueue(study, each) for each in candidates}

    def _draw(self, study: Any, generator: np.random.Generator) -> dict[Candidate, Any]:
        """Propose candidates, with their trials in the study."""
        found: dict[Candidate, Any] = {}
        wasted = 0
        while len(found) < self.batch:
            if wasted < WASTED:
                asked = study.ask(self._distributions())
                candidate = self._candidate(asked.params)
            else:
                neighbour = self._neighbour(found, generator)
                if neighbour is None:
                    break
                candidate, asked = neighbour, self._enqueue(study, neighbour)
            ruled_out = self.ruled_out(self.guess(candidate))
            wasted += 1
            # A study may propose a candidate again before its result is known; its trial must be
            # ended.
            if candidate in found:
                self._fail(study, asked)
            # Told again, because the study learns from its own trials only.
            elif not self.is_new(candidate):
                self._tell(study, asked, candidate)
            elif ruled_out is not None:
                study.tell(asked, [ruled_out] * len(study.directions))
            else:
                found[candidate] = asked
                wasted = 0
        return found

    def _neighbour(
        self, found: dict[Candidate, Any], generator: np.random.Generator
    ) -> Candidate | None:
        origin = self.best or min(self.trials.values(), key=lambda trial: trial.cost)
        candidate = origin.candidate
        for _ in range(STEPS):
            candidate = neighbour_of(self.space, candidate, generator)
            if self.is_new(candidate) and candidate not in found:
                if self.ruled_out(self.guess(candidate)) is None:
                    return candidate
                # A walk of several moves leaves a neighbourhood that is known; where the cost rules
                # a place out, it begins again.
                candidate = origin.candidate
        return None

    def _tell(self, study: Any, asked: Any, candidate: Candidate) -> None:
        trial = self.trials[candidate]
        score = self.score(trial)
        # Studies take no infinity; a failed trial is left out of their models.
        if score == -math.inf:
            self._fail(study, asked)
            return
        if (broken := self._broken(score, trial.cost)) > BROKEN:
            study.tell(asked, [broken] * len(study.directions))
        else:
            study.tell(asked, self.values(max(-LARGEST, min(score, LARGEST)), trial.cost))

    def _broken(self, score: float, cost: float) -> float:
        """Compute ``BROKEN`` plus the violation of the limits, relative to the default
        candidate.
        """
        goal = self.goal
        lacking = 0.0
        if goal.min_score is not None and score < goal.min_score:
            lacking += max((goal.min_score - score) / self._score_unit, 1e-6)
        if goal.max_cost is not None and cost > goal.max_cost:
            lacking += max((cost - goal.max_cost) / self._cost_unit, 1e-6)
        return BROKEN + min(lacking, LARGEST)

    @staticmethod
    def _fail(study: Any, asked: Any) -> None:
        from optuna.trial import TrialState

        study.tell(asked, state=TrialState.FAIL)

    def _enqueue(self, study: Any, candidate: Candidate) -> Any:
        """Add a candidate to the study as a trial."""
        groups = self.space.groups
        places = {
            _key(index): groups[index].choices.index(candidate[index]) for index in self.space.open
        }
        study.enqueue_trial(places)
        return study.ask(self._distributions())

    def _candidate(self, places: dict[str, int]) -> Candidate:
        candidate = list(self.space.default)
        for index in self.space.open:
            candidate[index] = self.space.groups[index].choices[places[_key(index)]]
        return tuple(candidate)

    def _distributions(self) -> dict[str, Any]:
        from optuna.distributions import IntDistribution

        groups = self.space.groups
        return {
            _key(index): IntDistribution(0, len(groups[index].choices) - 1)
            for index in self.space.open
        }


class TreeParzen(OptunaSampler):
    """The tree-structured Parzen estimator, over all groups together."""

    name = "tpe"
    batch = 4

    def study(self) -> Any:
        """Make a study of one value."""
        import optuna

        sampler = optuna.samplers.TPESampler(seed=self.seed, multivariate=True, constant_liar=True)
        return optuna.create_study(sampler=sampler, directions=["minimize"])

    def values(self, score: float, cost: float) -> list[float]:
        """Compute the cost where the goal is the cheapest, else the loss plus a little cost."""
        share = cost / self._cost_unit
        return [share if self.goal.min_score is not None else -score + 1e-6 * share]

    def ruled_out(self, cost: float) -> float | None:
        """Rule out what the base class does, and candidates that cost more than the best."""
        if (value := super().ruled_out(cost)) is not None:
            return value
        if self.goal.min_score is None or cost <= self.to_undercut:
            return None
        return RULED_OUT + cost / self._cost_unit


class ParetoGenetic(OptunaSampler):
    """NSGA-II: generations that approach the Pareto front of score and cost."""

    name = "nsga2"
    batch = 24

    def study(self) -> Any:
        """Make a study of two values."""
        import optuna

        sampler = optuna.samplers.NSGAIISampler(population_size=self.batch, seed=self.seed)
        return optuna.create_study(sampler=sampler, directions=["minimize", "minimize"])

    def values(self, score: float, cost: float) -> list[float]:
        """Compute loss and cost."""
        return [-score, cost / self._cost_unit]

    def bar(self, candidate: Candidate) -> float | None:
        """Return the best score at no higher cost: a candidate below it is not on the front."""
        cost = self.cost.of(candidate)
        scores = [
            trial.score
            for trial in self.trials.values()
            if trial.cost <= cost and trial.measured.state is State.COMPLETE
        ]
        if self.goal.min_score is not None:
            scores.append(self.goal.min_score)
        return max((score for score in scores if not math.isnan(score)), default=None)


def _unit(figure: float) -> float:
    return abs(figure) if math.isfinite(figure) and figure else 1.0


def _key(index: int) -> str:
    return f"g{index}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress optuna's messages on new studies and its warnings on experimental options."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)
