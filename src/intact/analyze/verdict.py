"""Judges a result in one sentence that can be acted on, from the figures that were measured.

Accuracy tells most, of texts their perplexity, then how often the answers are the float model's,
then decibels. What few samples say counts by its interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from intact.limits import AGREEING, DETECTED, LOST_DB, MOST_DB, TOLERATED, WELL_DB
from intact.numerics.metrics import binomial_interval

if TYPE_CHECKING:
    from intact.analyze.diagnose.findings import Finding
    from intact.data.metric import Compared
    from intact.numerics.metrics import EqualShare

_OF_TIME = ("slower_than_float", "float_fallback")
"""Causes that cost time, and no answers."""
_FIGURES = 2
"""Figures of a number of samples that is advised; the rest are zeros."""


def keeps_enough(detected: Compared) -> bool:
    """Tell whether a detector keeps so much of what it finds, and adds so little, that its decibels
    are no loss."""
    from intact.data.metric import ADDED  # few are detectors

    kept, added = next(iter(detected.figures.values()))[1], detected.figures[ADDED][1]
    return kept >= DETECTED and added <= 100 - DETECTED


class Judgement(StrEnum):
    """The outcome of a verdict."""

    GOOD = "good"
    LOSES = "loses"
    UNSURE = "unsure"
    WRONG = "wrong"


class Verdict(msgspec.Struct, frozen=True):
    """What to do with a result.

    Attributes:
        judgement: ``good`` to deploy; it ``loses`` beyond chance; ``unsure`` where the samples do
            not tell; ``wrong`` where the float model or its samples are.
        sentence: The same with its figures, and what to do.
    """

    judgement: Judgement
    sentence: str

    def __str__(self) -> str:
        """Return the sentence."""
        return self.sentence


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a result.

    Attributes:
        samples: On how many samples.
        change: Quantized minus float accuracy in points, with the ends of its 95 % interval; None
            without labels.
        growth: Percent by which the perplexity of a text grows, with the ends of its 95 % interval,
            NaN for one window; None of other models.
        agreement: Percent of the samples with the float model's best class; None without classes.
        decibels: Signal to quantization noise of the worst output; None where it has none.
        equal: Percent of the numbers of an output of choices (classes, tokens) that are the float
            model's, with the ends of its 95 % interval; None where no output has any.
        metrics: Figures of a metric by name, (float, quantized).
        intervals: Ends of the 95 % intervals of their changes, by name, of those that have one, in
            percent.
        wrong: What makes the float model's own answers doubtful; "" where nothing does.
        where: The node where most is lost; "" where that is not known.
        gain: What the first remedy regains, with its unit; "" where that is not known.
        remedy: The first remedy in words, where it is no command.
        is_drawn: Whether the samples were drawn, and are none of the user's.
        untelling: Why the samples tell little of others, where they are those that set the ranges;
            "" where nothing speaks against them.
    """

    samples: int
    change: tuple[float, float, float] | None = None
    growth: tuple[float, float, float] | None = None
    agreement: float | None = None
    decibels: float | None = None
    equal: EqualShare | None = None
    metrics: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = msgspec.field(default_factory=dict)
    wrong: str = ""
    where: str = ""
    gain: str = ""
    remedy: str = ""
    is_drawn: bool = False
    untelling: str = ""

    def explained_by(self, findings: Sequence[Finding]) -> Measured:
        """Return the same with what findings tell: what is wrong, where, and what regains it.

        Args:
            findings: Worst first, with what their remedies gain.
        """
        first = next((each for each in findings if each.cause not in _OF_TIME), None)
        if first is None:
            return self
        text = first.remedy or next((each.text for each in first.remedies), "")
        remedy = text if text and not text.startswith("intact ") else "the remedy below mends it"
        # Such a finding is about the float model or its data: no figure of the quantized one counts
        # before that is mended.
        if first.severity > 1:
            return replace(self, wrong=first.evidence, remedy=remedy)
        is_known = first.gain is not None and math.isfinite(first.gain)
        gain = f"{first.gain:.1f} {first.unit}" if is_known else ""
        return replace(self, where=self.where or first.node, gain=self.gain or gain)


