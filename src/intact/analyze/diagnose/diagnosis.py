"""Runs the checks for what is wrong with a result, and sorts the findings, worst first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from intact._text import Figures
from intact.analyze.diagnose.arithmetic import computed_errors
from intact.analyze.diagnose.costliest import at_costliest, narrower_than_most, or_in_float
from intact.analyze.diagnose.evidence import DIAGNOSED, Evidence, finite
from intact.analyze.diagnose.findings import Finding
from intact.analyze.diagnose.quantizers import Tensors, cut_in_calibration, quantizer_findings
from intact.analyze.diagnose.registry import Inquiry
from intact.analyze.diagnose.static import batch_norm_findings
from intact.analyze.diagnose.weights import BEST, OF_WEIGHTS
from intact.analyze.layer_costs import LayerCosts
from intact.analyze.layers import ModelErrors, model_errors
from intact.calibrate.choice import elements_of
from intact.calibrate.outputs import Errors, FloatRuns
from intact.calibrate.statistics import Statistics
from intact.data.batching import Batch, real_samples, sample_count
from intact.data.stream import Samples
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.errors import DataError
from intact.limits import HELD_AT_ONCE, MOST_DB, RUN_AT_ONCE
from intact.numerics.metrics import accuracy_difference
from intact.plan import QuantizedGraph

_CUT = 0.01
"""Part of the values that calibration saw beyond the codes from which on clipping is no chance."""
_ELEMENTS = 1 << 26
"""Elements of activations that are looked at, but for those of the first batch."""
Bools = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

_RUN_ELEMENTS = 1 << 29
"""Elements of activations that are run at most: about four seconds for each model."""
LONGER = 4
"""Times as much is run, of so many times as many samples, where answers differ."""
_FEWEST = 256
"""Samples that are run at least, if there are so many."""
_SEVERITY = 0.5
"""Severity of what no cause explains: it comes behind those that were measured."""


class Diagnosis(msgspec.Struct, frozen=True):
    """What was found.

    Attributes:
        findings: What is wrong, worst first; empty where nothing is.
        decibels: Signal to quantization noise of each output on some samples, dB.
        samples: Number of those samples.
        is_drawn: Whether inputs were drawn from what calibration saw, as no data were given.
        notes: What is no fault of the result, but good to know.
        errors: Errors of the outputs and of each layer; None where they were not asked for.
        costs: What layers alone cost the outputs; None where that was not measured.
    """

    findings: tuple[Finding, ...]
    decibels: dict[str, float]
    samples: int
    is_drawn: bool = False
    notes: tuple[str, ...] = ()
    errors: ModelErrors | None = None
    costs: LayerCosts | None = None

    def __repr__(self) -> str:
        """Name the causes."""
        causes = ", ".join(each.cause for each in self.findings) or "nothing found"
        return f"Diagnosis({causes})"

    def _repr_html_(self) -> str:
        """Write the findings as a table for a notebook."""
        levels = ", ".join(f"{name} {level:.1f} dB" for name, level in self.decibels.items())
        title = f"SQNR on {self.samples} {'drawn ' if self.is_drawn else ''}samples: {levels}"
        rows = [
            (each.cause, each.node, each.evidence, each.remedy, each.gained)
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


def diagnosis_of(evidence: Evidence, *, layers: bool = True) -> Diagnosis:
    """Find out what is wrong with a plan, its samples, its calibration or its runtime.

    Args:
        evidence: With a plan; drawn samples tell nothing of preprocessing and calibration.
        layers: Measure the errors of each layer too.

    Raises:
        DataError: The samples do not fit the model.
        PlanError: An end has no scale yet.
    """
    findings = Inquiry(evidence).ask()
    sums = evidence.sums
    errors = None
    if layers and evidence.samples is not None:
        errors = model_errors(
            evidence.plan,
            evidence.samples,
            most=len(evidence.plan_runs),
            costs=evidence.costs,
            threads=evidence.threads,
        )
    return Diagnosis(
        findings,
        dict(sums.decibels or evidence.errors.decibels),
        len(evidence.plan_runs),
        evidence.is_drawn,
        notes=(sums.note,) if sums.note else (),
        errors=errors,
        costs=evidence.measured_costs,
    )


def check_quantizers(evidence: Evidence) -> list[Finding]:
    """Name BatchNormalizations that spread channels, or else what the quantizers suffer from.

    What many quantizers do alike is said of the layer that costs the outputs most.
    """
    plan, simulator = evidence.plan, evidence.simulator
    tensors = _tensors(plan, evidence.few.batches, simulator)
    lost = quantizer_findings(plan, simulator, evidence.few, evidence.few_errors, tensors)
    # Drawn inputs have the ranges of real ones but not their likeness, so tensors behind them leave
    # the ranges.
    if evidence.is_drawn and evidence.statistics is not None:
        seen = evidence.statistics
        lost = [each for each in lost if not _is_drawn_clipping(each, simulator, seen)]
    norms = batch_norm_findings(plan)
    # A BatchNormalization that spreads channels is the reason of most that quantizers suffer from
    # behind it.
    if norms and not any(each.cause in OF_WEIGHTS for each in lost):
        return norms
    decibels = evidence.few_errors.decibels
    output = min(decibels, key=lambda name: decibels[name], default="")
    lost = lost or (narrower_than_most(evidence, output) if output else [])
    found = [
        at_costliest(each, evidence, output) if each.cause == "rounding" else each for each in lost
    ]
    if found and not any(each.cause == "rounding" for each in found):
        found[0] = or_in_float(found[0], evidence, output)
    return found or _not_finite(evidence.few_errors)


def check_decisions(evidence: Evidence) -> list[Finding]:
    """Compare the answers of both models with the labels, if there are any."""
    counted = _right(evidence)
    if counted is None:
        return []
    before, after = counted
    lost, gained = int((before & ~after).sum()), int((after & ~before).sum())
    count = len(before)
    # By the interval that `evaluate` judges by: neither is to say what the other denies.
    if not count or accuracy_difference(before, after).high >= 0:
        return []
    told = (
        f"{lost} of {count} answers become wrong and {gained} right, which is more than chance: "
        f"accuracy {100 * before.mean():.2f} -> {100 * after.mean():.2f} %"
    )
    decibels = evidence.few_errors.decibels
    output = min(decibels, key=lambda name: decibels[name], default="")
    return [at_costliest(Finding("rounding", told, _SEVERITY), evidence, output)]


def _right(evidence: Evidence) -> tuple[Bools, Bools] | None:
    """Tell which samples the float model and the plan have right; None without labels of classes.

    The first ones are run, as many as take seconds. Where answers differ, more are: the first ones
    may be too few to judge.
    """
    samples = evidence.samples
    if samples is None or isinstance(samples.reader, Iterator) or not _has_labels(evidence):
        return None
    found = _answers(evidence, samples, _RUN_ELEMENTS)
    if found is not None and evidence.more is not None and not np.array_equal(*found):
        samples = evidence.more()
        found = _answers(evidence, samples, LONGER * _RUN_ELEMENTS)
    labels = samples.labels()  # of the samples that were read last
    if labels is None or found is None:
        return None
    wanted = labels[: len(found[0])]
    if len(wanted) != len(found[0]):
        return None
    return np.asarray(found[0] == wanted), np.asarray(found[1] == wanted)


def _answers(
    evidence: Evidence, samples: Samples, elements: int
) -> tuple[Integers, Integers] | None:
    """Run both models on the first samples: the classes; None where an output has none.

    Args:
        evidence: With a plan.
        samples: The samples.
        elements: About how many elements of activations are run.
    """
    output = str(evidence.plan.graph.outputs[0].name)
    of_one = 1 if evidence.statistics is None else max(elements_of(evidence.statistics), 1)
    most = max(elements // of_one, _FEWEST)
    simulator = evidence.simulator
    chosen: list[tuple[Integers, ...]] = []
    seen = 0
    for feeds, count in samples.batches(samples.batch_size(RUN_AT_ONCE)):
        if seen >= most:
            continue  # labels are those of a whole pass
        seen += count
        scores = evidence.runs.run(feeds)[output], simulator.run(feeds)[0][output]
        if scores[0].ndim != 2 or scores[0].shape[1] < 2:
            return None
        chosen.append(tuple(each[:count].argmax(axis=1) for each in scores))
    if not chosen:
        return None
    first, second = (np.concatenate(column) for column in zip(*chosen, strict=True))
    return first, second


def _has_labels(evidence: Evidence) -> bool:
    try:
        return evidence.samples is not None and evidence.samples.labels() is not None
    except DataError:  # references for a metric
        return False


def _not_finite(errors: Errors) -> list[Finding]:
    """Say that an output is NaN or infinite, where no quantizer alone makes it so."""
    lost = next((name for name, found in errors.decibels.items() if found <= -MOST_DB), None)
    if lost is None:
        return []
    evidence = f"output {lost!r} is NaN or infinite where that of the float model is not"
    return [Finding("rounding", evidence, 1.0, remedies=(BEST,))]


def _is_drawn_clipping(finding: Finding, simulator: Simulator, statistics: Statistics) -> bool:
    """Tell whether drawn inputs are clipped where real ones were not: they are no pictures."""
    points = (p for p in simulator.points.values() if str(p.value.name) == finding.tensor)
    point = next(points, None)
    if finding.cause != "clipping" or point is None:
        return False
    return cut_in_calibration(point, statistics).share < _CUT


def decibels_of(plan: QuantizedGraph, samples: Samples, *, threads: int = 0) -> dict[str, float]:
    """Return each output's signal to quantization noise on the first 8 samples, dB."""
    return decibels_on(plan, first_runs(plan, samples, threads=threads))


