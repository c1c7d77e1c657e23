"""Finds what a plan and its calibration statistics show without running the quantized model.

For example: "2.1 % of the values that calibration saw of tensor 'conv3' lie outside of -4 to 4".
Three things are looked for: clipped tensors, weights whose bias forces them to a coarse scale, and
BatchNormalizations whose largest scale costs all channels a bit. `quantize` tells them at its end,
and `diagnose` after what it measures: both ask here, so that neither leaves out what the other
says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import onnx_ir as ir

from intact.analyze.diagnose.findings import SIMULATION, Finding, Remedy
from intact.analyze.diagnose.noise import CUT_AWAY
from intact.analyze.diagnose.quantizers import WIDEN, cut_in_calibration
from intact.analyze.diagnose.weights import bias_finding
from intact.calibrate.outputs import FloatRuns
from intact.calibrate.statistics import Statistics
from intact.errors import IntactError, PlanError
from intact.graph import facts
from intact.limits import CLIPPED_DB, CUT
from intact.plan import QuantizedGraph, quantization_points
from intact.plan.batch_norms import BatchNormScale, Place, batch_norm_scales, normalized_data

if TYPE_CHECKING:
    from intact.analyze.diagnose.evidence import Evidence


_BIT = 4.0
"""Factor of the noise power for one bit less."""

Replan = Callable[[str | None], QuantizedGraph]
"""Makes the plan of a method of activations, without scales that were given; of None the plan that
is looked at."""


def check_plan(evidence: Evidence) -> list[Finding]:
    """Ask `static_findings` about the plan of a diagnosis."""

    def replan(name: str | None) -> QuantizedGraph:
        if evidence.replan is None:
            raise PlanError("the plan cannot be made again")
        return evidence.replan(name, None)

    return static_findings(evidence.plan, evidence.statistics, evidence.plan_runs, replan)


def static_findings(
    plan: QuantizedGraph, statistics: Statistics | None, runs: FloatRuns, replan: Replan
) -> list[Finding]:
    """Find clipped tensors, weights with scales widened for a bias, and odd BatchNormalizations.

    A clipped tensor is reported only where a wider range is better, which is tried.

    Args:
        plan: A plan with scales.
        statistics: What calibration saw; without it nothing is told of clipping.
        runs: Samples that a wider range is tried on.
        replan: Makes plans to compare with.

    Returns:
        Worst first, by a severity that is a share of values or of noise and not of the loss.
    """
    clipped = [] if statistics is None else _clipped_tensor(plan, statistics)
    tried = [_try_remedy(each, runs, replan) for each in clipped]
    found = [*filter(None, tried), *_biases(plan), *batch_norm_findings(plan)]
    return sorted(found, key=lambda each: -each.severity)


def _try_remedy(finding: Finding, runs: FloatRuns, replan: Replan) -> Finding | None:
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


def _clipped_tensor(plan: QuantizedGraph, statistics: Statistics) -> list[Finding]:
    """Find the tensor that loses most by clipping."""
    losses = [
        (cut_in_calibration(point, statistics), point)
        for point in quantization_points(plan)
        if not point.is_constant
        # What is passed on has the grid of another tensor, which is looked at itself.
        and not point.is_passed_on
        and str(point.value.name) in statistics.tensors
    ]
    # Both: a chosen range cuts off a few values, and a share of many tiny excesses costs nothing.
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


def batch_norm_findings(plan: QuantizedGraph) -> list[Finding]:
    """Find BatchNormalizations whose scales cost a bit or more, and dead channels.

    The figures are those of `intact.plan.batch_norms`, which `inspect` shows too.

    Returns:
        One finding for each: ``dead_channel`` where dead channels have the largest scale, else
        ``batch_norm_scale``. The severity is at most a half: what later layers make of the noise
        is not known here.
    """
    return [
        _batch_norm_finding(each, plan)
        for each in batch_norm_scales(plan.graph, plan)
        if each.cost > _BIT and plan.is_quantized(plan.graph.node(each.node))
    ]


def _batch_norm_finding(each: BatchNormScale, plan: QuantizedGraph) -> Finding:
    is_dead = each.index in each.dead
    evidence = (
        f"BatchNormalization ({each.place}) multiplies channel {each.index} by {each.scale:.3g} "
        f"(gamma {each.gamma:.3g}, variance {each.variance:.3g}, mean {each.mean:.3g}), the least "
        f"by {each.least:.3g}: {each.cost:.2g} times the rounding noise of alike channels"
    )
    if each.dead:
        relu = f", behind a {each.after}" if each.after else ""
        evidence += f"; {len(each.dead)} of {each.channels} channels are constant{relu}"
    node = plan.graph.node(each.node)
    remedies = [Remedy(options={"keep_float": _parts(node, each.place)})]
    # Equalization works on layers; a BatchNormalization by itself is none.
    if each.place is not Place.APART:
        remedies.insert(0, Remedy(options={"improve": ["equalize"]}))
    if each.place is Place.IN_FRONT:
        text = "quantize for a target with a weight scale for each channel"
        remedies.append(Remedy(text=text))
    remedies.append(Remedy(text=_advice(each)))
    data = normalized_data(node, each.place)
    return Finding(
        "dead_channel" if is_dead else "batch_norm_scale",
        evidence,
        0.5 * each.cost / (1 + each.cost),
        node=each.node,
        tensor=str((node.outputs[0] if data is None else data).name),
        remedies=tuple(remedies),
    )


def _parts(node: ir.Node, place: Place) -> list[str]:
    """Name the nodes that a BatchNormalization became."""
    data = node.inputs[0]
    product = None if data is None else data.producer()
    names = [str(node.name)]
    if place is Place.APART and facts(node).adds and product is not None:
        names.insert(0, str(product.name))
    return names


def _advice(each: BatchNormScale) -> str:
    """Return what can be done in training."""
    parts = ["make the layer in front smaller"]
    if each.after:
        parts += [
            "put the BatchNormalization in front of the activation",
            "use LeakyRelu in the place of Relu",
        ]
    return f"train again: {', or '.join(parts)}"
