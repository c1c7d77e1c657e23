"""Searches by sensitivity: measures each group alone, then solves an integer program.

1. Measure each group alone at its narrowest width, on few samples: the noise that it adds to the
   model's outputs (`NoiseModel` has the formula for other widths, and says why noises add).
2. Solve the integer program (`IntegerProgram`): cheapest within a noise, or least noise in a cost.
3. Measure its solutions on all samples. The score for a given noise is not known beforehand. So
   with a limit on the score, less and less noise is tried until the limit is met (`lower_noise`),
   and then lower and lower costs (`_descend`).
4. Measure single steps at the best candidate, where other groups are narrow too, correct the
   noises with them, and solve the program again.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from itertools import product
from typing import TypeAlias

import numpy as np

from intact.search.cost import CostModel, tabulate
from intact.search.samplers.base import Cost, GeneratorSampler, SearchGenerator, TrialsGenerator
from intact.search.samplers.integer_program import IntegerProgram
from intact.search.samplers.probes import Probes
from intact.search.space import Candidate, Space
from intact.search.trial import Ask, Goal, Trial

_LEAST, _MOST = 1.4, 16.0

"""Bounds of the factor of one step."""


def lower_noise(
    points: Sequence[tuple[float, float]], start: tuple[float, float], least: float
) -> float:
    """Estimate the noise that gives a score: by a line through the start, fitted to the points.

    Args:
        points: Noise and score of earlier trials, the latest last; scores that are not finite are
            ignored.
        start: Noise and score of a candidate of less noise.
        least: The required score.

    Returns:
        A noise below the latest one, by a factor from 1.4 to 16.

    >>> lower_noise([(8.0, 0.68)], (0.0, 1.0), 0.9)
    2.5
    """
    tried = points[-1][0]
    noise, score = start
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    squares = sum((x - noise) ** 2 for x, _ in finite)
    slope = sum((score - y) * (x - noise) for x, y in finite) / (squares or 1.0)
    meets = noise + (score - least) / slope if slope > 0 else 0.0
    return max(min(meets, tried / _LEAST), tried / _MOST)


_FIRST_NOISE = 0.02

"""The first noise to try (17 dB), where networks for CIFAR-10 begin to lose accuracy."""

_LEAST_NOISE = 1e-3

"""Lowest noise to try, relative to the default candidate's."""

_TRIALS = 8

"""Maximum number of candidates to find one that reaches the required score."""

_FEW_CANDIDATES = 16

"""A space up to this size is measured completely."""

_ROUNDS = 3

_FRONT = 12

_FIRST_STEP, _LAST_STEP = 0.75, 0.02

"""First and last step towards the lowest cost, as a share of the remaining difference."""

_SMALLER = 0.6

"""Factor of the step after a failure."""

_DOUBT = 0.3

"""Standard deviation of the logarithm of the random factors of the noises."""

_DRAWS = 6

"""Attempts to find a candidate that was not measured yet."""

_PATIENCE, _FAR = 2, 0.5

"""Noises are measured again after so many failures, if the remaining saving shrank by the
factor.
"""

BoolGenerator: TypeAlias = Generator[Sequence[Ask], Sequence[Trial], bool]

"""A part of a search that returns whether there is a new best trial."""


