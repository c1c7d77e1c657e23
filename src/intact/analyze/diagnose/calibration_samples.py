"""Finds calibration samples that were too few, or unlike the data, by their ranges.

Of alike samples, one among ``n + 1`` is beyond the range of the other ``n`` at one end. What lies
beyond is cut to the range; where that costs more than rounding does, there were too few samples, or
they were unlike. Unlike they are too where the range is much wider than other samples need.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from intact.analyze.diagnose.findings import Finding, Remedy
from intact.calibrate.assign import required_tensors
from intact.calibrate.observe.observer import Observer
from intact.calibrate.statistics import Statistics, TensorStatistics
from intact.data.stream import Samples
from intact.numerics.distribution import Bins
from intact.numerics.histogram import Accumulator, SampleStatistics
from intact.plan import QuantizedGraph

if TYPE_CHECKING:
    from intact.analyze.diagnose.evidence import Evidence

Doubles = npt.NDArray[np.float64]

USUAL = 512
"""Samples that calibration takes where nothing else is said."""
_CODES = 255
"""Steps of the range that rounding is reckoned with: of 8 bits."""
_FELT = 1 / 3
"""Part of the noise from which on it is felt."""
_UNLIKE = 4.0
"""How many times as many samples beyond the range as alike ones would have."""
_NAMED = 3
"""Tensors that evidence names."""
_ERRORS = 3.0
"""Standard errors by which the means of alike samples differ in one case of 400."""


def check_other_samples(evidence: Evidence) -> list[Finding]:
    """Compare other samples with what calibration saw."""
    if evidence.statistics is None or evidence.samples is None:
        return []
    return calibration_findings(evidence.plan, evidence.statistics, evidence.samples)


class RangeShift(msgspec.Struct, frozen=True):
    """How one tensor's new samples lie to the range that calibration saw.

    Attributes:
        tensor: Its name.
        calibrated: Samples of the calibration.
        beyond: Part of the new samples that have a value beyond the range.
        expected: The same as alike samples would have on average.
        outside: Part of their values that lie beyond it.
        clipping: Mean square of what is cut off, against that of rounding to 8 bits.
        wider: Width of the range against that of the new samples.
        shift: Difference of the means, in standard errors.
    """

    tensor: str
    calibrated: int
    beyond: float
    expected: float
    outside: float
    clipping: float
    wider: float
    shift: float

    @property
    def cut(self) -> float:
        """The part of the noise that is due to what is cut off."""
        return self.clipping / (1 + self.clipping)

    @property
    def loose(self) -> float:
        """The part of the rounding that is due to a range that is wider than needed."""
        return 1 - 1 / max(self.wider, 1) ** 2


def calibration_findings(
    plan: QuantizedGraph, statistics: Statistics, samples: Samples
) -> list[Finding]:
    """Find out whether a plan was calibrated on too few or on unlike samples.

    Args:
        plan: The plan.
        statistics: What calibration saw.
        samples: Others, prepared as for the calibration; 32 or more tell enough.

    Returns:
        One finding of the cause ``calibration_samples``, or none. Its severity is the part of the
        noise that is due to clipping, or to wide ranges, on average over the tensors.

    Raises:
        DataError: The samples do not fit the model.
    """
    # Padding is in no range of the calibration; an iterator has been read already.
    if samples.mask is not None or isinstance(samples.reader, Iterator):
        return []
    if statistics.model_hash != plan.graph.hash:
        return []
    seen = range_shifts(plan, statistics, samples)
    if not seen:
        return []
    return _unlike(seen) or _too_few(seen)


def range_shifts(
    plan: QuantizedGraph, statistics: Statistics, samples: Samples
) -> list[RangeShift]:
    """Compare all tensors that the plan needs the ranges of, and that vary."""
    names = [name for name in required_tensors(plan) if name in statistics.tensors]
    if not names:
        return []
    observer = Observer(plan.graph, names, takes_feeds=samples.takes_feeds)
    accumulator = Accumulator(len(names))
    parts: list[SampleStatistics] = []
    sizes: list[npt.NDArray[np.int64]] = []
    for batch, count in samples.batches(observer.batch_size):
        found = observer.run(batch, count)
        parts.append(accumulator.add(found.values, found.starts, found.elements, found.samples))
        # Of each sample its own: sequences differ in length, and a mean is over one of them.
        sizes.append(np.repeat(found.elements[:, None], found.samples, axis=1))
    rows = SampleStatistics(*(np.concatenate(each, axis=1) for each in zip(*parts, strict=True)))
    elements = np.concatenate(sizes, axis=1)
    compared = []
    for place, counts in enumerate(accumulator.counts()):
        own = SampleStatistics(*(each[place] for each in rows))
        one = _range_shift(names[place], statistics[names[place]], own, counts, elements[place])
        compared += [one] if one is not None else []
    return compared


def _range_shift(
    name: str,
    calibrated: TensorStatistics,
    rows: SampleStatistics,
    counts: npt.NDArray[np.int64],
    elements: npt.NDArray[np.int64],
) -> RangeShift | None:
    low, high = calibrated.minimum, calibrated.maximum
    width = high - low
    live = rows.minimum <= rows.maximum
    if not live.any() or not calibrated.samples or not 0 < width < math.inf:
        return None
    least, most = float(rows.minimum[live].min()), float(rows.maximum[live].max())
    new = TensorStatistics(counts, int(rows.zeros.sum()))
    new.add(rows)
    distribution = new.distribution()
    # Of the whole range: a method that chooses less of it clips on purpose.
    rounding = (width / _CODES) ** 2 / 12
    # The minima of a Relu are all the same, and none is beyond another.
    ends = sum(np.ptp(each[live]) > 0 for each in (rows.minimum, rows.maximum))
    means = rows.total[live] / elements[live]
    # The standard error of a difference of means, with the deviation of the new samples for both.
    spread = float(means.std()) * math.sqrt(1 / calibrated.samples + 1 / len(means))
    mean = calibrated.distribution().mean
    return RangeShift(
        name,
        calibrated.samples,
        float(((rows.minimum < low) | (rows.maximum > high))[live].mean()),
        ends / (calibrated.samples + 1),
        _share_beyond(distribution, low, high),
        _mean_square_beyond(distribution, low, high) / rounding,
        width / (most - least) if most > least else 1.0,
        abs(float(means.mean()) - mean) / spread if spread else 0.0,
    )


def _mean_square_beyond(values: Bins, low: float, high: float) -> float:
    """Return the mean square of what lies beyond a range."""
    middle = (values.low + values.high) / 2
    beyond = np.maximum(low - middle, 0) + np.maximum(middle - high, 0)
    return float((values.count * beyond**2).sum() / max(values.total, 1))


def _share_beyond(values: Bins, low: float, high: float) -> float:
    """Return the part of the values that lies beyond a range."""
    middle = (values.low + values.high) / 2
    beyond = (middle < low) | (middle > high)
    return float(values.count[beyond].sum() / max(values.total, 1))


def _outside(seen: Sequence[RangeShift]) -> str:
    """Say which part of the values lies outside: of the input, then of the worst layers."""
    # What a plan needs first is its input, where that is quantized.
    first, *others = seen
    worst = sorted(others, key=lambda each: -each.outside)[: _NAMED - 1]
    named = [each for each in (first, *worst) if each.outside > 0]
    return ", ".join(f"{100 * each.outside:.2g} % of {each.tensor!r}" for each in named)


def _unlike(seen: Sequence[RangeShift]) -> list[Finding]:
    """Find samples whose means differ in half of the tensors, and whose ranges differ too."""
    shift = float(np.median([each.shift for each in seen]))
    beyond, expected, loose = (_mean(seen, each) for each in ("beyond", "expected", "loose"))
    # Both: means differ between any two sets of few samples, and ranges by single values.
    if shift <= _ERRORS or (beyond <= _UNLIKE * expected and loose < _FELT):
        return []
    cut = _mean(seen, "cut")
    evidence = (
        f"the samples' means differ from those of the {_calibration_size(seen)} of the "
        f"calibration by {shift:.2g} standard errors"
    )
    if beyond > _UNLIKE * expected:
        worst = max(seen, key=lambda each: each.clipping)
        evidence += (
            f", and {100 * beyond:.0f} % of them have values beyond its ranges, of alike ones "
            f"{100 * expected:.1f} % (outside are {_outside(seen)})"
        )
    else:
        worst = max(seen, key=lambda each: each.wider)
        evidence += f", and its range of tensor {worst.tensor!r} is {worst.wider:.2g} times theirs"
    return [_finding(evidence, max(cut, loose), worst, [_LIKE_THESE])]


def _too_few(seen: Sequence[RangeShift]) -> list[Finding]:
    """Find ranges that cut off much of what alike samples have."""
    cut, calibrated = _mean(seen, "cut"), _calibration_size(seen)
    if cut < _FELT:
        return []
    worst = max(seen, key=lambda each: each.clipping)
    evidence = (
        f"{100 * _mean(seen, 'beyond'):.0f} % of the samples have values beyond the range of the "
        f"{calibrated} that calibration saw, which is {100 * cut:.0f} % of the noise (outside are "
        f"{_outside(seen)})"
    )
    more = Remedy(options={"samples": max(USUAL, 4 * calibrated)})
    text = Remedy(text=f"calibrate on more samples than {calibrated}")
    return [_finding(evidence, cut, worst, [more, text])]


def _calibration_size(seen: Sequence[RangeShift]) -> int:
    return max(each.calibrated for each in seen)


_LIKE_THESE = Remedy(
    text="calibrate on samples like those that the model is used for, prepared in the same way"
)


def _finding(
    evidence: str, severity: float, worst: RangeShift, remedies: Sequence[Remedy]
) -> Finding:
    return Finding(
        "calibration_samples", evidence, severity, tensor=worst.tensor, remedies=tuple(remedies)
    )


def _mean(seen: Sequence[RangeShift], name: str) -> float:
    return float(np.mean([getattr(each, name) for each in seen]))
