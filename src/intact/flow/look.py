"""Looks at a new result for what is lost and odd, within a small budget: the last stage."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from intact.analyze.diagnose.evidence import Calibrated, Evidence
from intact.analyze.diagnose.loss import Loss, explain, find_loss
from intact.analyze.diagnose.registry import Inquiry, tries_are_short
from intact.analyze.verdict import Measured, Verdict, keeps_enough, verdict
from intact.calibrate.assign import assign
from intact.calibrate.outputs import FloatRuns
from intact.calibrate.statistics import Statistics
from intact.errors import IntactError
from intact.limits import LOST_DB, QUICK, USUAL_DB, WELL_DB
from intact.plan import QuantizedGraph
from intact.plan.float16 import with_float32_of
from intact.results.job import Job

if TYPE_CHECKING:
    from intact.analyze.diagnose.findings import Finding
    from intact.calibrate.choice import Choice
    from intact.data.metric import Compared
    from intact.data.preprocess import Preprocess
    from intact.results.job import Scaled
    from intact.results.result import Result


_OF_JOINED = 3
"""Axes of an output that has boxes and scores: images, places, numbers."""


class CalibrationSamples(NamedTuple):
    """What a calibration keeps of its samples.

    Attributes:
        runs: Some of them.
        known: What only its pass knows.
        preprocess: The steps that prepared them.
        is_drawn: Whether they were drawn.
        threads: Number of threads of the runtime; 0 takes all cores.
    """

    runs: FloatRuns
    known: Calibrated
    preprocess: Preprocess
    is_drawn: bool
    threads: int


class PlanFindings(NamedTuple):
    """What was found before files are written.

    Attributes:
        loss: What an output loses, where that is much.
        findings: What was found, worst first.
        inquiry: Asks further; None where there were no samples.
        detected: How the detections agree with the float model's, where an output has too many dB
            lost to be called well; None of what is no detector.
    """

    loss: Loss | None = None
    findings: tuple[Finding, ...] = ()
    inquiry: Inquiry | None = None
    detected: Compared | None = None


def look_at_samples(seen: CalibrationSamples, statistics: Statistics) -> tuple[Finding, ...]:
    """Judge the samples of a calibration, before there is a plan."""
    evidence = Evidence(
        seen.runs, statistics=statistics, calibrated=seen.known, is_drawn=seen.is_drawn
    )
    return Inquiry(evidence, seconds=QUICK).ask()


def look_at_plan(
    job: Job,
    scaled: Scaled,
    seen: CalibrationSamples | None,
    signs: Sequence[Finding],
    run: Callable[[Result], object],
) -> PlanFindings:
    """Look what a plan loses, and at what.

    Args:
        job: What is made.
        scaled: Its plan with scales.
        seen: The samples; None where there are none.
        signs: What was found of them.
        run: Runs a result once; raises where its runtime refuses it.
    """
    statistics, given = scaled.statistics, scaled.given
    if scaled.choice is None or statistics is None or seen is None:
        return PlanFindings()
    choice = _judged_on_enough(scaled.choice, seen.runs)
    # A pass may have rewritten the graph; then plans to compare with are made on that one.
    graph = None if choice.plan.graph is job.plan.graph else choice.plan.graph

    def replan(name: str | None, other: Statistics | None) -> QuantizedGraph:
        method, tables = choice.method, given
        if name is not None:
            method = msgspec.structs.replace(choice.method, activations=name, options={})
            # A method decides about all scales: given ones would hide what it does.
            tables = None
        plan = with_float32_of(job.keeping((), graph), choice.plan)
        return assign(plan, other or statistics, method, tables)

    def keeping(names: Sequence[str]) -> QuantizedGraph:
        plan = with_float32_of(job.keeping(names, graph), choice.plan)
        return assign(plan, statistics, choice.method, given)

    def accepts(plan: QuantizedGraph) -> Mapping[str, str] | None:
        # A plan with floats may need another form of the file, which the remedy then names.
        for options, deployment in job.deployment.ways():
            with contextlib.suppress(IntactError):
                run(deployment.result(plan, statistics, seen.preprocess))
                return options
        return None

    detected = _detections(choice)
    loss = None if detected is not None and keeps_enough(detected) else find_loss(choice)
    evidence = Evidence(
        seen.runs,
        seen.preprocess,
        statistics,
        seen.known,
        is_drawn=seen.is_drawn,
        planned=choice.plan,
        tried=choice.runs,
        known=choice.errors,
        replan=replan,
        is_lost=loss is not None,
        threads=seen.threads,
    )
    # The samples were judged before there was a plan.
    inquiry = Inquiry(evidence, seconds=QUICK, asked=("samples",), found=signs)
    findings = inquiry.ask()
    if loss is not None and tries_are_short(evidence):
        loss, findings = explain(loss, findings, evidence, keeping, accepts)
        # Anew, because the findings now have their measured remedies.
        inquiry = Inquiry(evidence, seconds=QUICK, asked=inquiry.asked, found=findings)
    inquiry.evidence = evidence.written()  # without simulators, which have copies of weights
    return PlanFindings(loss, findings, inquiry, detected)


def _judged_on_enough(choice: Choice, kept: FloatRuns) -> Choice:
    """Measure a plan on more samples, where few of them leave open whether it loses answers.

    On twice as many each time, as long as these are worse than those before.
    """
    level = _level(choice)
    has_answers = any(len(each.agrees) for each in choice.errors.outputs.values())
    if not has_answers or not LOST_DB <= level < USUAL_DB:
        return choice
    while len(choice.runs) < len(kept):
        before, level = level, _level(choice := choice.on(kept.first(2 * len(choice.runs))))
        if not LOST_DB <= level < before:
            break
    return choice


def _level(choice: Choice) -> float:
    return min(choice.errors.decibels.values(), default=WELL_DB)


def _detections(choice: Choice) -> Compared | None:
    """Compare what a detector finds, where decibels do not tell that it is well; else None.

    Those of one output that has boxes and scores are the boxes', which are hundreds of times as
    large.
    """
    outputs = choice.plan.graph.outputs
    is_joined = len(outputs) == 1 and len(outputs[0].shape or ()) == _OF_JOINED
    if _level(choice) >= WELL_DB and not is_joined:
        return None
    from intact.analyze.detected import compared_detections  # few have boxes

    return compared_detections(choice)


def verdict_of(looked: PlanFindings, findings: Sequence[Finding]) -> Verdict | None:
    """Judge a result by what calibration measured; None where it had no samples.

    Args:
        looked: What was found before files were written.
        findings: All that was found, worst first.
    """
    if looked.inquiry is None:
        return None
    evidence, loss = looked.inquiry.evidence, looked.loss
    errors = evidence.errors
    agrees = next((each.agrees for each in errors.outputs.values() if len(each.agrees)), None)
    measured = Measured(
        samples=len(evidence.plan_runs),
        agreement=None if agrees is None else 100 * float(agrees.mean()),
        decibels=min(errors.decibels.values(), default=None),
        equal=min((each.share for each in errors.choices.values()), default=None),
        metrics={} if looked.detected is None else dict(looked.detected.figures),
        intervals={} if looked.detected is None else dict(looked.detected.intervals),
        where="" if loss is None else loss.node,
        is_drawn=evidence.is_drawn,
        untelling=next((e.evidence for e in findings if e.cause == "calibration_samples"), ""),
    )
    return verdict(measured.explained_by(findings))


def look_at_runtime(
    looked: PlanFindings, result: Result, spent: float | None
) -> tuple[Finding, ...]:
    """Look what the runtime makes of what was written; return all that was found.

    Args:
        looked: What was found before.
        result: The result that was written.
        spent: Seconds that making it took; None where it is not to be timed.
    """
    if looked.inquiry is None:
        return looked.findings
    from intact.analyze.diagnose.deployed import runtime_of

    evidence = looked.inquiry.evidence
    return looked.inquiry.ask(
        evidence.written(result.plan, runtime=runtime_of(result), spent=spent)
    )
