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
from intact.data.detections import LIKE, DetectionMetric
from intact.data.metric import Compared, OutputRecord, Outputs
from intact.engines.simulate import Simulator
from intact.errors import IntactError
from intact.limits import CONFIDENT, DETECTED
from intact.numerics.detections import kept


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
    """

    like: float
    mistakes: npt.NDArray[np.int64]

    def loses(self, before: Found) -> bool:
        """Tell whether more is missed or added than by another plan, beyond samples' chance."""
        return exceeds_by_more_than_chance(self.mistakes, before.mistakes)

    def is_better(self, before: Found) -> bool:
        """Tell whether boxes and scores are nearer to float's, and nothing more is missed."""
        return self.like > before.like + 100 - DETECTED and not self.loses(before)


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
        like = metric.compare(in_float, quantized, {}).figures[LIKE][1]
        wanted, found = (metric.detections(each, in_float) for each in (in_float, quantized))
        missed, added = (kept(*each, CONFIDENT) for each in ((found, wanted), (wanted, found)))
        return Found(like, np.asarray(missed[0] - missed[1] + added[0] - added[1]))
    return None


def loses_detections(choice: Choice, before: Choice) -> bool:
    """Tell whether a plan misses or adds more detections than another, beyond samples' chance.

    Args:
        choice: The plan.
        before: The other, of the same outputs on the same samples.

    Returns:
        False for what is no detector by its outputs: nothing is run for others.
    """
    one = found_by(choice)
    other = None if one is None else found_by(before)
    return one is not None and other is not None and one.loses(other)


def _outputs(choice: Choice) -> tuple[Outputs, Outputs]:
    """Return the outputs of the float model and of a plan, on its samples."""
    simulator = choice.simulator or Simulator(choice.plan, threads=1)
    in_float, quantized = OutputRecord(), OutputRecord()
    for (feeds, count), outputs in zip(choice.runs.batches, choice.runs.outputs(), strict=True):
        size = sample_count(feeds)
        in_float.add(outputs, size, count)
        quantized.add(simulator.run(feeds, plan=choice.plan)[0], size, count)
    return in_float.outputs(), quantized.outputs()
