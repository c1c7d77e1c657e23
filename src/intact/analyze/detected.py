"""Compares what a detector finds before and after quantizing, without being asked for it.

A box that another box of the same object takes the place of, or one query that answers for another,
is noise in decibels, and no loss.
"""

from __future__ import annotations

import contextlib

from intact.calibrate.choice import Choice
from intact.data.batching import sample_count
from intact.data.detections import DetectionMetric
from intact.data.metric import Compared, OutputRecord
from intact.engines.simulate import Simulator
from intact.errors import IntactError


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
    simulator = choice.simulator or Simulator(choice.plan, threads=1)
    in_float, quantized = OutputRecord(), OutputRecord()
    for (feeds, count), outputs in zip(choice.runs.batches, choice.runs.outputs(), strict=True):
        size = sample_count(feeds)
        in_float.add(outputs, size, count)
        quantized.add(simulator.run(feeds, plan=choice.plan)[0], size, count)
    with contextlib.suppress(IntactError):  # the float model finds nothing on these samples
        if metric.reads(in_float.outputs()):
            found = metric.compare(in_float.outputs(), quantized.outputs(), {})
            return Compared(found.figures, found.intervals)
    return None
