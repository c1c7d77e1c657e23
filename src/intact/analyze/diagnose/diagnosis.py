"""What is wrong with a result: all findings, worst first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace as replace_fields

from intact._text import Figures
from intact.analyze.diagnose.arithmetic import (
    SumFindings,
    computed_errors,
    sum_findings,
    target_findings,
)
from intact.analyze.diagnose.batch_norms import batch_norm_findings
from intact.analyze.diagnose.calibration_samples import calibration_findings
from intact.analyze.diagnose.findings import Finding, Remedy
from intact.analyze.diagnose.preprocessing import preprocessing_findings
from intact.analyze.diagnose.quantizers import Tensors, cut_in_calibration, quantizer_findings
from intact.analyze.diagnose.static import behind, static_findings
from intact.analyze.diagnose.weights import BEST, OF_WEIGHTS
from intact.analyze.layers import ModelErrors, model_errors
from intact.calibrate.assign import assign
from intact.calibrate.choice import MOST_DB, Errors, FloatRuns, Powers, Run
from intact.calibrate.method import Method
from intact.calibrate.observe.observer import model_of_outputs
from intact.calibrate.statistics import Statistics
from intact.data.batching import Batch, real_samples, sample_count
from intact.data.preprocess import Preprocess
from intact.data.stream import Samples
from intact.engines.session import make_session, run_session
from intact.engines.simulate import Simulator
from intact.plan import QuantizedGraph

WELL_DB = 30.0
"""Signal to noise of every output from which on a result is well: causes are not looked for."""
_CERTAIN = 0.5
"""Part of the noise that calibration explains from which on no other cause is looked for."""
_CUT = 0.01
"""Part of the values that calibration saw beyond the codes from which on clipping is no chance."""
_TRIED = 8
"""Samples on which quantizers are switched on alone."""
_BATCH = 8
_FLOAT_IS_WRONG = 2.0
"""Severity of what makes the float model itself wrong."""


class Diagnosis(msgspec.Struct, frozen=True):
    """What was found.

    Attributes:
        findings: Worst first; empty where nothing is wrong.
        decibels: Signal to quantization noise of each output on some samples, dB.
        samples: Number of those samples.
        is_drawn: Whether inputs were drawn from what calibration saw, as no data were given.
        notes: What is no fault of the result, but good to know.
        errors: Of the outputs and of each layer; None where they were not asked for.
    """

    findings: tuple[Finding, ...]
    decibels: dict[str, float]
    samples: int
    is_drawn: bool = False
    notes: tuple[str, ...] = ()
    errors: ModelErrors | None = None

    def __repr__(self) -> str:
        """Name the causes."""
        causes = ", ".join(each.cause for each in self.findings) or "nothing found"
        return f"Diagnosis({causes})"

    def _repr_html_(self) -> str:
        """Write the findings as a table for a notebook."""
        levels = ", ".join(f"{name} {level:.1f} dB" for name, level in self.decibels.items())
        title = f"SQNR on {self.samples} {'drawn ' if self.is_drawn else ''}samples: {levels}"
        rows = [
            (each.cause, each.node, each.evidence, each.remedy, _gain(each))
            for each in self.findings
        ]
        lines = () if rows else ("nothing wrong was found",)
        headings = ("cause", "node", "measured", "remedy", "gain")
        return Figures(title, headings, rows, lines).to_html()

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {
            "samples": self.samples,
            "drawn": self.is_drawn,
            "sqnr_db": self.decibels,
            "findings": [each.to_json() for each in self.findings],
            "errors": None if self.errors is None else self.errors.to_json(),
            "notes": list(self.notes),
        }


def _gain(finding: Finding) -> str:
    return "" if finding.gain is None else f"{finding.gain:+.1f} {finding.unit}"


def diagnose_plan(
    plan: QuantizedGraph,
    statistics: Statistics | None,
    samples: Samples,
    *,
    preprocess: Preprocess,
    is_drawn: bool = False,
    layers: bool = True,
    in_float: Collection[str] = (),
    deployed: Run | None = None,
    threads: int = 0,
) -> Diagnosis:
    """Find out what is wrong with a plan, its samples or its calibration.

    Args:
        plan: A plan with scales.
        statistics: What calibration saw; None where that is not known.
        samples: Prepared as the result wants them; drawn ones tell nothing of preprocessing and
            calibration, and are not asked.
        preprocess: The steps that are applied to them.
        is_drawn: Whether they were drawn.
        layers: Measure the errors of each layer too.
        in_float: Nodes with products that the runtime computes in float although they are planned
            for integers.
        deployed: Runs the deployed model in its runtime, as applications do; None where that cannot
            be done.
        threads: Of the runtime; 0 takes all cores.

    Raises:
        DataError: The samples do not fit the model.
        PlanError: An end has no scale yet.
    """
    findings: list[Finding] = []
    if not is_drawn:
        findings += preprocessing_findings(
            plan.graph, samples, preprocess=preprocess, threads=threads
        )
    runs = FloatRuns(plan.graph, _batches(samples), threads=threads)
    findings += _without_numbers(runs)
    simulator = Simulator(plan.with_exact_sums(), threads=1, switched=True)
    errors = _errors(simulator, runs)
    sums = sum_findings(plan, runs, errors, well=WELL_DB, in_float=in_float, deployed=deployed)
    decibels = dict(errors.decibels)
    if min(decibels.values(), default=WELL_DB) < WELL_DB:
        of_plan: list[Finding] = []
        if not findings:
            if statistics is not None and not is_drawn:
                of_plan += calibration_findings(plan, statistics, samples)
            if max((each.severity for each in of_plan), default=0.0) < _CERTAIN:
                seen = statistics if is_drawn else None
                of_plan += _causes(plan, runs, simulator, errors, seen)
            of_plan = of_plan or _not_finite(errors)
        told = static_findings(plan, statistics, runs, partial(_by_method, plan, statistics))
        of_plan += behind([*findings, *of_plan], told)
        findings += _beside_sums(of_plan, sums)
    findings = sorted((*findings, *sums.findings), key=lambda each: -each.severity)
    return Diagnosis(
        tuple(findings),
        dict(sums.decibels or decibels),
        len(runs),
        is_drawn,
        notes=(sums.note,) if sums.note else (),
        errors=model_errors(plan, samples, threads=threads) if layers else None,
    )


def plan_findings(plan: QuantizedGraph, simulator: Simulator, runs: FloatRuns) -> list[Finding]:
    """Find out what in a plan its outputs are lost by, whatever they lose.

    Args:
        plan: A plan with scales.
        simulator: Of it with exact sums, switched.
        runs: The samples that are tried.
    """
    errors = _errors(simulator, runs)
    found = _causes(plan, runs, simulator, errors)
    sums = target_findings(plan, runs, errors, well=WELL_DB)
    if sums is None:
        return found
    return sorted((*sums.findings, *_beside_sums(found, sums)), key=lambda each: -each.severity)


def _beside_sums(findings: list[Finding], sums: SumFindings) -> list[Finding]:
    """Weigh what the simulation loses: it is a part of what sums leave of the noise."""
    return [replace_fields(f, severity=f.severity * (1 - sums.severity)) for f in findings]


def _by_method(
    plan: QuantizedGraph, statistics: Statistics | None, name: str | None
) -> QuantizedGraph:
    """Return the plan with the scales of another method; as it is where none is named."""
    if name is None:
        return plan
    weights = plan.provenance.weight_method or None
    return assign(plan, statistics, Method.of(plan.target, name, weights))


def _errors(simulator: Simulator, runs: FloatRuns) -> Errors:
    (errors,) = runs.errors(lambda feeds: simulator.run(feeds)[0])
    return _finite(errors)


def _without_numbers(runs: FloatRuns) -> list[Finding]:
    """Say that the float model itself gives no numbers."""
    return [
        Finding(
            "preprocessing",
            f"output {name!r} of the float model is NaN or infinite on {count} of {len(runs)} "
            "samples",
            _FLOAT_IS_WRONG,
            remedies=(
                Remedy(text="look at the samples and the float model: `intact run --float`"),
            ),
        )
        for name, count in runs.without_numbers().items()
    ]


def _not_finite(errors: Errors) -> list[Finding]:
    """Say that an output is NaN or infinite, where no quantizer alone makes it so."""
    lost = next((name for name, found in errors.decibels.items() if found <= -MOST_DB), None)
    if lost is None:
        return []
    evidence = f"output {lost!r} is NaN or infinite where that of the float model is not"
    return [Finding("rounding", evidence, 1.0, remedies=(BEST,))]


def _finite(errors: Errors) -> Errors:
    """Count outputs that are NaN or infinite, where the float model's are not, as lost: -100 dB."""
    most = float(10 ** (MOST_DB / 10))

    def bounded(each: Powers) -> Powers:
        lost = most * max(float(each.signal.sum()), float(np.finfo(np.float32).tiny))
        noise = np.where(np.isinf(each.noise), lost, each.noise)
        return Powers(each.signal, noise, each.agrees)

    return Errors({name: bounded(each) for name, each in errors.outputs.items()})


