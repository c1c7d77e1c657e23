"""Shows how much of the loss is of short and of long samples, and what overflows in long ones.

Calibration sees lengths as they come. A state that grows with the length, or a sum over positions,
leaves its range in samples longer than most, where the mean over all samples hides the loss.

It is what ``--by length`` prints. A `LengthWatch` takes the signal and noise powers of samples, and
`LengthWatch.found` sums them up as a `ByLength`, in four groups of as many samples::

    length 8 to 36: SQNR 38.1 dB, 2 % of the loss (8 samples)
    ...
    length 104 to 132: SQNR 12.4 dB, 71 % of the loss (8 samples)
    tensor 'total' reaches 62.1 in a sample of length 132, 2.4 times as far as its codes ...
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from intact._text import decibels
from intact.calibrate.choice import Choice
from intact.data.batching import Batch
from intact.data.stream import Samples
from intact.engines.tensors import tensors_of
from intact.errors import UsageError
from intact.plan import QuantizedGraph, quantization_points

LENGTH = "length"
_GROUPS = 4
"""Groups of as many samples each, by length."""
_LEAST_OVERFLOW = 1.25
"""A tensor overflows whose largest value is more than so many times the end of its range. It is not
1, because calibration may choose a range that cuts off a little."""

Doubles = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[Any]]


class LengthGroup(msgspec.Struct, frozen=True):
    """Samples of like length.

    Attributes:
        shortest: Length of the shortest.
        longest: Length of the longest.
        samples: How many.
        sqnr_db: Signal to quantization noise of the scored output, dB.
        share: Percent of the noise of all samples.
    """

    shortest: int
    longest: int
    samples: int
    sqnr_db: float
    share: float

    def __str__(self) -> str:
        """Say it in one line."""
        which = f"{self.shortest}"
        which += f" to {self.longest}" if self.longest > self.shortest else ""
        return (
            f"length {which}: {decibels(self.sqnr_db)}, {self.share:.0f} % of the loss "
            f"({self.samples} samples)"
        )


class ByLength(msgspec.Struct, frozen=True):
    """What short and long samples lose.

    Attributes:
        groups: The shortest first.
        overflow: What reaches furthest beyond its codes in the longest sample; "" for nothing.
    """

    groups: tuple[LengthGroup, ...]
    overflow: str = ""

    def lines(self) -> list[str]:
        """Write them."""
        if len(self.groups) == 1 and self.groups[0].shortest == self.groups[0].longest:
            return [f"all samples have length {self.groups[0].longest}: nothing to compare by"]
        return [*map(str, self.groups), *([self.overflow] if self.overflow else [])]


class _Sample(NamedTuple):
    """One sample: its length, and the powers of the scored output and of its error."""

    length: int
    signal: float
    noise: float


class LengthWatch:
    """Sees samples with their errors, one by one or in batches of one length.

    Args:
        samples: Where they are from.
        output: Name of the output that is scored.

    Raises:
        UsageError: Nothing tells a sample's length.
    """

    def __init__(self, samples: Samples, output: str) -> None:
        self._samples, self._output = samples, output
        self._axes = [
            (name, axis)
            for name, spec in samples.specs.items()
            for axis, size in enumerate(spec.shape)
            if axis > 0 and not isinstance(size, int)
        ]
        if not self._axes and samples.mask is None:
            raise UsageError(
                "--by length: the model's inputs have no open axis, so all samples are as long",
                remedy="leave it out, or calibrate with --mask, the array of real positions",
            )
        self._seen: list[_Sample] = []
        self._longest: tuple[int, Batch] = (0, {})

    def watch(self, feeds: Batch, want: Arrays, have: Arrays, count: int) -> None:
        """See a batch of one sample.

        Args:
            feeds: What was fed.
            want: Outputs of the float model, by name.
            have: Outputs of the quantized model.
            count: How many samples are no padding.
        """
        first, second = (np.asarray(each[self._output], np.float64) for each in (want, have))
        if count and first.shape == second.shape:
            noise = ((first - second) ** 2).sum()
            self.add(feeds, np.array([(first**2).sum()]), np.array([noise]))

    def add(self, feeds: Batch, signal: Doubles, noise: Doubles) -> None:
        """Take the powers of the samples of a batch, without padding.

        Args:
            feeds: What was fed.
            signal: Sum of squares of each sample's float output, ``[samples]``.
            noise: Sum of squares of its error.
        """
        for row, powers in enumerate(zip(signal, noise, strict=True)):
            length = self._length(feeds, row)
            self._seen.append(_Sample(length, *map(float, powers)))
            if length > self._longest[0]:
                self._longest = length, feeds

    def found(self, plan: QuantizedGraph) -> ByLength:
        """Sum up what was seen; the longest sample is run again to look for overflows."""
        seen = sorted(self._seen)
        total = sum(each.noise for each in seen)
        groups: list[list[_Sample]] = []
        size = len(seen) / _GROUPS
        for each in seen:
            # A group is full once it and those before have their shares of the samples. Samples of
            # one length stay together.
            done = sum(map(len, groups))
            is_full = not groups or done >= len(groups) * size
            if is_full and not (groups and groups[-1][-1].length == each.length):
                groups.append([])
            groups[-1].append(each)
        parts = tuple(_group(each, total) for each in groups)
        return ByLength(parts, _overflow(plan, *self._longest, self._samples))

    def _length(self, feeds: Batch, row: int) -> int:
        mask = self._samples.mask
        if mask is not None and mask in feeds:
            return int(np.count_nonzero(feeds[mask][row]))
        return max((feeds[name].shape[axis] for name, axis in self._axes), default=0)


def lengths_of_choice(choice: Choice, samples: Samples) -> ByLength:
    """Return what short and long samples lose of those that a plan was chosen on.

    Raises:
        UsageError: Nothing tells a sample's length.
    """
    name, powers = next(iter(choice.errors.outputs.items()))
    watch = LengthWatch(samples, name)
    done = 0
    for feeds, count in choice.runs.batches:
        part = slice(done, done + count)
        watch.add(feeds, powers.signal[part], powers.noise[part])
        done += count
    return watch.found(choice.plan)


def _group(seen: list[_Sample], total: float) -> LengthGroup:
    signal, noise = (sum(each[at] for each in seen) for at in (1, 2))
    ratio = 10 * np.log10(signal / noise) if signal > 0 and noise > 0 else np.inf
    share = 100 * noise / total if total > 0 else 0.0
    return LengthGroup(seen[0].length, seen[-1].length, len(seen), float(ratio), share)


def _overflow(plan: QuantizedGraph, length: int, feeds: Batch, samples: Samples) -> str:
    """Name the tensor that reaches furthest beyond its codes in one sample."""
    points = [
        point
        for point in quantization_points(plan)
        if not point.is_constant and plan.graph.is_float(point.value) and point.value.name
    ]
    names = list(dict.fromkeys(str(point.value.name) for point in points))
    inputs = {name for name in names if name in feeds}
    given = {**feeds, **tensors_of(plan.graph, [n for n in names if n not in inputs], feeds)}
    states = {*samples.feeding.states, *samples.feeding.states.values()}
    worst, told = _LEAST_OVERFLOW, ""
    for point in points:
        name = str(point.value.name)
        low, high = point.config.value_range()
        array = np.asarray(given[name], np.float64)
        if not array.size or not max(-low, high) > 0:
            continue
        reach = float(np.abs(array).max())
        # Of the side that is cut off.
        beyond = max(array.max() / high if high > 0 else 0, array.min() / low if low < 0 else 0)
        if beyond > worst:
            kind = "state" if name in states else "tensor"
            worst = float(beyond)
            told = (
                f"{kind} {name!r} reaches {reach:.4g} in a sample of length {length}, {beyond:.1f} "
                f"times as far as its codes ({low:.4g} to {high:.4g}): calibrate on samples as long"
            )
    return told
