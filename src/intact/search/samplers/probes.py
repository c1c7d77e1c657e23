"""Probes groups for the sensitivity search: single changes on few samples."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from intact.search.samplers.base import SearchGenerator, TrialsGenerator
from intact.search.space import FLOAT, Candidate, Space
from intact.search.trial import Ask, Trial

_LARGEST_CHANGE = 16.0

"""The largest factor, up or down, of one correction of a group's noise."""


def rounding_power(bits: int) -> float:
    """Compute the power of rounding errors relative to a range of 1, without the factor 1/12.

    >>> rounding_power(3), rounding_power(FLOAT)
    (0.015625, 0.0)
    """
    return 0.0 if bits == FLOAT else 0.25**bits


class NoiseModel:
    """The noise that groups add: one coefficient each, times `rounding_power` of the width.

    Args:
        space: The groups.

    Attributes:
        unit: The noise that a group adds for a rounding power of 1; NaN while not measured.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.unit = np.full(len(space.groups), math.nan)
        self._exact: dict[tuple[int, int], float] = {}
        self._forbidden: set[tuple[int, int]] = set()

    def learn(self, index: int, bits: int, added: float, least: float = 0.0) -> None:
        """Set the noise that a choice adds to that of the default candidate.

        NaN and infinity exclude the choice, and for a width all widths but the default.

        Args:
            index: The group.
            bits: Its width.
            added: The difference in noise. It may be negative for integers, since errors may
                cancel.
            least: Lower bound of the noise that integers add.
        """
        group = self.space.groups[index]
        if not math.isfinite(added):
            self._forbid(index, bits)
        elif bits == FLOAT:
            self._exact[index, bits] = added
        else:
            # Only the difference of the powers was added: the default's noise is in both
            # candidates.
            power = rounding_power(bits) - rounding_power(group.default)
            self.unit[index] = max(added, least) / power

    def correct(
        self, index: int, bits: int, to: int, added: float, *, present: float, samples: int
    ) -> None:
        """Correct a coefficient by the noise that one step adds near a good candidate.

        The expected noise has a standard deviation of its own size. The measured one deviates by
        the product of both errors, which is zero only on average: by about twice the root of the
        product of their powers over the number of samples. The two are weighted by the inverse
        squares of these deviations.

        Args:
            index: The group.
            bits: Its width in the candidate.
            to: Another width.
            added: The noise that the step adds; NaN and infinity exclude it.
            present: The noise of the candidate.
            samples: Number of samples that both were measured on.
        """
        power = rounding_power(to) - rounding_power(bits)
        old = float(self.unit[index])
        if not math.isfinite(added):
            self._forbidden.add((index, to))
        # A group without noise of its own has nothing that a factor could correct.
        elif power != 0 and old > 0:
            expected = old * power
            chance = 4 * max(present, 0.0) * abs(expected) / max(samples, 1)
            trust = expected**2 / (expected**2 + chance)
            ratio = 1 + trust * (added - expected) / expected
            self.unit[index] = old * min(max(ratio, 1 / _LARGEST_CHANGE), _LARGEST_CHANGE)

    def table(self) -> list[npt.NDArray[np.float64]]:
        """Compute for each group the noise that each choice adds to the default's; inf excludes."""
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

"""Share of the default's noise below which differences of noise are chance."""

_UNRELIABLE = 0.25

"""Noise above which errors are not small: such groups are measured at a middle width too."""

Change: TypeAlias = tuple[int, int]

"""Index of a group and its new width."""

NoiseGenerator: TypeAlias = Generator[Sequence[Ask], Sequence[Trial], list[float]]

"""A part of a search that returns the noise that changes add."""


