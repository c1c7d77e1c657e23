"""What the sensitivity search measures: candidates on all samples, single changes on few."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from intact.search.samplers.base import Measuring, Walk
from intact.search.space import FLOAT, Candidate, Space
from intact.search.trial import Ask, Trial

_LARGEST_CHANGE = 16.0

"""The factor, either way, by which a group's own noise is corrected at most at once."""


def rounding_power(bits: int) -> float:
    """Return the power of rounding errors relative to a range of 1, without the factor 1/12.

    >>> rounding_power(3), rounding_power(FLOAT)
    (0.015625, 0.0)
    """
    return 0.0 if bits == FLOAT else 0.25**bits


class Damage:
    """The noise of groups: one coefficient each, times `rounding_power` of the width.

    Args:
        space: The groups.

    Attributes:
        unit: What a group adds, for a rounding power of 1; NaN while not measured.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.unit = np.full(len(space.groups), math.nan)
        self._exact: dict[tuple[int, int], float] = {}
        self._forbidden: set[tuple[int, int]] = set()

    def learn(self, index: int, bits: int, added: float, least: float = 0.0) -> None:
        """Learn what a choice adds to the noise of the default.

        NaN and infinity forbid it: of a width, all widths but the default.

        Args:
            index: The group.
            bits: Its width.
            added: The difference, which may come out negative for integers, as noises may cancel.
            least: What integers are taken to add at least.
        """
        group = self.space.groups[index]
        if not math.isfinite(added):
            self._forbid(index, bits)
        elif bits == FLOAT:
            self._exact[index, bits] = added
        else:
            power = rounding_power(bits) - rounding_power(group.default)
            self.unit[index] = max(added, least) / power

    def correct(
        self, index: int, bits: int, to: int, added: float, *, present: float, samples: int
    ) -> None:
        """Learn what a step from one width to another adds near the candidate that is wanted.

        What was expected is believed to within itself. What was measured is off by the product of
        both errors, which is zero only on average: about twice the root of their powers' product
        over the number of samples. The two are weighted by the inverse squares of that.

        Args:
            index: The group.
            bits: Its width in the candidate.
            to: Another width.
            added: The noise that the step adds; NaN and infinity forbid it.
            present: The noise of the candidate.
            samples: What both were measured on.
        """
        power = rounding_power(to) - rounding_power(bits)
        old = float(self.unit[index])
        if not math.isfinite(added):
            self._forbidden.add((index, to))
        elif power != 0 and old > 0:
            expected = old * power
            chance = 4 * max(present, 0.0) * abs(expected) / max(samples, 1)
            trust = expected**2 / (expected**2 + chance)
            ratio = 1 + trust * (added - expected) / expected
            self.unit[index] = old * min(max(ratio, 1 / _LARGEST_CHANGE), _LARGEST_CHANGE)

    def table(self) -> list[npt.NDArray[np.float64]]:
        """Return for each group what each choice adds to the noise of the default; inf forbids."""
        return [self._row(index) for index, _ in enumerate(self.space.groups)]

    def _row(self, index: int) -> npt.NDArray[np.float64]:
        group = self.space.groups[index]
        unit = 0.0 if math.isnan(self.unit[index]) else float(self.unit[index])
        base = rounding_power(group.default)
        row = [
            self._exact.get((index, bits), unit * (rounding_power(bits) - base))
            for bits in group.choices
        ]
        allowed = [(index, bits) not in self._forbidden for bits in group.choices]
        return np.where(allowed, row, np.inf)

    def _forbid(self, index: int, bits: int) -> None:
        group = self.space.groups[index]
        widths = [each for each in group.choices if each not in (FLOAT, group.default)]
        self._forbidden.update((index, each) for each in ([FLOAT] if bits == FLOAT else widths))


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
        """Estimate the noise that changes add to a candidate."""
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
