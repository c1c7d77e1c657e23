"""Carries out ``intact diagnose``: opens the samples, and words remedies as commands.

`diagnose` reads a result, measures it (`Evidence`), has it checked (`diagnosis_of`), and tries
which remedies help. So the finding "2 % of the values of tensor x are clipped" with the remedy
``{"method": "minmax"}`` becomes ``intact quantize model.onnx --data images --method minmax``, with
the decibels that it gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from intact.analyze.diagnose.calibration_samples import calibration_findings
from intact.analyze.diagnose.costliest import suspected_for_bits
from intact.analyze.diagnose.deployed import products_in_float, runtime_of
from intact.analyze.diagnose.diagnosis import (
    LONGER,
    Diagnosis,
    decibels_on,
    diagnosis_of,
    first_runs,
)
from intact.analyze.diagnose.evidence import Evidence
from intact.analyze.diagnose.findings import Finding, Remedy
from intact.analyze.diagnose.rehearsal import Rehearsal
from intact.analyze.diagnose.remedies import TriedRemedies, options_that_made, with_command
from intact.calibrate.assign import assign
from intact.calibrate.choice import sample_count
from intact.calibrate.collect import collect
from intact.calibrate.method import Method
from intact.calibrate.outputs import FloatRuns
from intact.calibrate.statistics import Statistics
from intact.data.progress import begin
from intact.data.stream import Samples
from intact.errors import DataError
from intact.graph import Graph
from intact.limits import DRAWN, TOLD_DB
from intact.plan import QuantizedGraph
from intact.recipe.reports import DiagnoseOptions
from intact.results.preprocessing import steps_for
from intact.results.result import Result
from intact.results.samples import open_for_result
from intact.results.sources import begin_reading, load_result

_OBSERVED = 32
"""Samples on which tensors are observed that only a remedy quantizes, or whose ranges are compared.
"""


def diagnose(options: DiagnoseOptions) -> Diagnosis:
    """Find out what is wrong with a result.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    begin_reading(options.result, options.progress)
    loaded = load_result(options.result)
    more = None  # opens more samples of the same data, where their number was limited
    if options.data is None:
        # Without data something is said nevertheless: inputs drawn from the histograms of the
        # calibration.
        samples, preprocess = loaded.draw_samples(DRAWN), loaded.preprocess
    else:
        preprocess = steps_for(options, options.data, loaded.preprocess)
        opened = partial(open_for_result, options, options.data, loaded, labels=options.labels)
        samples = opened(limit=options.samples)
        if options.samples is not None:
            more = partial(opened, limit=LONGER * options.samples)
    begin(options.progress, "diagnosing")
    runs = _runs_of(loaded, samples, options.threads)
    evidence = Evidence(
        runs,
        preprocess,
        loaded.statistics,
        samples=samples,
        more=more,
        is_drawn=options.data is None,
        planned=loaded.plan,
        replan=partial(_replan, loaded),
        runtime=runtime_of(loaded, products_in_float(loaded, threads=options.threads)),
        threads=options.threads,
    )
    found = diagnosis_of(evidence, layers=options.layers)
    found_here = [_offer_these_samples(each, options.data) for each in found.findings]
    # The options of the `quantize` that made the result, and the passes that improved it.
    made_by, improved = options_that_made(loaded), loaded.plan.provenance.improve
    begin(options.progress, "trying remedies")
    rehearsal = Rehearsal(loaded, made_by, _Trial(runs, samples, options.threads))
    if options.seconds is None:
        findings = tuple(with_command(each, made_by, improved, rehearsal) for each in found_here)
    else:
        tried = TriedRemedies(options, loaded, samples, seconds=options.seconds)
        findings = tuple(tried.best(each, made_by, rehearsal) for each in found_here)
    # No check found a cause: then layers of fewer bits than most are a guess, which is kept only
    # where more bits are measured to help.
    if not findings and options.data is not None:
        sure = Rehearsal(loaded, made_by, _Trial(runs, samples, options.threads), is_sure=True)
        offered = (with_command(e, made_by, improved, sure) for e in suspected_for_bits(evidence))
        findings = tuple(each for each in offered if (each.gain or 0.0) >= TOLD_DB)
    unused = _unused_labels(loaded, samples)
    notes = (*found.notes, f"labels are not used: {unused}") if unused else found.notes
    return msgspec.structs.replace(found, findings=findings, notes=notes)


def unlike_samples(result: Result, samples: Samples, data: object) -> Finding | None:
    """Tell whether calibration saw too few samples, or others than these, with what mends it.

    Args:
        result: The result.
        samples: Others, prepared as for the calibration.
        data: Where they come from.
    """
    if result.statistics is None:
        return None
    seen = calibration_findings(result.plan, result.statistics, samples.first(_OBSERVED))
    made_by, improved = options_that_made(result), result.plan.provenance.improve
    offered = (_offer_these_samples(each, data) for each in seen)
    return next((with_command(each, made_by, improved) for each in offered), None)


def _replan(result: Result, name: str | None, statistics: Statistics | None) -> QuantizedGraph:
    """Return the plan of a result with the scales of another method; as it is for None."""
    if name is None:
        return result.plan
    weights = result.plan.provenance.weight_method or None
    method = Method.of(result.plan.target, name, weights)
    return assign(result.plan, statistics or result.statistics, method)


class _Trial:
    """Simulates plans for the model of a result, on the samples that it is diagnosed on."""

    def __init__(self, runs: FloatRuns, samples: Samples, threads: int) -> None:
        self._runs, self._threads = runs, threads
        self._samples = replace(samples, progress=None)

    def decibels(self, plan: QuantizedGraph) -> float:
        """Return the decibels of the worst output."""
        return min(decibels_on(plan, self._runs).values(), default=0.0)

    def observe(self, graph: Graph, tensors: Sequence[str]) -> Statistics:
        """Observe tensors on some of the samples."""
        return collect(graph, self._samples.first(_OBSERVED), tensors, threads=self._threads)


def _runs_of(result: Result, samples: Samples, threads: int) -> FloatRuns:
    """Return the samples that all is measured on, with what the float model gives for them."""
    most = 0 if result.statistics is None else sample_count(result.statistics)
    # As many as calibration saw, so that the errors are those of the result's own ranges.
    return first_runs(result.plan, samples, most=most, threads=threads)


def _unused_labels(loaded: Result, samples: Samples) -> str:
    """Say why labels that were given are not those of the samples; "" where there is no reason."""
    try:
        labels = samples.labels()
    except DataError as error:  # or references for a metric, which a diagnosis has no use for
        return str(error)
    shape = loaded.plan.graph.outputs[0].shape
    classes = shape[1] if shape is not None and len(shape) == 2 else None
    if labels is None or not len(labels) or not isinstance(classes, int):
        return ""
    low, high = int(labels.min()), int(labels.max())
    return f"they are {low}..{high} for {classes} classes" if low < 0 or high >= classes else ""


def _offer_these_samples(finding: Finding, data: object) -> Finding:
    """Offer these samples for the calibration, where its own were too few or unlike them."""
    # An object has no words on a command line.
    if finding.cause != "calibration_samples" or not isinstance(data, str | Path):
        return finding
    these = Remedy(options={"data": str(data), "samples": None})
    return msgspec.structs.replace(finding, remedies=(these, *finding.remedies))