class Probes:
    """The trials of a sensitivity search and the noise model made from them.

    Args:
        space: The groups.

    Attributes:
        noise_model: The noise of each choice.
        whole: Trials on all samples, by candidate; some stopped early.
        samples: Number of all samples.
        offset: Noise of the candidate at which changes were last measured.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.noise_model = NoiseModel(space)
        self.whole: dict[Candidate, Trial] = {}
        self.samples = 0
        self.offset = 0.0
        self._few: dict[Candidate, Trial] = {}

    def begin(self, base: Trial) -> None:
        """Store the trial of the default candidate."""
        self.samples = base.measured.samples
        self.whole[base.candidate] = base

    def measure(self, candidates: Iterable[Candidate], bar: float | None) -> TrialsGenerator:
        """Measure candidates on all samples, each only once."""
        wanted = list(candidates)
        new = [each for each in dict.fromkeys(wanted) if each not in self.whole]
        if new:
            trials = yield [Ask(each, bar=bar) for each in new]
            self.whole.update(zip(new, trials, strict=True))
        return [self.whole[candidate] for candidate in wanted]

    def measure_alone(self, base: Trial, *, floats: bool) -> SearchGenerator:
        """Measure the noise of each group alone at its narrowest width, and in float if
        ``floats``.
        """
        changes = []
        for index in self.space.open:
            group = self.space.groups[index]
            if group.choices[-1] != group.default:
                changes.append((index, group.choices[-1]))
            if floats and FLOAT in group.choices and group.default != FLOAT:
                changes.append((index, FLOAT))
        added = yield from self._added_noise(base.candidate, changes)
        self._learn(changes, added)
        rough = [
            (index, self._middle(index))
            # NaN is not larger either: a failed change is forbidden, not measured again.
            for (index, bits), noise in zip(changes, added, strict=True)
            if noise > _UNRELIABLE and bits not in (FLOAT, self._middle(index))
        ]
        if rough:
            self._learn(rough, (yield from self._added_noise(base.candidate, rough)))

    def correct(self, start: Candidate) -> SearchGenerator:
        """Correct the noise model by the noise that single steps from a candidate add."""
        steps = self._steps(start)
        added = yield from self._added_noise(start, steps)
        for (index, bits), noise in zip(steps, added, strict=True):
            self.noise_model.correct(
                index, start[index], bits, noise, present=self.offset, samples=self._few_samples
            )

    @property
    def _few_samples(self) -> int:
        """Number of samples for one change."""
        return min(max(self.samples // _SHARE, _FEWEST), _MOST, self.samples)

    def _added_noise(self, start: Candidate, changes: Sequence[Change]) -> NoiseGenerator:
        """Measure the noise that changes add to a candidate."""
        changed = [self.space.with_choice(start, index, bits) for index, bits in changes]
        # The candidate itself on the same samples, so that their difference is of the change alone.
        first, *trials = yield from self._on_few_samples([start, *changed])
        noise = first.measured.noise
        if math.isfinite(noise):
            self.offset = noise
        return [trial.measured.noise - noise for trial in trials]

    def _on_few_samples(self, candidates: Sequence[Candidate]) -> TrialsGenerator:
        """Measure candidates on few samples; each only once."""
        samples = self._few_samples
        # A trial on all of few samples counts as a result, not as a probe.
        if samples == self.samples:
            return (yield from self.measure(candidates, None))
        new = [each for each in dict.fromkeys(candidates) if each not in self._few]
        if new:
            trials = yield [Ask(candidate, samples=samples) for candidate in new]
            self._few.update(zip(new, trials, strict=True))
        return [self._few[candidate] for candidate in candidates]

    def _learn(self, changes: Sequence[Change], added: Sequence[float]) -> None:
        for (index, bits), noise in zip(changes, added, strict=True):
            self.noise_model.learn(index, bits, noise, self.offset * _LEAST_SHARE)

    def _middle(self, index: int) -> int:
        choices = [bits for bits in self.space.groups[index].choices if bits != FLOAT]
        return choices[len(choices) // 2]

    def _steps(self, start: Candidate) -> list[Change]:
        """List for each group its next narrower width; the next wider one if it is the
        narrowest.
        """
        steps = []
        for index in self.space.open:
            choices = [bits for bits in self.space.groups[index].choices if bits != FLOAT]
            if start[index] in choices and len(choices) > 1:
                place = choices.index(start[index])
                steps.append((index, choices[place + 1 if place + 1 < len(choices) else place - 1]))
        return steps
