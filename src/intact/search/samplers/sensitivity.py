"""Sensitivity: measure what each group does alone, then solve an integer program.

1. Each group alone at its narrowest, on few samples, all side by side: what noise it adds to the
   model's outputs (`Damage` says how that gives the other widths, and why noises add).
2. The integer program (`Program`): cheapest within a noise, or least noise within a cost.
3. Its solutions on all samples. How much noise costs how much of the score is not known
   beforehand; so with a limit of the score several noises are tried (`Ladder`).
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
from intact.search.samplers.damage import Damage
from intact.search.samplers.ladder import Ladder
from intact.search.samplers.program import Program
from intact.search.space import FLOAT, Candidate, Space
from intact.search.trial import Ask, Goal, Trial

_FEWEST, _MOST, _SHARE = 8, 32, 32
"""Samples for one group: a thirty-second of all, within these bounds."""

_FIRST_NOISE = 0.02
"""The noise that is tried first (17 dB); networks for CIFAR-10 begin to lose there."""

_LEAST_NOISE = 1e-3
"""Of the default's: less than that is not asked for."""

_LEAST_SHARE = 1 / 64
"""Of the default's noise: differences of noise below it are chance."""

_UNRELIABLE = 0.25
"""Noise beyond which errors are not small: such groups are measured at a middle width too."""

_STRIDE = 2.0
"""The first factor of noise between trials."""

_TRIALS = 8
"""Whole trials with one state of knowledge."""

_FEW_CANDIDATES = 16
"""A space so small is tried whole."""

_ROUNDS = 3
_FRONT = 12

_FIRST_STEP, _LAST_STEP = 0.1, 0.005
"""Shares of the cost by which a good candidate is to become cheaper."""

_TICKETS = 3
"""Candidates of one cost that are tried."""

_DOUBT = 0.3
"""Standard deviation of the logarithm of what is added to a group's damage, for variety."""

_FAR = 0.85
"""When the cost is so much lower, the damage is measured again."""

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
        if not math.isfinite(base.measured.noise):
            return
        yield from self._measure_alone(base)
        if self.goal.min_score is not None:
            yield from self._climb(_FIRST_NOISE)
        elif self.goal.max_cost is not None:
            yield from self._fit(self.goal.max_cost)
        else:
            yield from self._follow_front()
        if self.goal.min_score is not None:
            yield from self._descend()
            return
        for _ in range(_ROUNDS):
            if not (yield from self._improve()):
                break

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
        noise = first.measured.noise
        if math.isfinite(noise):
            self._offset = noise
        return [trial.measured.noise - noise for trial in trials]

    def _glance(self, candidates: Sequence[Candidate]) -> Measuring:
        """Return trials on few samples."""
        samples = self._glanced
        if samples == self._all:
            return (yield from self._try(candidates, is_barred=False))
        new = [each for each in dict.fromkeys(candidates) if each not in self._few]
        if new:
            trials = yield [Ask(candidate, samples=samples) for candidate in new]
            self._few.update(zip(new, trials, strict=True))
        return [self._few[candidate] for candidate in candidates]

    @property
    def _glanced(self) -> int:
        """How many are few samples."""
        return min(max(self._all // _SHARE, _FEWEST), _MOST, self._all)

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

    def _climb(self, first: float) -> Walk:
        """Try the cheapest candidates of as much noise as leaves the score that is wanted."""
        least = self.goal.min_score
        program = Program(self._model, self._damage.table())
        cheapest = program.cheapest(math.inf)
        if cheapest is None or least is None:
            return
        lowest = max(self._offset, 0.0) * _LEAST_NOISE or _LEAST_NOISE**2
        highest = self._offset + program.total(cheapest)
        known = self._whole[self.space.default]
        start = (known.measured.noise, known.score)
        ladder = Ladder(
            first, lowest=lowest, highest=highest, least=least, start=start, stride=_STRIDE
        )
        tried = 0
        while ladder.next is not None and tried < _TRIALS:
            candidate = program.cheapest(ladder.next - self._offset)
            if candidate is None:  # nothing is so quiet
                mildest = program.mildest(math.inf)
                yield from self._try([] if mildest is None else [mildest])
                return
            tried += candidate not in self._whole
            trials = yield from self._try([candidate])
            ladder.tell(trials[0].score, does=self._reaches(trials[0]))

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
        """Correct the damage near the best candidate, and solve again."""
        best = self.best
        if best is None:
            return False
        yield from self._correct(best.candidate)
        if self.goal.max_cost is not None:
            yield from self._fit(self.goal.max_cost)
        else:
            yield from self._follow_front()
        return self.best is not best

    def _descend(self) -> Walk:
        """Make the best candidate cheaper, in smaller and smaller steps.

        Whether a candidate reaches the score is a matter of luck too (see `Ladder`), so several of
        one cost are tried: solutions of programs whose damages are a little off, each way.
        """
        generator = np.random.default_rng(self.seed)
        step, failed, corrected = _FIRST_STEP, 0, math.inf
        while step >= _LAST_STEP and self.best is not None:
            best = self.best
            present = self._model.estimate(best.candidate)
            if present < corrected * _FAR:
                yield from self._correct(best.candidate)
                corrected = present
            doubt = generator.normal(0.0, _DOUBT if failed else 0.0, len(self.space.groups))
            table = [
                damage * math.exp(each)
                for damage, each in zip(self._damage.table(), doubt, strict=True)
            ]
            candidate = Program(self._model, table).mildest(present * (1 - step))
            if candidate is not None and candidate not in self._whole:
                yield from self._try([candidate])
            if self.best is not best:
                step, failed = min(step * 1.5, _FIRST_STEP), 0
                continue
            failed += 1
            if candidate is None or failed == _TICKETS:
                step, failed = step / 2, 0

    def _correct(self, start: Candidate) -> Walk:
        """Correct the damage by what single steps from a candidate add."""
        steps = self._steps(start)
        added = yield from self._added(start, steps)
        for (index, bits), noise in zip(steps, added, strict=True):
            self._damage.correct(
                index,
                start[index],
                bits,
                noise,
                present=self._offset,
                samples=self._glanced,
            )

    def _steps(self, start: Candidate) -> list[Change]:
        """Return for each group the next narrower width, or the next wider one of the narrowest."""
        steps = []
        for index in self.space.open:
            choices = [bits for bits in self.space.groups[index].choices if bits != FLOAT]
            if start[index] in choices and len(choices) > 1:
                place = choices.index(start[index])
                steps.append((index, choices[place + 1 if place + 1 < len(choices) else place - 1]))
        return steps

    def _reaches(self, trial: Trial) -> bool:
        least = self.goal.min_score
        return least is not None and trial.counts(self._all) and trial.score >= least
