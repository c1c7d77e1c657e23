"""Lists every check for what may be wrong: its causes, what it needs, what it costs.

`quantize` asks them at its end within a small budget, and `diagnose` without one. A check is asked
as soon as all that it needs is there, and once. One that costs more than the budget is asked where
a sign that costs little says that it is worth while. A cost is counted from what is run, and not
measured: the same is asked for on every machine.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from intact.analyze.diagnose.evidence import Evidence
from intact.analyze.diagnose.findings import Finding
from intact.calibrate.choice import elements_of
from intact.graph.files.tensors import weight_bytes
from intact.limits import REMEDIES_SECONDS

if TYPE_CHECKING:
    from intact.calibrate.statistics import Statistics

PER_ELEMENT = 0.03 / (1 << 22)
"""Seconds for each element of activations that a plan is simulated on, as `calibrate.choice` has
it."""
SESSION = 0.15
"""Seconds to load a model whose quantizers can be switched, at least."""
_WAYS = 30
"""Number of ways in which samples are prepared."""
_PLANS = 500
"""Plans that are run on a sample to tell what each layer costs."""
_BYTES = 4
"""Bytes of a float."""
_SURE = 0.5
"""Part of the noise that a cause explains from which on no other is looked for."""


class Need(StrEnum):
    """Something that a check needs, which not every command has."""

    STATISTICS = "statistics"
    CALIBRATION = "the samples of the calibration"
    SAMPLES = "other samples"
    REAL = "samples that were not drawn"
    PLAN = "a plan with scales"
    LOSS = "an output below 30 dB, or with too few decisions of the float model"
    RUNTIME = "what was written"
    TIME = "the time that making it took"


class Check(msgspec.Struct, frozen=True):
    """One thing that is looked for.

    Attributes:
        name: Its name.
        causes: What it may find: keys of `CAUSES`.
        needs: All that must be there.
        look: Where it is: ``module:function`` in this folder, from `Evidence` to findings.
        seconds: What it costs, from the elements of the activations of one sample.
        sign: Names what tells whether it is worth more than the budget; "" for never.
        unless_sure: Not asked where a cause was found that explains half of the loss or more.
        is_behind: What it finds is no measured part of the loss: it comes behind what was measured.
    """

    name: str
    causes: tuple[str, ...]
    needs: frozenset[Need]
    look: str
    seconds: Callable[[int], float] = lambda _: 0.0
    sign: str = ""
    unless_sure: bool = False
    is_behind: bool = False


_OF_QUANTIZERS = (
    *("rounding", "clipping", "outlier_channel", "heavy_tail", "unlike_ranges", "power_of_two"),
    *("per_tensor_weights", "dead_channel", "batch_norm_scale", "bias_overflow", "attention_mask"),
)
CHECKS: tuple[Check, ...] = (
    Check(
        "samples",
        ("calibration_samples",),
        frozenset({Need.STATISTICS, Need.CALIBRATION, Need.REAL}),
        "sample_signs:check_samples",
    ),
    Check("numbers", ("preprocessing",), frozenset({Need.SAMPLES}), "quick_findings:check_numbers"),
    Check(
        "preprocessing",
        ("preprocessing", "labels"),
        frozenset({Need.REAL, Need.PLAN}),
        "quick_findings:check_preprocessing",
        seconds=lambda elements: SESSION + _WAYS * 32 * elements * PER_ELEMENT,
        sign="quick_findings:is_oddly_prepared",
    ),
    Check(
        "others",
        ("calibration_samples",),
        frozenset({Need.STATISTICS, Need.SAMPLES, Need.REAL, Need.LOSS}),
        "calibration_samples:check_other_samples",
        seconds=lambda elements: SESSION + 32 * elements * PER_ELEMENT,
        unless_sure=True,
    ),
    Check(
        "halves",
        ("calibration_samples",),
        frozenset({Need.STATISTICS, Need.CALIBRATION, Need.REAL, Need.PLAN}),
        "quick_findings:check_halves",
    ),
    Check(
        "huge",
        ("huge_channel", "huge_token"),
        frozenset({Need.STATISTICS, Need.PLAN, Need.LOSS}),
        "huge:check_huge",
        seconds=lambda elements: 2 * SESSION + 16 * elements * PER_ELEMENT,
        sign="loss:is_lost",
        unless_sure=True,
    ),
    Check(
        "quantizers",
        _OF_QUANTIZERS,
        frozenset({Need.PLAN, Need.LOSS}),
        "diagnosis:check_quantizers",
        seconds=lambda elements: 3 * SESSION + _PLANS * elements * PER_ELEMENT,
        sign="loss:is_lost",
        unless_sure=True,
    ),
    Check(
        "plan",
        ("clipping", "bias_overflow", "batch_norm_scale", "dead_channel"),
        frozenset({Need.PLAN, Need.LOSS}),
        "static:check_plan",
        is_behind=True,
    ),
    Check(
        "raw pixels",
        ("preprocessing",),
        frozenset({Need.REAL, Need.PLAN, Need.LOSS}),
        "quick_findings:check_raw_pixels",
        is_behind=True,
    ),
    Check(
        "sums",
        ("accumulator_overflow", "pair_saturation"),
        frozenset({Need.PLAN}),
        "arithmetic:check_sums",
        seconds=lambda elements: SESSION + 8 * elements * PER_ELEMENT,
        sign="loss:is_lost",
    ),
    Check(
        "decisions",
        ("rounding",),
        frozenset({Need.PLAN, Need.SAMPLES, Need.REAL}),
        "diagnosis:check_decisions",
        seconds=lambda _: 8.0,
        unless_sure=True,
        is_behind=True,
    ),
    Check(
        "pairs",
        ("pair_saturation",),
        frozenset({Need.RUNTIME, Need.CALIBRATION}),
        "runtime:check_saturation",
    ),
    Check(
        "float layers",
        ("float_fallback",),
        frozenset({Need.RUNTIME, Need.SAMPLES}),
        "runtime:check_layers_in_float",
    ),
    Check(
        "time",
        ("slower_than_float",),
        frozenset({Need.RUNTIME, Need.SAMPLES}),
        "runtime:check_slowness",
        seconds=lambda _: 2.0,
    ),
    Check(
        "little time",
        ("slower_than_float",),
        frozenset({Need.RUNTIME, Need.CALIBRATION, Need.TIME}),
        "runtime:check_little_slowness",
    ),
)
"""In the order in which they are asked."""


def behind(measured: Sequence[Finding], found: Sequence[Finding]) -> list[Finding]:
    """Return what measured findings do not name yet, no severer than the least of them."""
    named = {(each.cause, each.node) for each in measured}
    least = min((each.severity for each in measured), default=1.0)
    return [
        replace(each, severity=min(each.severity, least))
        for each in found
        if (each.cause, each.node) not in named
    ]


class Inquiry:
    """Asks checks about one result, as its evidence grows.

    Args:
        evidence: What there is.
        seconds: What each check may take without a sign.
        asked: What was asked before, with what it found.
    """

    def __init__(
        self,
        evidence: Evidence,
        *,
        seconds: float = math.inf,
        asked: Iterable[str] = (),
        found: Sequence[Finding] = (),
    ) -> None:
        self.evidence, self._seconds = evidence, seconds
        self.asked = set(asked)
        self._found: list[tuple[Check | None, Finding]] = [(None, each) for each in found]

    def ask(self, evidence: Evidence | None = None) -> tuple[Finding, ...]:
        """Ask whatever can be asked now and was not yet; return all that was found, worst first."""
        self.evidence = evidence or self.evidence
        for check in CHECKS:
            # Left for later, when more may be there; what is not due now is not asked again.
            if check.name in self.asked or not all(map(self._has, check.needs)):
                continue
            self.asked.add(check.name)
            if self._is_due(check):
                self._found += [(check, each) for each in _function(check.look)(self.evidence)]
        return self.findings

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found, worst first.

        Noise that sums make is none of quantizers; what was not measured comes behind what was.
        """
        of_sums = [each.severity for check, each in self._found if check and check.name == "sums"]
        # What sums lose is in the noise that quantizers are judged by, and not their fault.
        left = 1 - max(of_sums, default=0.0)
        ahead: list[Finding] = []
        measured: list[Finding] = []
        told: list[Finding] = []
        for check, each in self._found:
            of_loss = check is not None and Need.LOSS in check.needs
            weighed = replace(each, severity=each.severity * left) if of_loss else each
            if check is not None and check.is_behind:
                told.append(weighed)
                continue
            ahead.append(weighed)
            # Only these are parts of a loss; what costs time or comes from the samples sets no
            # measure.
            if of_loss or each.severity > 1:
                measured.append(weighed)
        found = [*ahead, *behind(measured, told)]
        return tuple(sorted(found, key=lambda each: -each.severity))

    def _has(self, need: Need) -> bool:
        evidence = self.evidence
        there: dict[Need, Callable[[], bool]] = {
            Need.STATISTICS: lambda: evidence.statistics is not None,
            Need.CALIBRATION: lambda: evidence.calibrated is not None,
            Need.SAMPLES: lambda: evidence.samples is not None,
            Need.REAL: lambda: not evidence.is_drawn,
            Need.PLAN: lambda: evidence.planned is not None,
            Need.LOSS: lambda: (
                evidence.is_lost or not (evidence.planned is None or evidence.is_well)
            ),
            Need.RUNTIME: lambda: evidence.runtime is not None,
            Need.TIME: lambda: evidence.spent is not None,
        }
        return there[need]()

    def _is_due(self, check: Check) -> bool:
        """Tell whether a check is within the budget or has a sign, and open."""
        # Before the cost and the sign: a sign may take seconds itself.
        if check.unless_sure and any(each.severity >= _SURE for _, each in self._found):
            return False
        if check.seconds(_elements(self.evidence.statistics)) <= self._seconds:
            return True
        if not check.sign or (self._seconds < math.inf and not tries_are_short(self.evidence)):
            return False
        return bool(_function(check.sign)(self.evidence))


def tries_are_short(evidence: Evidence) -> bool:
    """Tell whether `quantize` has the time to measure what each layer of a plan costs.

    That takes hundreds of runs. Of a decoder with 135 million weights, whose activations are not
    observed, each takes a second: it is done where `diagnose` is asked for it.
    """
    if evidence.planned is None:
        return True
    weights = weight_bytes(evidence.planned.graph.model) // _BYTES
    return _PLANS * max(weights, _elements(evidence.statistics)) * PER_ELEMENT <= REMEDIES_SECONDS


def _function(name: str) -> Callable[[Evidence], Sequence[Finding]]:
    """Import a check when it is asked: most load much else."""
    module, _, function = name.partition(":")
    found: Callable[[Evidence], Sequence[Finding]] = getattr(
        importlib.import_module(f"intact.analyze.diagnose.{module}"), function
    )
    return found


def _elements(statistics: Statistics | None) -> int:
    return 0 if statistics is None else elements_of(statistics)
