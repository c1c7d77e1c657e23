"""What each choice of a group does to the model's outputs, learned from few samples.

The damage of a choice is the noise that it adds to that of another candidate: `Measured.noise`,
the power of the error of the outputs over their power. Small errors of different tensors are close
to independent, so that their powers add, and each is close to uniform rounding noise, whose power
is step squared over 12: it goes with 4 to the power of minus the bits.

Source: Widrow and Kollar, "Quantization Noise", Cambridge 2008 (uniform noise, power of a step);
the additivity of the outputs' error powers is assumption and result of Zhou et al., "Adaptive
Quantization for Deep Neural Network", AAAI 2018. Measured on ResNet-20 for target tvm, 64 images:
what the 46 groups do at 4 bits, brought to 8 bits so, sums to 0.87 of the noise at 8 bits
everywhere; of what a group does at 6 bits the rule gives 0.84 (median). Neither holds for errors
as large as the outputs; such choices are not taken.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from intact.search.space import FLOAT, Space

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