class Sensitivity(GeneratorSampler):
    """Measures groups alone and solves an integer program; for costs that are sums over groups."""

    name = "sensitivity"

    def __init__(self, space: Space, goal: Goal, cost: Cost, seed: int) -> None:
        # Before the base class: its walk starts in its constructor.
        self._model = cost.on(space) if isinstance(cost, CostModel) else tabulate(space, cost)
        self._probes = Probes(space)
        super().__init__(space, goal, cost, seed)

    def accepts(self, trial: Trial) -> bool:
        """Tell whether a trial ran all samples and is within the limits."""
        # Probes on few samples are complete as well, and must not become the best.
        samples = self._probes.samples or trial.measured.samples
        return trial.counts(samples) and self.goal.accepts(trial)

    def search(self, base: Trial) -> SearchGenerator:
        """Measure groups alone, solve, measure the solution; then improve it."""
        self._probes.begin(base)
        if self.space.size <= _FEW_CANDIDATES:
            yield from self._try(product(*self._model.choices))
            return
        # Without a noise of the default there is no difference to it.
        if not math.isfinite(base.measured.noise):
            return
        yield from self._probes.measure_alone(base, floats=self._wants_floats(base))
        if self.goal.min_score is not None:
            yield from self._satisfy(self.goal.min_score)
            yield from self._descend()
            return
        yield from self._solve()
        for _ in range(_ROUNDS):
            if not (yield from self._improve()):
                break

    def _try(self, candidates: Iterable[Candidate]) -> TrialsGenerator:
        bar = self.goal.min_score
        if bar is None and self.goal.max_cost is not None and self.best is not None:
            bar = self.best.score
        return (yield from self._probes.measure(candidates, bar))

    def _program(self) -> IntegerProgram:
        return IntegerProgram(self._model, self._probes.noise_model.table())

    def _wants_floats(self, base: Trial) -> bool:
        """Tell whether floats are of use: the default's score is too low, or it may cost more."""
        least, limit = self.goal.min_score, self.goal.max_cost
        return base.score < least if least is not None else limit is None or base.cost < limit

    # ---- with a limit on the score -----------------------------------------------------------

    def _satisfy(self, least: float) -> SearchGenerator:
        """Measure the cheapest candidates of less and less noise until one reaches the score."""
        program, probes = self._program(), self._probes
        cheapest, default = program.cheapest(math.inf), probes.whole[self.space.default]
        if cheapest is None:
            return
        # An exact default has no noise; the steps need an end above 0 all the same.
        lowest = max(probes.offset, 0.0) * _LEAST_NOISE or _LEAST_NOISE**2
        # Not above the noise of the cheapest: that one is already the answer there.
        noise = max(min(_FIRST_NOISE, probes.offset + program.total(cheapest)), lowest)
        start, points = (default.measured.noise, default.score), list[tuple[float, float]]()
        tried = len(probes.whole)
        while len(probes.whole) < tried + _TRIALS:
            candidate = program.cheapest(noise - probes.offset)
            is_last = candidate is None or noise <= lowest  # there is no lower noise
            candidate = program.least_noise(math.inf) if candidate is None else candidate
            trials = yield from self._try([] if candidate is None else [candidate])
            if is_last or self._good in trials:
                return
            points.append((noise, trials[0].score))
            noise = max(lower_noise(points, start, least), lowest)

    def _descend(self) -> SearchGenerator:
        """Lower the cost of the cheapest good candidate, in smaller and smaller steps.

        A step is a share of the difference between its cost and the lowest cost. The first steps
        are long, because a bad candidate is stopped early. Whether a candidate reaches the score is
        partly chance: with some hundreds of samples, two candidates of the same noise differ by a
        point of accuracy. So after a failure the step is shorter, and the noises of the program are
        multiplied by random factors, which gives another solution.
        """
        generator = np.random.default_rng(self.seed)
        step, failed, left_then = _FIRST_STEP, 0, math.inf
        lowest = self._lowest()
        while step >= _LAST_STEP and (good := self._good) is not None:
            left = self._model.estimate(good.candidate) - lowest
            if left <= 0:
                return
            if failed >= _PATIENCE and left < left_then * _FAR:
                yield from self._probes.correct(good.candidate)
                left_then, lowest = left, self._lowest()
            candidate = self._cheaper(lowest + left * (1 - step), generator)
            yield from self._try([] if candidate is None else [candidate])
            if self._good is good:
                step, failed = step * _SMALLER, failed + 1
            else:
                step, failed = min(step / _SMALLER, _FIRST_STEP), 0

    @property
    def _good(self) -> Trial | None:
        """The cheapest trial that reaches the required score, at any cost."""
        probes = self._probes
        least = -math.inf if self.goal.min_score is None else self.goal.min_score
        found = (
            each
            for each in probes.whole.values()
            if each.counts(probes.samples) and each.score >= least
        )
        return min(found, key=lambda trial: trial.cost, default=None)

    def _cheaper(self, cost: float, generator: np.random.Generator) -> Candidate | None:
        """Find a candidate within a cost that was not measured yet; None where none is found.

        Each attempt that finds a measured one makes the random factors of the noises larger.
        """
        table = self._probes.noise_model.table()
        for draw in range(_DRAWS):
            doubt = generator.normal(0.0, _DOUBT * draw, len(table))
            pairs = zip(table, doubt, strict=True)
            program = IntegerProgram(self._model, [row * math.exp(each) for row, each in pairs])
            candidate = program.least_noise(cost)
            if candidate is None or candidate not in self._probes.whole:
                return candidate
        return None

    def _lowest(self) -> float:
        """Compute the lowest cost of the choices that are not excluded."""
        cheapest = self._program().cheapest(math.inf)
        return math.inf if cheapest is None else self._model.estimate(cheapest)

    # ---- otherwise ---------------------------------------------------------------------------

    def _improve(self) -> BoolGenerator:
        """Correct the noises near the best candidate, and solve again."""
        best = self.best
        if best is None:
            return False
        yield from self._probes.correct(best.candidate)
        yield from self._solve()
        return self.best is not best

    def _solve(self) -> SearchGenerator:
        limit = self.goal.max_cost
        yield from self._follow_front() if limit is None else self._fit(limit)

    def _fit(self, limit: float) -> SearchGenerator:
        """Measure the candidate of the least noise within a cost.

        For a measured cost the tables are estimates: their limit is corrected by the measured cost
        until the limit is met.
        """
        program = self._program()
        allowed = limit
        for _ in range(_ROUNDS):
            candidate = program.least_noise(allowed) or program.cheapest(math.inf)
            if candidate is None:
                return
            trials = yield from self._try([candidate])
            if self._model.measure is None or trials[0].cost <= limit or not trials[0].cost > 0:
                return
            # The tables are taken to be wrong by one factor.
            allowed = self._model.estimate(candidate) * limit / trials[0].cost

    def _follow_front(self) -> SearchGenerator:
        """Measure the candidates of the least noise at costs from the lowest to the highest."""
        program = self._program()
        cheapest, quietest = program.cheapest(math.inf), program.least_noise(math.inf)
        if cheapest is None or quietest is None:
            return
        costs = [self._model.estimate(each) for each in (cheapest, self.space.default, quietest)]
        limits = np.linspace(min(costs), max(costs), _FRONT)
        found = [program.least_noise(float(limit)) for limit in limits]
        yield from self._try([each for each in found if each is not None])
