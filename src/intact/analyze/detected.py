"""Compares what a detector finds before and after quantizing, without being asked for it.

A box that another box of the same object takes the place of, or one query that answers for another,
is noise in decibels, and no loss.
"""

from __future__ import annotations

import contextlib

import numpy as np
import numpy.typing as npt

from intact.calibrate.choice import Choice
from intact.calibrate.outputs import exceeds_by_more_than_chance
from intact.data.batching import sample_count
from intact.data.detections import DetectionMetric
from intact.data.metric import Compared, OutputRecord, Outputs
from intact.engines.simulate import Simulator
from intact.errors import IntactError
from intact.limits import CONFIDENT
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


def loses_detections(choice: Choice, before: Choice) -> bool:
    """Tell whether a plan misses or adds more detections than another, beyond samples' chance.

    Args:
        choice: The plan.
        before: The other, of the same outputs on the same samples.

    Returns:
        False for what is no detector by its outputs: nothing is run for others.
    """
    metric = DetectionMetric.of_model(choice.plan.graph)
    if metric is None:
        return False
    with contextlib.suppress(IntactError):
        one, other = (_mistakes(metric, each) for each in (choice, before))
        return one is not None and other is not None and exceeds_by_more_than_chance(one, other)
    return False


def _mistakes(metric: DetectionMetric, choice: Choice) -> npt.NDArray[np.int64] | None:
    """Count what is missed and what is added, by image; None where nothing can be read."""
    in_float, quantized = _outputs(choice)
    if not metric.reads(in_float):
        return None
    wanted, found = (metric.detections(each, in_float) for each in (in_float, quantized))
    missed, added = (kept(*each, CONFIDENT) for each in ((found, wanted), (wanted, found)))
    return np.asarray(missed[0] - missed[1] + added[0] - added[1])


def _outputs(choice: Choice) -> tuple[Outputs, Outputs]:
    """Return the outputs of the float model and of a plan, on its samples."""
    simulator = choice.simulator or Simulator(choice.plan, threads=1)
    in_float, quantized = OutputRecord(), OutputRecord()
    for (feeds, count), outputs in zip(choice.runs.batches, choice.runs.outputs(), strict=True):
        size = sample_count(feeds)
        in_float.add(outputs, size, count)
        quantized.add(simulator.run(feeds, plan=choice.plan)[0], size, count)
    return in_float.outputs(), quantized.outputs()
