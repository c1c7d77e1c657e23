"""Sensitivity: measure what each group does alone, then solve an integer program.

1. Each group alone at its narrowest, on few samples, all side by side: what noise it adds to the
   model's outputs (`Damage` says how that gives the other widths, and why noises add).
2. The integer program (`Program`): cheapest within a noise, or least noise within a cost.
3. Its solutions on all samples. How much noise costs how much of the score is not known
   beforehand; so with a limit of the score the noise is bisected, since the score falls with it.
4. As long as more is asked for: what single steps add at the best candidate, where other groups
   are narrow too, corrects what was learned alone, and the program is solved again. At last,
   single steps on their own.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from itertools import product
from typing import TypeAlias

import numpy as np

from intact.search.cost import CostModel, tabulated
from intact.search.samplers.base import Cost, Measuring, Walk, WalkingSampler
from intact.search.samplers.bracket import Bracket
from intact.search.samplers.damage import Damage
from intact.search.samplers.program import Program
from intact.search.space import FLOAT, Candidate, Space
from intact.search.trial import Ask, Goal, Trial

_FEWEST, _MOST, _SHARE = 8, 32, 16
"""Samples for one group: a sixteenth of all, within these bounds."""

_FIRST_NOISE = 0.02
"""The noise that is tried first (17 dB); networks for CIFAR-10 begin to lose there."""

_LEAST_NOISE = 1e-3
"""Of the default's: less than that is not asked for."""

_LEAST_SHARE = 1 / 64
"""Of the default's noise: differences of noise below it are chance."""

_UNRELIABLE = 0.25
"""Noise beyond which errors are not small: such groups are measured at a middle width too."""

_STRIDE, _SMALL_STRIDE = 4.0, 1.5
"""The factor of noise between trials at first, and near what is known to do."""

_TRIALS = 8
"""Whole trials of one bisection."""

_FEW_CANDIDATES = 16
"""A space so small is tried whole."""

_ROUNDS = 3
_FRONT = 12
_PATIENCE = 6
"""Single steps in a row that may fail before the search ends."""

Change: TypeAlias = tuple[int, int]
"""A group and the width that it gets."""

Added: TypeAlias = Generator[Sequence[Ask], Sequence[Trial], list[float]]
"""A part of a search that returns the noise that changes add."""

Improving: TypeAlias = Generator[Sequence[Ask], Sequence[Trial], bool]
"""A part of a search that returns whether there is a new best."""


