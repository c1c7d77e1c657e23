"""Measures the noise that quantizers cause in an output, by groups, then one by one.

Noises of several nearly add, so that what costs little together needs no further look: groups are
narrowed down to those that cost most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from intact.calibrate.outputs import FloatRuns
from intact.engines.executor import Run
from intact.engines.simulate import Simulator
from intact.plan import QuantPoint

EXPLAINED = 0.4
"""Part of an output's noise that a cause explains, from which on it is named."""
HALF = 0.5
"""Part of the noise of the quantizer that costs most, from which on another is looked at."""
NEARLY = 0.9
"""Part of what the best cause explains that an earlier one explains too, if they are equal."""
CUT_AWAY = 16.0
"""Mean square of what is cut off, in times of rounding's: a chosen range has about once."""
MOST_AT = ", most at "
"""What comes before the tensor at fault, in evidence."""
_GROUPS = 16
"""Groups of quantizers that follow each other, which are tried alone at first."""
_WIDEST = 8
"""Groups that are taken apart at once: a single one that costs more is in none of the others."""

Part: TypeAlias = tuple[QuantPoint, ...]
Powers: TypeAlias = Callable[[Sequence[Part]], list[float]]
"""Returns for each group of quantizers the noise power of an output that it alone causes."""


class Noise(msgspec.Struct, frozen=True):
    """What a group of quantizers costs an output.

    Attributes:
        points: The quantizers.
        power: Noise power of the output that they alone cause, summed over the samples.
    """

    points: Part
    power: float


class ActivationNoise:
    """Noise of activations alone, beyond that of the weights, which stay quantized.

    Args:
        simulator: Simulates the plan; its quantizers can be switched off.
        runs: The samples.
        output: The output.

    Attributes:
        weights: The noise power of the output that weights alone cause.
    """

    def __init__(self, simulator: Simulator, runs: FloatRuns, output: str) -> None:
        self._simulator, self._runs, self._output = simulator, runs, output
        # All activations off: what is left is of weights alone.
        (self.weights,) = self._of([()])

    def powers(self, parts: Sequence[Part]) -> list[float]:
        """Measure parts of the activations; they run side by side."""
        # Powers of independent errors add; a difference below 0 is chance.
        return [max(power - self.weights, 0.0) for power in self._of(parts)]

    def left_without(self, points: Sequence[QuantPoint]) -> list[float]:
        """Measure what is left of the noise, weights included, without each quantizer."""
        all_points = self._simulator.points.values()
        return self._of([tuple(p for p in all_points if p is not point) for point in points])

    def _of(self, parts: Sequence[Part]) -> list[float]:
        ends = frozenset(self._simulator.points)

        def run_of(enabled: Part) -> Run:
            off = ends - {point.end for point in enabled}
            return lambda feeds: self._simulator.run(feeds, disabled=off)[0]

        found = self._runs.errors(*map(run_of, parts))
        return [float(each.outputs[self._output].noise.sum()) for each in found]


def measure_groups(points: Sequence[QuantPoint], powers: Powers, *, groups: int) -> list[Noise]:
    """Measure quantizers in groups that follow each other, as many as are said at most."""
    size = -(-len(points) // groups) or 1
    parts = [tuple(points[at : at + size]) for at in range(0, len(points), size)]
    return _measure(parts, powers)


def narrow_down(points: Sequence[QuantPoint], powers: Powers) -> list[Noise]:
    """Measure quantizers in groups, and take apart those that cost much until single ones do.

    Returns:
        The worst first; the first is a single quantizer.
    """
    found = measure_groups(points, powers, groups=_GROUPS)
    while True:
        found = sorted(found, key=lambda each: -each.power)
        # A group that costs less than half of the worst holds no quantizer that costs more than
        # that.
        much = [each for each in found[:_WIDEST] if each.power >= HALF * found[0].power > 0]
        wide = [each for each in much if len(each.points) > 1]
        if not wide:
            return found
        # By identity: comparing structs would compare all their points.
        kept = [each for each in found if not any(each is other for other in wide)]
        halves = [half for each in wide for half in _halves(each.points)]
        found = [*kept, *_measure(halves, powers)]


def _measure(parts: Sequence[Part], powers: Powers) -> list[Noise]:
    return [Noise(part, power) for part, power in zip(parts, powers(parts), strict=True)]


def _halves(points: Part) -> tuple[Part, Part]:
    middle = len(points) // 2
    return points[:middle], points[middle:]
