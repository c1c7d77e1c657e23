"""Says which output loses too much, where, and what keeping nodes in float would regain.

The layers that cost most alone are kept in float in plans of their own, which are simulated: the
gain is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec.structs import replace

from intact.calibrate.choice import Choice
from intact.calibrate.outputs import FloatRuns, Powers, rows_of
from intact.errors import IntactError
from intact.limits import AGREEING, LOST_DB, MOST_DB, TOLD_DB
from intact.plan import QuantizedGraph, quantization_points

if TYPE_CHECKING:
    from intact.analyze.diagnose.evidence import Evidence
    from intact.analyze.diagnose.findings import Finding

_CHANCE = 0.01
"""Probability of so few common decisions by chance, below which they are said to be too few."""
_FEWEST = 8
"""Samples at least, to say what an output tells apart."""
_SCORES = 16
"""Numbers of an output at most that is one of scores: more are seldom the same for all samples."""
_OF_OTHERS = frozenset(["calibration_samples", "labels", "preprocessing"])
"""Causes that lie in the samples, and in no layer."""

Planner = Callable[[Sequence[str]], QuantizedGraph]
"""Makes a plan with scales that keeps the nodes of these names in float."""
Accepts = Callable[[QuantizedGraph], Mapping[str, str] | None]
"""Returns the options with which a plan is written, and runs in its runtime; None without any."""


class Loss(msgspec.Struct, frozen=True):
    """An output that loses much.

    Attributes:
        output: The output of the model that loses most.
        decibels: Its signal to quantization noise.
        samples: Number of samples.
        agreeing: Number of samples with the float model's best class; None where the output is not
            one of classes.
        infinite: Number of samples where it is NaN or infinite and that of the float model is not.
        node: Where most of it is lost: the layer that alone costs most; "" where that is not known.
        op_type: Its operator.
        is_drowned: Whether samples differ less in the output than noise changes it.
    """

    output: str
    decibels: float
    samples: int
    agreeing: int | None = None
    infinite: int = 0
    node: str = ""
    op_type: str = ""
    is_drowned: bool = False

    def __str__(self) -> str:
        """Say what is lost, and where."""
        drowned = ", more noise than samples differ by" if self.is_drowned else ""
        place = f"; most is lost at {self.node!r} ({self.op_type})" if self.node else ""
        if self.infinite:
            return (
                f"output {self.output!r} is NaN or infinite on {self.infinite} of {self.samples} "
                f"sample(s), where that of the float model is not{place}"
            )
        agreeing = "" if self.agreeing is None else f", {self.agreeing} with the same best class"
        return (
            f"output {self.output!r} has {self.decibels:.1f} dB of signal to quantization noise "
            f"on {self.samples} sample(s){drowned}{agreeing}{place}"
        )

    def gain(self, finding: Finding) -> str:
        """Say what the first remedy of a finding gains, where it keeps nodes in float; or ""."""
        names = finding.remedies[0].options.get("keep_float") if finding.remedies else None
        if not names or finding.gain is None:
            return ""
        gained = "" if self.infinite else f" ({finding.gain:+.1f} dB)"
        regained = self.decibels + finding.gain
        return f"{len(names)} node(s) kept in float give {regained:.1f} dB{gained}"


def is_lost(evidence: Evidence) -> bool:
    """Tell whether an output loses too much."""
    return evidence.is_lost


def find_loss(choice: Choice) -> Loss | None:
    """Look whether an output of a plan loses much.

    Args:
        choice: The plan with its decibels.

    Returns:
        None if no output has less than 15 dB, or too few decisions in common with the float
        model's: so few that they would be by chance in one case of a hundred, if 95 % were; and
        samples differ more in each output of scores than noise changes it.
    """
    decibels, errors = choice.errors.decibels, choice.errors.outputs
    drowned = _drowned_outputs(choice)
    lost = [
        name
        for name in decibels
        if decibels[name] < LOST_DB or _disagrees(errors[name]) or name in drowned
    ]
    output = min(lost, key=lambda name: decibels[name], default="")
    if not output:
        return None
    agrees = errors[output].agrees
    agreeing = int(agrees.sum()) if len(agrees) else None
    infinite = int(np.isinf(errors[output].noise).sum())
    count = len(choice.runs)
    return Loss(output, decibels[output], count, agreeing, infinite, is_drowned=output in drowned)


def explain(
    loss: Loss,
    findings: Sequence[Finding],
    evidence: Evidence,
    planner: Planner,
    accepts: Accepts,
) -> tuple[Loss, tuple[Finding, ...]]:
    """Say where most is lost, and measure what keeping nodes in float regains.

    Args:
        loss: What is lost.
        findings: What was found, worst first.
        evidence: What is known of the plan.
        planner: Makes plans to compare with.
        accepts: With which options a plan is written and runs: what is offered must be.

    Returns:
        The loss with its place; and the findings, of which the one that explains it is the first
        and has the nodes to keep in float for its first remedy, with the gain, where that helps.
        Where samples are surely wrong, nothing is measured.
    """
    # Layers behind wrong inputs lose for another reason.
    if any(each.cause in _OF_OTHERS and each.severity > 1 for each in findings):
        return loss, tuple(findings)
    from intact.analyze.diagnose.arithmetic import OF_SUMS  # with much else

    cause = next((each for each in findings if each.cause not in _OF_OTHERS), None)
    of_sums = cause is not None and cause.cause in OF_SUMS
    cause = cause or _finding_of_layers(loss, evidence)
    losing = _losing_nodes(cause) if of_sums else set[str]()
    ranked = evidence.costs.ranked(loss.output)
    name = cause.node if of_sums else ranked[0].name if ranked else ""
    if name:
        node = evidence.plan.graph.node(name)
        loss = replace(loss, node=name, op_type=node.op_type)
    others = [each for each in findings if each is not cause]
    cause, others = _take_measured_gain(cause, others)
    # A remedy that mends it is known: keeping nodes in float would only cost more.
    if loss.decibels + (cause.gain or 0.0) >= LOST_DB > loss.decibels:
        return loss, (cause, *others)
    # The smallest sets come first, so that no more stays float than is needed.
    candidates = (*([tuple(sorted(losing))] if losing else []), *_sets(evidence, loss.output))
    best = max(loss.decibels + (cause.gain or 0.0), 0.0)  # less than the noise is nothing
    for names in candidates:
        plan = _plan_or_none(planner, names)
        if plan is None:
            continue
        regained = _measure(plan, evidence.plan_runs).get(loss.output, math.inf)
        if regained >= MOST_DB or regained < best + TOLD_DB:
            continue  # nothing before the output is left quantized
        options = accepts(plan)
        # No format that was asked for writes it, or its runtime refuses it.
        if options is None:
            continue
        best = regained
        cause = _offer(cause, names, options, best - loss.decibels)
        if best >= LOST_DB:
            break
    return loss, (cause, *others)


def _take_measured_gain(cause: Finding, others: Sequence[Finding]) -> tuple[Finding, list[Finding]]:
    """Give a finding the remedy of another that was measured, if it is of the same cause."""
    gains = [each for each in others if each.cause == cause.cause and each.measured]
    better = max(gains, key=lambda each: each.gain or 0.0, default=None)
    if better is None:
        return cause, list(others)
    remedies = (*better.remedies, *(each for each in cause.remedies if each not in better.remedies))
    found = replace(cause, remedies=remedies, gain=better.gain, measured=better.measured)
    return found, [each for each in others if each is not better]


def _finding_of_layers(loss: Loss, evidence: Evidence) -> Finding:
    """Say that no quantizer stands out: rounding is what is left."""
    from intact.analyze.diagnose.costliest import at_costliest  # with much else
    from intact.analyze.diagnose.findings import Finding

    evidence_of = f"no single fault explains what output {loss.output!r} loses"
    return at_costliest(Finding("rounding", evidence_of, 1.0), evidence, loss.output)


def _offer(
    finding: Finding, names: Sequence[str], options: Mapping[str, str], gain: float
) -> Finding:
    """Return the finding with nodes in float for its first remedy, and what that gains."""
    from intact.analyze.diagnose.findings import SIMULATION, Remedy  # with much else

    others = tuple(each for each in finding.remedies if each.measured != SIMULATION)
    first = Remedy({"keep_float": list(names), **options}, measured=SIMULATION)
    return replace(finding, remedies=(first, *others), gain=gain, measured=SIMULATION)


def _disagrees(powers: Powers) -> bool:
    """Tell whether fewer than 95 % of the decisions agree, by more than chance."""
    count, same = len(powers.agrees), int(powers.agrees.sum())
    # The exact binomial: with eight samples no approximation holds.
    at_most = (
        math.comb(count, k) * AGREEING**k * (1 - AGREEING) ** (count - k) for k in range(same + 1)
    )
    return count > 0 and sum(at_most) < _CHANCE


def _drowned_outputs(choice: Choice) -> set[str]:
    """Return the outputs of scores in which samples differ less than noise changes them.

    A score of opinions is about 3 for all samples: 17 dB may be all that tells them apart.
    """
    runs, found = choice.runs, set[str]()
    if len(runs) < _FEWEST:
        return found
    for name, powers in choice.errors.outputs.items():
        # Outputs of classes are judged by their decisions.
        if len(powers.signal) != len(runs) or len(powers.agrees):
            continue
        parts = [
            rows_of(outputs[name], count)
            for (_, count), outputs in zip(runs.batches, runs.outputs(), strict=True)
        ]
        sizes = {part.shape[1] for part in parts}
        if len(sizes) > 1 or max(sizes) > _SCORES:
            continue  # no scores: sequences, or the logits of each of their tokens
        rows = np.concatenate(parts).astype(np.float64)
        spread = float(np.square(rows - rows.mean(axis=0)).sum())
        if 0 < spread < float(powers.noise.sum()):
            found.add(name)
    return found


def _losing_nodes(cause: Finding) -> set[str]:
    """Return the nodes whose sums the target loses."""
    kept = (name for each in cause.remedies for name in each.options.get("keep_float", ()))
    return {cause.node, *kept}


def _sets(evidence: Evidence, output: str) -> Iterator[tuple[str, ...]]:
    """Yield the costliest layer, then those that make more and more of the costs.

    A tensor stays float where all nodes around its quantizers do.
    """
    from intact.analyze.layer_costs import ONE  # with much else

    plan, costs = evidence.plan, evidence.costs
    order = [str(node.name) for node in plan.graph.nodes]
    quantized = plan.quantized_nodes
    around = _neighbours(plan)
    before: set[str] = set()
    for number, layers in enumerate(costs.sets(output)):
        own = {name for each in layers for name in each.nodes}
        wider = own | {name for each in own for name in around.get(each, ())}
        is_single = not number
        if is_single and costs.share(layers[0], output) < ONE:
            continue  # it gains little by itself
        for names in (own, wider) if is_single else (wider,):
            # Sets grow; one that keeps all in float is no quantization.
            if names > before and len(names) < quantized:
                before = names
                yield tuple(name for name in order if name in names)


def _neighbours(plan: QuantizedGraph) -> dict[str, set[str]]:
    """Return the quantized nodes that write or read what a node's quantizers quantize, by node."""
    from intact.program.lower.chains import Points, chains  # with much else

    # A fused chain is float as a whole or not at all.
    chain_of = {node: chain for chain in chains(plan, Points.of(plan)) for node in chain}
    found: dict[str, set[str]] = {}
    for point in quantization_points(plan):
        if point.is_constant:
            continue
        writer = point.value.producer()
        readers = [node for node, _ in plan.graph.consumers(point.value)]
        ends = [*([] if writer is None else [writer]), *readers]
        names = {str(n.name) for each in ends for n in chain_of[each] if plan.is_quantized(n)}
        for name in names:
            found.setdefault(name, set()).update(names)
    return found


def _plan_or_none(planner: Planner, names: Sequence[str]) -> QuantizedGraph | None:
    """Plan with these nodes in float; None where a target has no such plan."""
    try:
        return planner(names)
    except IntactError:
        return None


def _measure(plan: QuantizedGraph, runs: FloatRuns) -> Mapping[str, float]:
    """Simulate a plan, and return the decibels of the outputs."""
    return runs.simulated(plan).decibels
