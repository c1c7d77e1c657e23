"""Findings that need no run of the model: from a plan and the statistics of its calibration."""

from __future__ import annotations

from intact.analyze.diagnose.batch_norms import batch_norm_findings
from intact.analyze.diagnose.findings import Finding
from intact.analyze.diagnose.quantizers import CUT_AWAY, WIDEN, cut_in_calibration
from intact.analyze.diagnose.weights import bias_finding
from intact.calibrate.statistics import Statistics
from intact.plan import QuantizedGraph, quantization_points

_CUT = 0.05
"""Part of the values beyond the codes that no method gives up for finer steps."""


def static_findings(plan: QuantizedGraph, statistics: Statistics) -> list[Finding]:
    """Find clipped tensors, biases that their weights make room for, and odd BatchNormalizations.

    Args:
        plan: A plan with scales.
        statistics: What calibration saw.

    Returns:
        Worst first, by a severity that is a share of values or of noise and not of the loss.
    """
    found = [*_clipped(plan, statistics), *_biases(plan), *batch_norm_findings(plan)]
    return sorted(found, key=lambda each: -each.severity)


def _clipped(plan: QuantizedGraph, statistics: Statistics) -> list[Finding]:
    """Find the tensor that loses most by clipping."""
    losses = [
        (cut_in_calibration(point, statistics), point)
        for point in quantization_points(plan)
        if not point.is_constant
        and not point.is_passed_on
        and str(point.value.name) in statistics.tensors
    ]
    much = [each for each in losses if each[0].share > _CUT and each[0].noise > CUT_AWAY]
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
