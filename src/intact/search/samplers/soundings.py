"""What the sensitivity search measures: candidates on all samples, single changes on few."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from typing import TypeAlias

from intact.search.samplers.base import Measuring, Walk
from intact.search.samplers.damage import Damage
from intact.search.space import FLOAT, Candidate, Space
from intact.search.trial import Ask, Trial

_FEWEST, _MOST, _SHARE = 8, 32, 32
"""Samples for one change: a thirty-second of all, within these bounds."""

_LEAST_SHARE = 1 / 64
"""Of the default's noise: differences of noise below it are chance."""

_UNRELIABLE = 0.25
"""Noise beyond which errors are not small: such groups are measured at a middle width too."""

Change: TypeAlias = tuple[int, int]
"""A group and the width that it gets."""

Added: TypeAlias = Generator[Sequence[Ask], Sequence[Trial], list[float]]
"""A part of a search that returns the noise that changes add."""


class Soundings:
    """Trials and what was learned from them.

    Args:
        space: The groups.

    Attributes:
        damage: What each choice of a group does.
        whole: Trials on all samples, by candidate; some were stopped early.
        samples: How many all samples are.
        offset: Noise of the candidate that changes were last measured at.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.damage = Damage(space)
        self.whole: dict[Candidate, Trial] = {}
        self.samples = 0
        self.offset = 0.0
        self._few: dict[Candidate, Trial] = {}

    def begin(self, base: Trial) -> None:
        """Take in the default's trial."""
        self.samples = base.measured.samples
        self.whole[base.candidate] = base

    def tried(self, candidates: Iterable[Candidate], bar: float | None) -> Measuring:
        """Return trials on all samples; what was tried is not asked again."""
        wanted = list(candidates)
        new = [each for each in dict.fromkeys(wanted) if each not in self.whole]
        if new:
            trials = yield [Ask(each, bar=bar) for each in new]
            self.whole.update(zip(new, trials, strict=True))
        return [self.whole[candidate] for candidate in wanted]

    def alone(self, base: Trial, *, floats: bool) -> Walk:
        """Learn the damage of each group at its narrowest; of floats too where they are wanted."""
        changes = []
        for index in self.space.open:
            group = self.space.groups[index]
            if group.choices[-1] != group.default:
                changes.append((index, group.choices[-1]))
            if floats and FLOAT in group.choices and group.default != FLOAT:
                changes.append((index, FLOAT))
        added = yield from self._added(base.candidate, changes)
        self._learn(changes, added)
        rough = [
            (index, self._middle(index))
            for (index, bits), noise in zip(changes, added, strict=True)
            if noise > _UNRELIABLE and bits not in (FLOAT, self._middle(index))
        ]
        if rough:
            self._learn(rough, (yield from self._added(base.candidate, rough)))

    def corrected(self, start: Candidate) -> Walk:
        """Correct the damage by what single steps from a candidate add."""
        steps = self._steps(start)
        added = yield from self._added(start, steps)
        for (index, bits), noise in zip(steps, added, strict=True):
            self.damage.correct(
                index, start[index], bits, noise, present=self.offset, samples=self._glanced
            )

    @property
    def _glanced(self) -> int:
        """How many are few samples."""
        return min(max(self.samples // _SHARE, _FEWEST), _MOST, self.samples)

    def _added(self, start: Candidate, changes: Sequence[Change]) -> Added:
        """Return what changes add to the noise of a candidate."""
        changed = [self.space.with_choice(start, index, bits) for index, bits in changes]
        first, *trials = yield from self._glance([start, *changed])
        noise = first.measured.noise
        if math.isfinite(noise):
            self.offset = noise
        return [trial.measured.noise - noise for trial in trials]

    def _glance(self, candidates: Sequence[Candidate]) -> Measuring:
        """Return trials on few samples."""
        samples = self._glanced
        if samples == self.samples:
            return (yield from self.tried(candidates, None))
        new = [each for each in dict.fromkeys(candidates) if each not in self._few]
        if new:
            trials = yield [Ask(candidate, samples=samples) for candidate in new]
            self._few.update(zip(new, trials, strict=True))
        return [self._few[candidate] for candidate in candidates]

    def _learn(self, changes: Sequence[Change], added: Sequence[float]) -> None:
        for (index, bits), noise in zip(changes, added, strict=True):
            self.damage.learn(index, bits, noise, self.offset * _LEAST_SHARE)

    def _middle(self, index: int) -> int:
        choices = [bits for bits in self.space.groups[index].choices if bits != FLOAT]
        return choices[len(choices) // 2]

    def _steps(self, start: Candidate) -> list[Change]:
        """Return for each group the next narrower width, or the next wider one of the narrowest."""
        steps = []
        for index in self.space.open:
            choices = [bits for bits in self.space.groups[index].choices if bits != FLOAT]
            if start[index] in choices and len(choices) > 1:
                place = choices.index(start[index])
                steps.append((index, choices[place + 1 if place + 1 < len(choices) else place - 1]))
        return steps