def _causes(
    plan: QuantizedGraph,
    runs: FloatRuns,
    simulator: Simulator,
    errors: Errors,
    seen: Statistics | None = None,
) -> list[Finding]:
    """Name BatchNormalizations that spread channels, or else what the quantizers suffer from.

    Args:
        plan: A plan with scales.
        runs: The samples that are tried.
        simulator: Of the plan.
        errors: Of the plan on these samples.
        seen: What calibration saw, where the samples were drawn from it.
    """
    tensors = _tensors(plan, runs.batches, simulator)
    lost = quantizer_findings(plan, simulator, runs, errors, tensors)
    if seen is not None:
        lost = [each for each in lost if not _is_drawn_clipping(each, simulator, seen)]
    norms = batch_norm_findings(plan)
    is_norm = bool(norms) and not any(each.cause in OF_WEIGHTS for each in lost)
    return norms if is_norm else lost


def _is_drawn_clipping(finding: Finding, simulator: Simulator, statistics: Statistics) -> bool:
    """Tell whether drawn inputs are clipped where real ones were not: they are no pictures."""
    points = (p for p in simulator.points.values() if str(p.value.name) == finding.tensor)
    point = next(points, None)
    if finding.cause != "clipping" or point is None:
        return False
    return cut_in_calibration(point, statistics).share < _CUT


