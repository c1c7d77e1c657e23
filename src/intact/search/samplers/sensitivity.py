"""Sensitivity: measure what each group does alone, then solve an integer program.

1. Each group alone at its narrowest, on few samples, all side by side: what noise it adds to the
   model's outputs (`Damage` says how that gives the other widths, and why noises add).
2. The integer program (`Program`): cheapest within a noise, or least noise within a cost.
3. Its solutions on all samples. How much noise costs how much of the score is not known
   beforehand; so with a limit of the score less and less noise is tried until the limit is held
   (`quieter`), and then lower and lower costs (`_descend`).
4. As long as more is asked for: what single steps add at the best candidate, where other groups
   are narrow too, corrects what was learned alone, and the program is solved again.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from itertools import product
from typing import TypeAlias

import numpy as np

from intact.search.cost import CostModel, tabulated
from intact.search.samplers.base import Cost, Measuring, Walk, WalkingSampler
from intact.search.samplers.program import Program
from intact.search.samplers.soundings import Soundings
from intact.search.space import Candidate, Space
from intact.search.trial import Ask, Goal, Trial

_LEAST, _MOST = 1.4, 16.0

"""A step down is within these factors."""


def quieter(
    points: Sequence[tuple[float, float]], start: tuple[float, float], least: float
) -> float:
    """Return where a line through the start, fitted to the points, meets a score.

    Args:
        points: Noise and score of what was tried, the last one last; scores that are not finite
            are passed over.
        start: Those of a candidate of less noise.
        least: The score that is wanted.

    Returns:
        A noise below the last one, by a factor from 1.4 to 16.

    >>> quieter([(8.0, 0.68)], (0.0, 1.0), 0.9)
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

"""The noise that is tried first (17 dB); networks for CIFAR-10 begin to lose there."""

_LEAST_NOISE = 1e-3

"""Of the default's: less than that is not asked for."""

_TRIALS = 8

"""Candidates that are tried for one that holds the limit of the score."""

_FEW_CANDIDATES = 16

"""A space so small is tried whole."""

_ROUNDS = 3

_FRONT = 12

_FIRST_STEP, _LAST_STEP = 0.75, 0.02

"""Shares of what may still be saved by which a good candidate is to become cheaper."""

_SMALLER = 0.6

"""A step over the one before it that failed."""

_DOUBT = 0.3

"""Standard deviation of the logarithm of what is added to a group's damage, for variety."""

_DRAWS = 6

"""Attempts at a candidate that was not tried."""

_PATIENCE, _FAR = 2, 0.5

"""After so many failures, if so much less can still be saved, the damage is measured again."""

Improving: TypeAlias = Generator[Sequence[Ask], Sequence[Trial], bool]

"""A part of a search that returns whether there is a new best."""