def first_runs(
    plan: QuantizedGraph, samples: Samples, *, most: int = 0, threads: int = 0
) -> FloatRuns:
    """Run the float model of a plan on the first samples, to compare plans with.

    Args:
        plan: The plan.
        samples: The data.
        most: How many samples; 8 at least.
        threads: Batches that run side by side; 0 takes all cores.
    """
    return FloatRuns(plan.graph, _batches(samples, max(most, DIAGNOSED)), threads=threads)


def decibels_on(plan: QuantizedGraph, runs: FloatRuns) -> dict[str, float]:
    """Return each output's signal to quantization noise on some samples, dB."""
    # The integer engine where sums may be lost, which a simulation does not see.
    computed = computed_errors(plan, runs)
    if computed is not None:
        return dict(computed.errors.decibels)
    return dict(finite(runs.simulated(plan)).decibels)


def _batches(samples: Samples, most: int) -> list[tuple[Batch, int]]:
    """Keep the first samples, for runs of the float model and of the simulation."""
    few = samples.first(most)
    return [
        ({name: array.copy() for name, array in feeds.items()}, count)
        for feeds, count in few.batches(few.batch_size(HELD_AT_ONCE))
    ]


def _tensors(
    plan: QuantizedGraph, batches: Sequence[tuple[Batch, int]], simulator: Simulator
) -> Tensors:
    """Run the float model for the quantized activations."""
    names = list(dict.fromkeys(str(point.value.name) for point in simulator.points.values()))
    model = FloatModel(plan.graph, names)
    parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
    elements = 0
    for feeds, count in batches:
        if elements > _ELEMENTS:  # what is here says enough, and decoders have gigabytes of it
            break
        for name, array in real_samples(model.run(feeds), sample_count(feeds), count).items():
            parts[name].append(array)
            elements += array.size
    # Without a batch axis the first batch stands for all, as samples may differ in their shapes.
    return {
        name: np.concatenate(each) if len(each) > 1 and _can_join(each) else each[0]
        for name, each in parts.items()
        if each
    }


def _can_join(arrays: Sequence[npt.NDArray[Any]]) -> bool:
    """Tell whether arrays differ in their first axis at most."""
    return arrays[0].ndim > 0 and len({array.shape[1:] for array in arrays}) == 1