def decibels_of(plan: QuantizedGraph, samples: Samples, *, threads: int = 0) -> dict[str, float]:
    """Return each output's signal to quantization noise on the first 8 samples, dB."""
    runs = FloatRuns(plan.graph, _batches(samples), threads=threads)
    computed = computed_errors(plan, runs)
    if computed is not None:
        return dict(computed.errors.decibels)
    return dict(_errors(Simulator(plan, threads=1, switched=True), runs).decibels)


def _batches(samples: Samples) -> list[tuple[Batch, int]]:
    """Keep the first samples, for runs of the float model and of the simulation."""
    limit = _TRIED if samples.limit is None else min(_TRIED, samples.limit)
    few = replace(samples, limit=limit, progress=None)
    return [
        ({name: array.copy() for name, array in feeds.items()}, count)
        for feeds, count in few.batches(few.batch_size(min(_BATCH, limit)))
    ]


def _tensors(
    plan: QuantizedGraph, batches: Sequence[tuple[Batch, int]], simulator: Simulator
) -> Tensors:
    """Run the float model for the quantized activations."""
    names = list(dict.fromkeys(str(point.value.name) for point in simulator.points.values()))
    inputs = {str(value.name) for value in plan.graph.inputs}
    computed = [name for name in names if name not in inputs]
    session = make_session(model_of_outputs(plan.graph, computed)) if computed else None
    parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
    for feeds, count in batches:
        arrays = {name: feeds[name] for name in names if name in feeds}
        if session is not None:
            arrays |= dict(zip(computed, run_session(session, feeds, computed), strict=True))
        for name, array in real_samples(arrays, sample_count(feeds), count).items():
            parts[name].append(array)
    # Without a batch axis the first batch stands for all, as samples may differ in their shapes.
    return {
        name: np.concatenate(each) if _can_join(each) else each[0]
        for name, each in parts.items()
        if each
    }


def _can_join(arrays: Sequence[npt.NDArray[Any]]) -> bool:
    """Tell whether arrays differ in their first axis at most."""
    return arrays[0].ndim > 0 and len({array.shape[1:] for array in arrays}) == 1
