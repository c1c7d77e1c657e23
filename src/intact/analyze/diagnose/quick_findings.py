"""Runs the few checks that every quantization ends with, because they cost little.

Signs of wrong preprocessing, on the few samples that methods were tried on: one class for all of
them, first layers far from what BatchNormalizations remember, or steps that leave numbers far from
one, as a mean for 0..1 does where pixels are 0..255. Only where there is such a sign,
the samples are prepared in other ways, as `intact diagnose` does. Then, where an output has less
than 30 dB, what plan and statistics tell without running anything. Where calibration saw few
numbers, whether the ranges of one half of the samples serve the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.analyze.diagnose.evidence import Evidence
from intact.analyze.diagnose.findings import Finding, Remedy
from intact.analyze.diagnose.sample_signs import MORE_SAMPLES
from intact.calibrate.assign import required_tensors
from intact.calibrate.collect import collect
from intact.calibrate.outputs import Errors, FloatRuns
from intact.calibrate.statistics import Statistics
from intact.data.batching import Batch, real_samples, sample_count
from intact.data.preprocess import Preprocess
from intact.engines.session import FloatModel
from intact.graph import Graph
from intact.limits import STRANGE_DB, WELL_DB
from intact.numerics.answers import CLASSES
from intact.plan import QuantizedGraph

_FEW = 8
"""Samples that show the first signs."""
_MANY = 32
"""Samples that decide."""
_OFF = 1.0
"""Mismatch with BatchNormalizations, in their deviations, from which on it is a sign."""
_USUAL = (0.1, 10.0)
"""Root mean square of numbers that a mean and a scale are meant to make: about one."""
_FLOAT_IS_WRONG = 2.0
"""Severity of what makes the float model itself wrong."""
_FEW_NUMBERS = 1 << 22
"""Elements of all observed tensors and samples up to which halves of the samples are tried."""
_BRIGHT = 127
"""Pixels of 8 bits are brighter somewhere."""
_FEW_WEIGHTS = 1 << 24
"""Elements of a model's constants up to which they are."""
_POOR = 0.2
"""Severity of samples that do not show the ranges of others."""


def check_numbers(evidence: Evidence) -> list[Finding]:
    """Say that the float model itself gives NaN or infinities."""
    runs = evidence.runs
    text = "look at the samples and the float model: `intact run --float`"
    return [
        Finding(
            "preprocessing",
            f"output {name!r} of the float model is NaN or infinite on {count} of {len(runs)} "
            "samples",
            _FLOAT_IS_WRONG,
            remedies=(Remedy(text=text),),
        )
        for name, count in runs.without_numbers().items()
    ]


def check_raw_pixels(evidence: Evidence) -> list[Finding]:
    """Say that pixels go in as they are, where much is lost and no steps were given.

    Many networks still answer for other pixels than they were trained on, with values beyond those
    that their layers were made for: nothing in the float model's answers shows it.
    """
    if not evidence.is_lost or evidence.preprocess.mean or evidence.preprocess.scale:
        return []
    if not any(map(_are_pixels, evidence.runs.batches[0][0].values())):
        return []
    told = "pixels of 0 to 255 go in as they are: neither --normalize nor --mean was given"
    text = (
        "if the model was trained on others, as most are, say how it wants them: --normalize "
        "imagenet, 0..1 or -1..1"
    )
    return [Finding("preprocessing", told, _POOR, remedies=(Remedy(text=text),))]


def _are_pixels(array: npt.NDArray[Any]) -> bool:
    """Tell whether an input of floats has images of whole numbers up to 255."""
    from intact.analyze.diagnose.preparations import channel_axis  # looked at where much is lost

    if array.dtype != np.float32 or not array.size or channel_axis(array.shape) is None:
        return False
    is_whole = bool((array == np.rint(array)).all())
    return is_whole and array.min() >= 0 and _BRIGHT < array.max() <= 255


def is_oddly_prepared(evidence: Evidence) -> bool:
    """Tell whether the first samples have a sign of wrong preprocessing."""
    if evidence.calibrated is not None and evidence.calibrated.is_masked:
        return False
    graph, few = evidence.plan.graph, evidence.runs.first(_FEW)
    # Only where steps were given: without, any size of numbers may be meant.
    is_odd = evidence.preprocess != Preprocess() and _is_far_from_one(few)
    return is_odd or _is_one_class(few) or _mismatch(graph, few) > _OFF


def check_preprocessing(evidence: Evidence) -> list[Finding]:
    """Prepare the samples in other ways, and see which the float model wants.

    Those of a calibration are taken as they are kept; others are read anew.
    """
    from intact.analyze.diagnose.preprocessing import preprocessing_findings  # with much else

    graph, samples = evidence.plan.graph, evidence.samples
    if samples is None:
        from intact.data.sources import open_samples

        arrays = _join(evidence.runs.first(_MANY).batches)
        if arrays is None:
            return []
        samples = open_samples(arrays, graph)
    return preprocessing_findings(
        graph, samples, preprocess=evidence.preprocess, threads=evidence.threads
    )


def check_halves(evidence: Evidence) -> list[Finding]:
    """Tell whether ranges from one half of the samples serve the other."""
    statistics, replan, known = evidence.statistics, evidence.replan, evidence.calibrated
    if statistics is None or replan is None or known is None or known.is_masked:
        return []

    def by(other: Statistics) -> QuantizedGraph:
        return replan(None, other)

    return held_out_findings(evidence.plan, evidence.errors, statistics, evidence.runs, by)