class Sensitivity(WalkingSampler):
    """Groups measured alone and an integer program; for costs that are sums over groups."""

    name = "sensitivity"

    def __init__(self, space: Space, goal: Goal, cost: Cost, seed: int) -> None:
        self._model = cost.on(space) if isinstance(cost, CostModel) else tabulated(space, cost)
        self._known = Soundings(space)
        super().__init__(space, goal, cost, seed)

    def accepts(self, trial: Trial) -> bool:
        """Tell whether a trial is one on all samples and holds the limits."""
        samples = self._known.samples or trial.measured.samples
        return trial.counts(samples) and self.goal.accepts(trial)

    def search(self, base: Trial) -> Walk:
        """Measure groups alone, solve, verify; then improve."""
        self._known.begin(base)
        if self.space.size <= _FEW_CANDIDATES:
            yield from self._try(product(*self._model.choices))
            return
        if not math.isfinite(base.measured.noise):
            return
        yield from self._known.alone(base, floats=self._wants_floats(base))
        if self.goal.min_score is not None:
            yield from self._satisfy(self.goal.min_score)
            yield from self._descend()
            return
        yield from self._solve()
        for _ in range(_ROUNDS):
            if not (yield from self._improve()):
                break

    def _try(self, candidates: Iterable[Candidate]) -> Measuring:
        bar = self.goal.min_score
        if bar is None and self.goal.max_cost is not None and self.best is not None:
            bar = self.best.score
        return (yield from self._known.tried(candidates, bar))

    def _program(self) -> Program:
        return Program(self._model, self._known.damage.table())

    def _wants_floats(self, base: Trial) -> bool:
        """Tell whether the default is not good enough, or may be dearer."""
        least, limit = self.goal.min_score, self.goal.max_cost
        return base.score < least if least is not None else limit is None or base.cost < limit

    # ---- with a limit of the score -----------------------------------------------------------

    def _satisfy(self, least: float) -> Walk:
        """Try the cheapest candidates of less and less noise until one has the score."""
        program, known = self._program(), self._known
        cheapest, default = program.cheapest(math.inf), known.whole[self.space.default]
        if cheapest is None:
            return
        lowest = max(known.offset, 0.0) * _LEAST_NOISE or _LEAST_NOISE**2
        noise = max(min(_FIRST_NOISE, known.offset + program.total(cheapest)), lowest)
        start, points = (default.measured.noise, default.score), list[tuple[float, float]]()
        tried = len(known.whole)
        while len(known.whole) < tried + _TRIALS:
            candidate = program.cheapest(noise - known.offset)
            is_last = candidate is None or noise <= lowest  # nothing is quieter
            candidate = program.mildest(math.inf) if candidate is None else candidate
            trials = yield from self._try([] if candidate is None else [candidate])
            if is_last or self._good in trials:
                return
            points.append((noise, trials[0].score))
            noise = max(quieter(points, start, least), lowest)

    def _descend(self) -> Walk:
        """Make the cheapest candidate that has the score cheaper, in smaller and smaller steps.

        A step is a share of what lies between its cost and the lowest. The first are long: what
        fails by far is stopped early, and costs less than what nearly does. Whether a candidate
        reaches the score is a matter of luck too: with some hundreds of samples two candidates of
        the same noise differ by a point of accuracy, as either has luck with other samples. So
        after a failure it is not only a shorter step that is tried, but another solution: of a
        program whose damages are a little off, each way.
        """
        generator = np.random.default_rng(self.seed)
        step, failed, left_then = _FIRST_STEP, 0, math.inf
        lowest = self._lowest()
        while step >= _LAST_STEP and (good := self._good) is not None:
            left = self._model.estimate(good.candidate) - lowest
            if left <= 0:
                return
            if failed >= _PATIENCE and left < left_then * _FAR:
                yield from self._known.corrected(good.candidate)
                left_then, lowest = left, self._lowest()
            candidate = self._cheaper(lowest + left * (1 - step), generator)
            yield from self._try([] if candidate is None else [candidate])
            if self._good is good:
                step, failed = step * _SMALLER, failed + 1
            else:
                step, failed = min(step / _SMALLER, _FIRST_STEP), 0

    @property
    def _good(self) -> Trial | None:
        """The cheapest trial that has the score that is wanted, at whatever cost."""
        known = self._known
        least = -math.inf if self.goal.min_score is None else self.goal.min_score
        found = (
            each
            for each in known.whole.values()
            if each.counts(known.samples) and each.score >= least
        )
        return min(found, key=lambda trial: trial.cost, default=None)

    def _cheaper(self, cost: float, generator: np.random.Generator) -> Candidate | None:
        """Return a candidate within a cost that was not tried; None where none turns up.

        The more of its draws were tried before, the more its damages are off.
        """
        table = self._known.damage.table()
        for draw in range(_DRAWS):
            doubt = generator.normal(0.0, _DOUBT * draw, len(table))
            pairs = zip(table, doubt, strict=True)
            program = Program(self._model, [row * math.exp(each) for row, each in pairs])
            candidate = program.mildest(cost)
            if candidate is None or candidate not in self._known.whole:
                return candidate
        return None

    def _lowest(self) -> float:
        """Return the lowest cost of what is not forbidden."""
        cheapest = self._program().cheapest(math.inf)
        return math.inf if cheapest is None else self._model.estimate(cheapest)

    # ---- otherwise ---------------------------------------------------------------------------

    def _improve(self) -> Improving:
        """Correct the damage near the best candidate, and solve again."""
        best = self.best
        if best is None:
            return False
        yield from self._known.corrected(best.candidate)
        yield from self._solve()
        return self.best is not best

    def _solve(self) -> Walk:
        limit = self.goal.max_cost
        yield from self._follow_front() if limit is None else self._fit(limit)

    def _fit(self, limit: float) -> Walk:
        """Try the candidate of the least noise within a cost.

        Where the cost is measured, the tables only go with it: their limit is corrected by what
        was measured, until it is held.
        """
        program = self._program()
        allowed = limit
        for _ in range(_ROUNDS):
            candidate = program.mildest(allowed) or program.cheapest(math.inf)
            if candidate is None:
                return
            trials = yield from self._try([candidate])
            if self._model.measure is None or trials[0].cost <= limit or not trials[0].cost > 0:
                return
            allowed = self._model.estimate(candidate) * limit / trials[0].cost

    def _follow_front(self) -> Walk:
        """Try the candidates of the least noise at costs from the lowest to the highest."""
        program = self._program()
        cheapest, mildest = program.cheapest(math.inf), program.mildest(math.inf)
        if cheapest is None or mildest is None:
            return
        costs = [self._model.estimate(each) for each in (cheapest, self.space.default, mildest)]
        limits = np.linspace(min(costs), max(costs), _FRONT)
        found = [program.mildest(float(limit)) for limit in limits]
        yield from self._try([each for each in found if each is not None])