def verdict(found: Measured) -> Verdict:
    """Judge a result by what was measured; the same figures have the same verdict everywhere."""
    if found.wrong:
        mend = f"; {found.remedy}" if found.remedy else ""
        return Verdict(Judgement.WRONG, f"not to be judged yet: {found.wrong}{mend}")
    if found.is_drawn:
        told = (
            f"cannot be told from samples that were drawn{_level(found)}; evaluate it on real ones"
        )
        return Verdict(Judgement.UNSURE, told)
    if not found.samples:
        return Verdict(Judgement.UNSURE, "cannot be told without samples; give some")
    # By how much each tells of what a user wants: the first that can judge does.
    judges = (_by_accuracy, _by_perplexity, _by_metrics, _by_agreement, _by_decibels, _by_choices)
    for judge in judges:
        judged = judge(found)
        if judged is not None:
            judgement, told = judged
            if found.untelling and judgement is Judgement.GOOD:
                told = f"cannot be told from these samples: {found.untelling}"
                return Verdict(Judgement.UNSURE, f"{told}; evaluate it on others")
            more = _to_do(found) if judgement is not Judgement.GOOD else ""
            return Verdict(judgement, told + more)
    told = f"cannot be told on {_samples(found)}: the outputs have no classes and no level of noise"
    return Verdict(Judgement.UNSURE, f"{told}; give --metric MODULE:FUNCTION, which scores them")


_Judged = tuple[Judgement, str]


def _by_accuracy(found: Measured) -> _Judged | None:
    if found.change is None or not all(map(math.isfinite, found.change)):
        return None
    points, low, high = found.change
    on = f"on {_samples(found)}"
    interval, change = f"[{low:+.2f}, {high:+.2f}]", f"accuracy {points:+.2f} points"
    # By the worse end of the interval, so that few samples do not make a result look good.
    if low >= -TOLERATED:
        how = "within chance" if low <= 0 <= high else f"less than {TOLERATED:g} lost"
        return (
            Judgement.GOOD,
            f"good to deploy: accuracy {points:+.2f} points {interval} {on}, {how}",
        )
    if high < 0:
        return (
            Judgement.LOSES,
            f"loses {-points:.1f} points of accuracy {interval} {on}, beyond chance",
        )
    # An interval that is as narrow is above what is tolerated, or below 0; it shrinks with the root
    # of the number of samples.
    wanted = max(TOLERATED + points, -points)
    needed = found.samples * ((high - low) / 2 / wanted) ** 2
    told = (
        f"cannot be told from {_samples(found)}: {change} {interval} is within chance; "
        f"evaluate it on {_about(needed)}"
    )
    return Judgement.UNSURE, told


def _by_perplexity(found: Measured) -> _Judged | None:
    if found.growth is None or not math.isfinite(found.growth[0]):
        return None
    percent, low, high = found.growth
    if not math.isfinite(low + high):
        told = f"cannot be told from one window: perplexity {percent:+.1f} %; give more text"
        return Judgement.UNSURE, told
    grows = f"perplexity {percent:+.2f} % [{low:+.2f}, {high:+.2f}] on {_samples(found)}"
    if high <= TOLERATED:
        return Judgement.GOOD, f"good to deploy: {grows}"
    if low > 0:
        return Judgement.LOSES, f"loses beyond chance: {grows}"
    return Judgement.UNSURE, f"cannot be told from {_samples(found)}: {grows}; give more text"


def _by_metrics(found: Measured) -> _Judged | None:
    if not found.metrics:
        return None
    name, (before, after) = next(iter(found.metrics.items()))
    if name in found.intervals:
        from intact.data.metric import ADDED  # likewise

        judged = _by_interval(found, name, after - before)
        low, high = found.intervals.get(ADDED, (0.0, 0.0))
        # All that float finds may be kept among hundreds of boxes that are not there.
        if judged[0] is Judgement.LOSES or not low > TOLERATED:
            return judged
        more = found.metrics[ADDED][1] - found.metrics[ADDED][0]
        told = f"{ADDED} {more:+.2f} [{low:+.2f}, {high:+.2f}] on {_samples(found)}"
        return Judgement.LOSES, f"loses beyond chance: {told}"
    changes = ", ".join(
        f"{name} {before:.4g} -> {after:.4g}" for name, (before, after) in found.metrics.items()
    )
    return (
        Judgement.UNSURE,
        f"{changes} on {_samples(found)}: whether that is enough is yours to say",
    )