def held_out_findings(
    plan: QuantizedGraph,
    errors: Errors,
    statistics: Statistics,
    runs: FloatRuns,
    replan: Callable[[Statistics], QuantizedGraph],
) -> list[Finding]:
    """Tell whether ranges from one half of the samples serve the other, where samples are few.

    What a plan loses is measured on samples that its ranges follow from. Where these have few
    numbers, others go beyond the ranges, and lose far more.

    Args:
        plan: A plan with scales.
        errors: Errors of its outputs.
        statistics: What calibration saw.
        runs: All of its samples, or some.
        replan: Makes the plan of other statistics.
    """
    count = statistics.samples
    numbers = sum(int(each.counts.sum()) for each in statistics.tensors.values())
    middle = len(runs.batches) // 2
    # All samples must be kept, since each half is calibrated on.
    if not _FEW <= count <= len(runs) or numbers > _FEW_NUMBERS or not middle:
        return []
    if not required_tensors(plan):
        return []  # stored weights alone: no range follows from samples
    stored = runs.graph.model.graph.initializers.values()
    if sum(each.const_value.size for each in stored if each.const_value) > _FEW_WEIGHTS:
        return []  # each half takes a session with all weights
    halves = runs.batches[:middle], runs.batches[middle:]
    # Each half judges the plan of the other.
    plans = [_by_statistics_of(half, plan, replan) for half in halves]
    if None in plans:
        return []
    # With the session that there is: another one would hold the weights twice.
    others = [FloatRuns(runs.graph, half, model=runs.run) for half in halves[::-1]]
    pairs = zip(others, filter(None, plans), strict=True)
    beyond = reduce(Errors.joined, (other.simulated(each) for other, each in pairs))
    seen, new = errors.decibels, beyond.decibels
    lost = [name for name in new.keys() & seen.keys() if new[name] < WELL_DB]
    worst = max(lost, key=lambda name: (seen[name] - new[name], name), default="")
    if not worst or seen[worst] - new[worst] < STRANGE_DB:
        return []
    evidence = (
        f"{count} samples are too few to show the ranges of others: with those of one half, output "
        f"{worst!r} has {new[worst]:.1f} dB of signal to quantization noise on the other half, and "
        f"{seen[worst]:.1f} dB where calibration saw all"
    )
    return [Finding("calibration_samples", evidence, _POOR, remedies=(Remedy(text=MORE_SAMPLES),))]


def _by_statistics_of(
    batches: Sequence[tuple[Batch, int]],
    plan: QuantizedGraph,
    replan: Callable[[Statistics], QuantizedGraph],
) -> QuantizedGraph | None:
    """Make a plan from these samples alone; None where they cannot be joined."""
    arrays = _join(batches)
    if arrays is None:
        return None
    from intact.data.sources import open_samples

    samples = open_samples(arrays, plan.graph)
    return replan(collect(plan.graph, samples, required_tensors(plan), threads=1))


def _is_one_class(runs: FloatRuns) -> bool:
    """Tell whether the first output is one of classes, and has the same best one every time."""
    chosen: set[int] = set()
    count = 0
    for outputs, (feeds, real) in zip(runs.outputs(), runs.batches, strict=True):
        scores = next(iter(outputs.values()))
        if scores.ndim != 2 or len(scores) != sample_count(feeds) or scores.shape[1] < CLASSES:
            return False
        chosen.update(scores[:real].argmax(axis=1).tolist())
        count += real
    return len(chosen) == 1 and count >= _FEW


def _is_far_from_one(runs: FloatRuns) -> bool:
    """Tell whether inputs of floats are much smaller or larger than normalized ones."""
    low, high = _USUAL
    floats = [a for feeds, _ in runs.batches for a in feeds.values() if a.dtype == np.float32]
    sizes = [float(np.sqrt(np.mean(np.square(each, dtype=np.float64)))) for each in floats]
    return any(0 < size < low or size > high for size in sizes)


def _mismatch(graph: Graph, runs: FloatRuns) -> float:
    """Return by how much the first layers are off what BatchNormalizations remember.

    The root mean square in deviations, as `Remembered.mismatch`; 0 where nothing is remembered.
    """
    if not graph.batch_norms and not graph.input_batch_norms:
        return 0.0
    from intact.calibrate.remembered import FIRST, SampleMoments, memories_of

    memories = dict(list(memories_of(graph).items())[:FIRST])
    model = FloatModel(graph, [*memories], threads=1)
    moments: dict[str, list[SampleMoments]] = {name: [] for name in memories}
    for feeds, real in runs.batches:
        tensors = model.run(feeds)
        for name, parts in moments.items():
            parts.append(SampleMoments.of(tensors[name], real))
    found = [SampleMoments.joined(moments[name]).mismatch(each) for name, each in memories.items()]
    return float(np.mean(found)) if found else 0.0


def _join(batches: Sequence[tuple[Batch, int]]) -> Batch | None:
    """Join the real samples of some batches; None where they have no common axis or shape."""
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    for feeds, count in batches:
        size = sample_count(feeds)
        if any(not array.ndim or len(array) != size for array in feeds.values()):
            return None
        for name, array in real_samples(feeds, size, count).items():
            parts.setdefault(name, []).append(array)
    if any(len({each.shape[1:] for each in arrays}) > 1 for arrays in parts.values()):
        return None
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}
