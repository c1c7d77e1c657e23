"""Whether right answers are lost, by more than chance: then something is always named."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from intact.analyze.diagnose.costliest import at_costliest
from intact.analyze.diagnose.evidence import Evidence
from intact.analyze.diagnose.findings import Finding
from intact.calibrate.choice import elements_of
from intact.engines.simulate import Simulator
from intact.errors import DataError
from intact.limits import RUN_AT_ONCE

_CHANCE = 0.05
"""Probability of so many lost answers among those that changed, under which it is no chance."""
_ELEMENTS = 1 << 29
"""Elements of activations that are run at most: about four seconds for each model."""
_FEWEST = 256
"""Samples that are run at least, if there are so many."""
_SEVERITY = 0.5
"""Of what no cause explains: it comes behind those that were measured."""


def check_decisions(evidence: Evidence) -> list[Finding]:
    """Compare the answers of both models with the labels, if there are any."""
    counted = _right(evidence)
    if counted is None:
        return []
    before, after = counted
    lost, gained = int((before & ~after).sum()), int((after & ~before).sum())
    if lost <= gained or chance_of(lost, lost + gained) >= _CHANCE:
        return []
    count = len(before)
    told = (
        f"{lost} of {count} answers become wrong and {gained} right, which is more than chance: "
        f"accuracy {100 * before.mean():.2f} -> {100 * after.mean():.2f} %"
    )
    decibels = evidence.few_errors.decibels
    output = min(decibels, key=lambda name: decibels[name], default="")
    return [at_costliest(Finding("rounding", told, _SEVERITY), evidence, output)]


def chance_of(heads: int, throws: int) -> float:
    """Return the probability of so many heads or more."""
    ways = sum(math.comb(throws, each) for each in range(heads, throws + 1))
    return float(ways / (1 << throws))


def _right(
    evidence: Evidence,
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]] | None:
    """Tell which samples the float model and the plan have right; None without labels of classes.

    The first ones are run, as many as take seconds.
    """
    samples, output = evidence.samples, str(evidence.plan.graph.outputs[0].name)
    if samples is None or isinstance(samples.reader, Iterator) or not _has_labels(evidence):
        return None
    elements = 1 if evidence.statistics is None else max(elements_of(evidence.statistics), 1)
    most = max(_ELEMENTS // elements, _FEWEST)
    simulator = Simulator(evidence.plan, threads=evidence.threads)
    chosen: list[tuple[npt.NDArray[np.int64], ...]] = []
    seen = 0
    for feeds, count in samples.batches(samples.batch_size(RUN_AT_ONCE)):
        if seen >= most:
            continue  # labels are those of a whole pass
        seen += count
        scores = evidence.runs.run(feeds)[output], simulator.run(feeds)[0][output]
        if scores[0].ndim != 2 or scores[0].shape[1] < 2:
            return None
        chosen.append(tuple(each[:count].argmax(axis=1) for each in scores))
    labels = samples.labels()
    if labels is None or not chosen:
        return None
    first, second = (np.concatenate(column) for column in zip(*chosen, strict=True))
    wanted = labels[: len(first)]
    if len(wanted) != len(first):
        return None
    return np.asarray(first == wanted), np.asarray(second == wanted)


def _has_labels(evidence: Evidence) -> bool:
    try:
        return evidence.samples is not None and evidence.samples.labels() is not None
    except DataError:  # references for a metric
        return False