def _by_interval(found: Measured, name: str, change: float) -> _Judged:
    """Judge by the first figure of a metric, in percent, that has an interval."""
    low, high = found.intervals[name]
    told = f"{name} {change:+.2f} [{low:+.2f}, {high:+.2f}] on {_samples(found)}"
    if low >= -TOLERATED:
        # Where no sample shows a loss, none is seen that a bootstrap could draw.
        few = binomial_interval(found.samples, found.samples)[0] < AGREEING
        so_far = f", as far as {_samples(found)} tell" if few else ""
        return Judgement.GOOD, f"good to deploy{so_far}: {told}"
    if high < -TOLERATED:
        return Judgement.LOSES, f"loses beyond chance: {told}"
    return Judgement.UNSURE, f"cannot be told from {_samples(found)}: {told}; give more"


def _by_agreement(found: Measured) -> _Judged | None:
    if found.agreement is None or math.isnan(found.agreement):
        return None
    same = round(found.samples * found.agreement / 100)
    low, high = (100 * end for end in binomial_interval(same, found.samples))
    answers = f"{same} of {found.samples} answers are the float model's"
    if low >= 100 * AGREEING:
        return Judgement.GOOD, f"good to deploy: {answers}{_level(found)}"
    if high < 100 * AGREEING:
        return Judgement.LOSES, f"loses answers beyond chance: {answers}{_level(found)}"
    if found.decibels is not None and found.decibels >= WELL_DB:
        return (
            Judgement.GOOD,
            f"good to deploy, as far as {_samples(found)} tell: {answers}{_level(found)}",
        )
    if found.decibels is not None and found.decibels < LOST_DB:
        return None  # which the next judge says
    share = AGREEING
    told = f"cannot be told from {_samples(found)}: {answers}{_level(found)}"
    # With so many samples half of the interval is as wide as the share that may disagree.
    needed = 1.96**2 * share * (1 - share) / (1 - share) ** 2
    more = max(needed, 2 * found.samples)
    return Judgement.UNSURE, f"{told}; evaluate it on {_about(more)}, with labels if there are any"


def _by_decibels(found: Measured) -> _Judged | None:
    if found.decibels is None or math.isnan(found.decibels):
        return None
    if found.decibels <= -MOST_DB:
        return Judgement.LOSES, f"loses all: an output is NaN, or noise alone, on {_samples(found)}"
    if found.decibels == math.inf:
        return Judgement.GOOD, f"good to deploy: outputs are the float model's on {_samples(found)}"
    level = f"{found.decibels:.1f} dB of signal to quantization noise on {_samples(found)}"
    if found.decibels >= WELL_DB:
        return Judgement.GOOD, f"good to deploy: outputs have {level}"
    if found.decibels < LOST_DB:
        return Judgement.LOSES, f"loses much: an output has {level}"
    told = f"outputs have {level}: whether that is enough, only labels or a metric tell"
    return Judgement.UNSURE, told


def _by_choices(found: Measured) -> _Judged | None:
    """Judge outputs that hold nothing but classes, tokens or places, which are right or wrong."""
    if found.equal is None:
        return None
    percent, low, high = found.equal
    told = (
        f"{percent:.2f} % [{low:.2f}, {high:.2f}] of the numbers of an output are the float "
        f"model's on {_samples(found)}"
    )
    if low >= 100 * AGREEING:
        return Judgement.GOOD, f"good to deploy: {told}"
    if high < 100 * AGREEING:
        return Judgement.LOSES, f"loses answers beyond chance: {told}"
    return Judgement.UNSURE, f"cannot be told from {_samples(found)}: {told}; evaluate it on more"


def _to_do(found: Measured) -> str:
    """Say where most is lost, and what regains it."""
    where = f"; most at {found.where!r}" if found.where else ""
    if found.gain:
        return f"{where}; the remedy below regains {found.gain}"
    return where


def _level(found: Measured) -> str:
    return "" if found.decibels is None else f", {found.decibels:.1f} dB"


def _samples(found: Measured) -> str:
    return f"{found.samples} sample{'' if found.samples == 1 else 's'}"


def _about(number: float) -> str:
    """Write a number of samples that is advised, rounded up to two figures."""
    unit = 10 ** max(math.ceil(math.log10(max(number, 1))) - _FIGURES, 0)
    return f"about {math.ceil(number / unit) * unit:,} samples"