class Sensitivity(WalkingSampler):
    """Groups measured alone and an integer program; for costs that are sums over groups."""

    name = "sensitivity"

    def __init__(self, space: Space, goal: Goal, cost: Cost, seed: int) -> None:
        self._model = cost.on(space) if isinstance(cost, CostModel) else tabulated(space, cost)
        self._damage = Damage(space)
        self._whole: dict[Candidate, Trial] = {}
        self._few: dict[Candidate, Trial] = {}
        self._all = 0
        self._offset = 0.0
        super().__init__(space, goal, cost, seed)

    def accepts(self, trial: Trial) -> bool:
        """Tell whether a trial is one on all samples and holds the limits."""
        return trial.counts(self._all or trial.measured.samples) and self.goal.accepts(trial)

    def search(self, base: Trial) -> Walk:
        """Measure groups alone, solve, verify; then improve."""
        self._all = base.measured.samples
        self._whole[base.candidate] = base
        if self.space.size <= _FEW_CANDIDATES:
            yield from self._try(product(*self._model.choices))
            return
        if math.isnan(base.measured.noise):
            return
        yield from self._measure_alone(base)
        if self.goal.min_score is not None:
            yield from self._bisect(_FIRST_NOISE, _STRIDE)
        elif self.goal.max_cost is not None:
            yield from self._fit(self.goal.max_cost)
        else:
            yield from self._follow_front()
        for _ in range(_ROUNDS):
            if not (yield from self._improve()):
                break
        if self.goal.min_score is not None:
            yield from self._step_down()

    # ---- measuring ---------------------------------------------------------------------------

    def _try(self, candidates: Iterable[Candidate], *, is_barred: bool = True) -> Measuring:
        """Return trials on all samples; what was tried is not asked again."""
        bar = self.goal.min_score
        if bar is None and self.goal.max_cost is not None and self.best is not None:
            bar = self.best.score
        wanted = list(candidates)
        new = [each for each in dict.fromkeys(wanted) if each not in self._whole]
        if new:
            trials = yield [Ask(each, bar=bar if is_barred else None) for each in new]
            self._whole.update(zip(new, trials, strict=True))
        return [self._whole[candidate] for candidate in wanted]

    def _added(self, start: Candidate, changes: Sequence[Change]) -> Added:
        """Return what changes add to the noise of a candidate, measured on few samples."""
        changed = [self.space.with_choice(start, index, bits) for index, bits in changes]
        first, *trials = yield from self._glance([start, *changed])
        self._offset = first.measured.noise
        return [trial.measured.noise - self._offset for trial in trials]

    def _glance(self, candidates: Sequence[Candidate]) -> Measuring:
        """Return trials on few samples."""
        samples = min(max(self._all // _SHARE, _FEWEST), _MOST)
        if samples >= self._all:
            return (yield from self._try(candidates, is_barred=False))
        new = [each for each in dict.fromkeys(candidates) if each not in self._few]
        if new:
            trials = yield [Ask(candidate, samples=samples) for candidate in new]
            self._few.update(zip(new, trials, strict=True))
        return [self._few[candidate] for candidate in candidates]

    def _measure_alone(self, base: Trial) -> Walk:
        """Learn the damage of each group at its narrowest; of floats where they are needed."""
        narrow, wide = [], []
        for index in self.space.open:
            group = self.space.groups[index]
            if group.choices[-1] != group.default:
                narrow.append((index, group.choices[-1]))
            if FLOAT in group.choices and group.default != FLOAT:
                wide.append((index, FLOAT))
        changes = narrow + (wide if self._wants_floats(base) else [])
        added = yield from self._added(base.candidate, changes)
        self._learn(changes, added)
        rough = [
            (index, self._middle(index))
            for (index, bits), noise in zip(changes, added, strict=True)
            if noise > _UNRELIABLE and bits != FLOAT and self._middle(index) != bits
        ]
        if rough:
            self._learn(rough, (yield from self._added(base.candidate, rough)))

    def _learn(self, changes: Sequence[Change], added: Sequence[float]) -> None:
        for (index, bits), noise in zip(changes, added, strict=True):
            self._damage.learn(index, bits, noise, self._offset * _LEAST_SHARE)

    def _wants_floats(self, base: Trial) -> bool:
        """Tell whether the default is not good enough, or may be dearer."""
        least, limit = self.goal.min_score, self.goal.max_cost
        return base.score < least if least is not None else limit is None or base.cost < limit

    def _middle(self, index: int) -> int:
        choices = [bits for bits in self.space.groups[index].choices if bits != FLOAT]
        return choices[len(choices) // 2]

    # ---- solving -----------------------------------------------------------------------------

    def _bisect(self, first: float, stride: float) -> Walk:
        """Look for the cheapest candidate that reaches the score, by the noise that it may have."""
        least = self.goal.min_score
        program = Program(self._model, self._damage.table())
        cheapest = program.cheapest(math.inf)
        if cheapest is None or least is None:
            return
        lowest = self._offset * _LEAST_NOISE or _LEAST_NOISE**2
        highest = self._offset + max(program.total(cheapest), 0.0)
        bracket = Bracket(first, lowest, max(highest, lowest), stride)
        tried = 0
        while bracket.next is not None and tried < _TRIALS:
            candidate = program.cheapest(bracket.next - self._offset)
            if candidate is None:  # nothing is so quiet: more has to be allowed
                return
            tried += candidate not in self._whole
            trials = yield from self._try([candidate])
            bracket.tell(self._reaches(trials[0]))

    def _fit(self, limit: float) -> Walk:
        """Try the candidate of the least noise within a cost.

        Where the cost is measured, the tables only go with it: their limit is corrected by what
        was measured, until it is held.
        """
        program = Program(self._model, self._damage.table())
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
        program = Program(self._model, self._damage.table())
        cheapest, mildest = program.cheapest(math.inf), program.mildest(math.inf)
        if cheapest is None or mildest is None:
            return
        costs = [self._model.estimate(each) for each in (cheapest, self.space.default, mildest)]
        limits = np.linspace(min(costs), max(costs), _FRONT)
        found = [program.mildest(float(limit)) for limit in limits]
        yield from self._try([each for each in found if each is not None])

    # ---- improving ---------------------------------------------------------------------------

    def _improve(self) -> Improving:
        """Correct the damage by single steps from the best candidate, and solve again."""
        best = self.best
        if best is None:
            return False
        start, steps = best.candidate, self._steps(best.candidate)
        added = yield from self._added(start, steps)
        for (index, bits), noise in zip(steps, added, strict=True):
            self._damage.correct(index, start[index], bits, noise)
        program = Program(self._model, self._damage.table())
        self._offset -= program.total(start)
        if self.goal.min_score is not None:
            yield from self._bisect(self._offset + program.total(start), _SMALL_STRIDE)
        elif self.goal.max_cost is not None:
            yield from self._fit(self.goal.max_cost)
        else:
            yield from self._follow_front()
        return self.best is not best

    def _steps(self, start: Candidate) -> list[Change]:
        """Return for each group the next narrower width, or the next wider one of the narrowest."""
        steps = []
        for index in self.space.open:
            choices = [bits for bits in self.space.groups[index].choices if bits != FLOAT]
            if start[index] in choices and len(choices) > 1:
                place = choices.index(start[index])
                steps.append((index, choices[place + 1 if place + 1 < len(choices) else place - 1]))
        return steps

    def _step_down(self) -> Walk:
        """Try cheaper choices of single groups, those of the least noise for their saving first."""
        failed = 0
        refused: set[Change] = set()
        while self.best is not None and failed < _PATIENCE:
            best = self.best
            steps = [step for step in self._savings(best.candidate) if step not in refused]
            if not steps:
                return
            trials = yield from self._try([self.space.with_choice(best.candidate, *steps[0])])
            refused.add(steps[0])
            failed = 0 if self.best is not best else failed + 1

    def _savings(self, start: Candidate) -> list[Change]:
        """Return the single changes that are cheaper, by the damage that each does for it."""
        present = self._model.estimate(start)
        ranked = []
        tables = zip(self._model.around(start), self._damage.table(), strict=True)
        for index, (costs, damage) in enumerate(tables):
            choices = self.space.groups[index].choices
            now = damage[choices.index(start[index])]
            for bits, cost, harm in zip(choices, costs, damage, strict=True):
                if cost < present and math.isfinite(harm):
                    ranked.append(((harm - now) / (present - cost), index, bits))
        return [(index, bits) for _, index, bits in sorted(ranked)]

    def _reaches(self, trial: Trial) -> bool:
        least = self.goal.min_score
        return least is not None and trial.counts(self._all) and trial.score >= least
