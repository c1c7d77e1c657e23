"""Compares what a detector finds before and after quantizing, without being asked for it.

A box that another box of the same object takes the place of, or one query that answers for another,
is noise in decibels, and no loss.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intact.calibrate.choice import Choice
from intact.calibrate.outputs import exceeds_by_more_than_chance
from intact.data.batching import sample_count
from intact.data.detections import DetectionMetric
from intact.data.metric import Compared, OutputRecord, Outputs
from intact.engines.simulate import Simulator
from intact.errors import IntactError
from intact.limits import CONFIDENT, DETECTED
from intact.numerics.detections import average_precisions, kept, match


def compared_detections(choice: Choice) -> Compared | None:
    """Compare detections on the samples that a plan was chosen on, against the float model's.

    Args:
        choice: The plan with its scales.

    Returns:
        The first figure is the percent of them that are kept. None for what is no detector by its
        outputs, and where the float model finds nothing.
    """
    metric = DetectionMetric.of_model(choice.plan.graph)
    if metric is None:
        return None
    in_float, quantized = _outputs(choice)
    with contextlib.suppress(IntactError):  # the float model finds nothing on these samples
        if metric.reads(in_float):
            found = metric.compare(in_float, quantized, {})
            return Compared(found.figures, found.intervals)
    return None


class Found(NamedTuple):
    """How much of what the float model finds a plan finds again.

    Attributes:
        like: Percent of mean average precision, with float's detections as the truth.
        mistakes: What is missed and what is added, by image.
        is_all: Whether the model gives nothing else, such as masks.
    """

    like: float
    mistakes: npt.NDArray[np.int64]
    is_all: bool

    def is_better(self, before: Found) -> bool | None:
        """Tell whether a plan is better than another.

        Returns:
            False where more is missed or added, beyond samples' chance; True where that is not so,
            boxes and scores are nearer to float's, and there is nothing else; None where detections
            do not tell.
        """
        if exceeds_by_more_than_chance(self.mistakes, before.mistakes):
            return False
        return True if self.is_all and self.like > before.like + 100 - DETECTED else None


def found_by(choice: Choice) -> Found | None:
    """Compare what a plan finds with what the float model does, on the plan's samples.

    Returns:
        None for what is no detector by its outputs (nothing is run for others), and where the float
        model finds nothing.
    """
    metric = DetectionMetric.of_model(choice.plan.graph)
    if metric is None:
        return None
    with contextlib.suppress(IntactError):
        in_float, quantized = _outputs(choice)
        if not metric.reads(in_float):
            return None
        wanted, found = (metric.detections(each, in_float) for each in (in_float, quantized))
        missed, added = (kept(*each, CONFIDENT) for each in ((found, wanted), (wanted, found)))
        confident = [each.at(each.scores >= CONFIDENT) for each in wanted]
        if not any(len(each.scores) for each in confident):
            return None
        like = 100 * float(average_precisions(match(found, confident))[0].mean())
        mistakes = np.asarray(missed[0] - missed[1] + added[0] - added[1])
        read = {metric.boxes, metric.scores, metric.classes}
        return Found(like, mistakes, read.issuperset(in_float))
    return None


def finds_more(choice: Choice, before: Choice) -> bool | None:
    """Tell whether a plan is better than another of the same outputs, by what both find.

    Returns:
        As `Found.is_better`; None of what is no detector by its outputs.
    """
    one = found_by(choice)
    other = None if one is None else found_by(before)
    return None if one is None or other is None else one.is_better(other)


def _outputs(choice: Choice) -> tuple[Outputs, Outputs]:
    """Return the outputs of the float model and of a plan, on its samples."""
    simulator = choice.simulator or Simulator(choice.plan, threads=1)
    in_float, quantized = OutputRecord(), OutputRecord()
    for (feeds, count), outputs in zip(choice.runs.batches, choice.runs.outputs(), strict=True):
        size = sample_count(feeds)
        in_float.add(outputs, size, count)
        quantized.add(simulator.run(feeds, plan=choice.plan)[0], size, count)
    return in_float.outputs(), quantized.outputs()
