"""Findings from a plan and the statistics of its calibration, which `quantize` has for little.

`quantize` names them at its end, and `diagnose` behind what it measures: both ask here, so that a
diagnosis leaves out nothing that `quantize` has said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from intact.analyze.diagnose.batch_norms import batch_norm_findings
from intact.analyze.diagnose.findings import SIMULATION, Finding
from intact.analyze.diagnose.noise import CUT_AWAY
from intact.analyze.diagnose.quantizers import WIDEN, cut_in_calibration
from intact.analyze.diagnose.weights import bias_finding
from intact.calibrate.choice import FloatRuns
from intact.calibrate.statistics import Statistics
from intact.errors import IntactError, PlanError
from intact.limits import CLIPPED_DB, CUT
from intact.plan import QuantizedGraph, quantization_points

if TYPE_CHECKING:
    from intact.analyze.diagnose.evidence import Evidence


Replan = Callable[[str | None], QuantizedGraph]
"""From the method of activations to the plan that it gives, without scales that were given; None
makes the plan that is looked at."""


def check_plan(evidence: Evidence) -> list[Finding]:
    """Find what plan and statistics tell of a plan."""

    def by(name: str | None) -> QuantizedGraph:
        if evidence.replan is None:
            raise PlanError("the plan cannot be made again")
        return evidence.replan(name, None)

    return static_findings(evidence.plan, evidence.statistics, evidence.plan_runs, by)


def static_findings(
    plan: QuantizedGraph, statistics: Statistics | None, runs: FloatRuns, replan: Replan
) -> list[Finding]:
    """Find clipped tensors, biases that their weights make room for, and odd BatchNormalizations.

    That values are clipped is said where a wider range is better: that is tried.

    Args:
        plan: A plan with scales.
        statistics: What calibration saw; without it nothing is told of clipping.
        runs: Samples that a wider range is tried on.
        replan: Makes plans to compare with.

    Returns:
        Worst first, by a severity that is a share of values or of noise and not of the loss.
    """
    clipped = [] if statistics is None else _clipped(plan, statistics)
    tried = [_tried(each, runs, replan) for each in clipped]
    found = [*filter(None, tried), *_biases(plan), *batch_norm_findings(plan)]
    return sorted(found, key=lambda each: -each.severity)


def _tried(finding: Finding, runs: FloatRuns, replan: Replan) -> Finding | None:
    """Try the method of the remedy; None where it does not help: the cause is another."""
    method = str(finding.remedies[0].options["method"])
    try:
        before, after = (_least(replan(each), runs) for each in (None, method))
    except IntactError:  # a target may have no such plan
        return None
    gain = after - before
    if gain < CLIPPED_DB:
        return None
    return msgspec.structs.replace(finding, gain=gain, measured=SIMULATION)


def _least(plan: QuantizedGraph, runs: FloatRuns) -> float:
    """Return the least signal to noise of the outputs of a plan, dB."""
    return min(runs.simulated(plan).decibels.values(), default=0.0)


def _clipped(plan: QuantizedGraph, statistics: Statistics) -> list[Finding]:
    """Find the tensor that loses most by clipping."""
    losses = [
        (cut_in_calibration(point, statistics), point)
        for point in quantization_points(plan)
        if not point.is_constant
        and not point.is_passed_on
        and str(point.value.name) in statistics.tensors
    ]
    much = [each for each in losses if each[0].share > CUT and each[0].noise > CUT_AWAY]
    cut, point = max(much, key=lambda each: each[0].noise, default=(None, None))
    if cut is None or point is None:
        return []
    low, high = point.config.value_range()
    evidence = (
        f"{100 * cut.share:.2g} % of the values that calibration saw of tensor "
        f"{str(point.value.name)!r} lie outside of {low:.4g} to {high:.4g}"
    )
    node, tensor = point.end.node, str(point.value.name)
    return [Finding("clipping", evidence, cut.share, node=node, tensor=tensor, remedies=(WIDEN,))]


def _biases(plan: QuantizedGraph) -> list[Finding]:
    found = bias_finding(plan)
    return [] if found is None else [found]
