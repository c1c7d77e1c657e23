"""Equalizes a net of which an output is lost, where some channel is much larger than the others.

Equalization computes the same, and costs a net of convolutions without gates nothing when it is
deployed. So it is tried though nobody asks for it: where an output is lost, a channel in front of a
layer takes most of its tensor's range, a detector does not find all the same, and there is time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from intact.analyze.detected import found_by
from intact.analyze.diagnose.registry import PER_ELEMENT, SESSION
from intact.calibrate.choice import Choice, elements_of
from intact.calibrate.huge import HugePart, huge_parts
from intact.calibrate.statistics import Statistics
from intact.calibrate.tail import UNLIKE
from intact.errors import IntactError
from intact.graph import Graph
from intact.improve.rewrite.equalize import tensors_of
from intact.improve.rewrite.ties import Ties
from intact.limits import CHOSEN, DETECTED, LOST_DB, TOLD_DB, UNASKED_SECONDS
from intact.placement.huge import EQUALIZE, EQUALIZED, note_gain, worst_db
from intact.plan import NoteKind
from intact.results.job import Job, Scaled

_UNDO = "--preset fast leaves it out"
_PLANS = 4
"""Models that are made of each block: what leads to it, it, and it equalized by two strengths."""


def equalize_lost(
    job: Job, scaled: Scaled, statistics: Statistics, equalized: Callable[[], Scaled]
) -> Job:
    """Return the job that is equalized, where that gains; else the job itself.

    Args:
        job: What is made.
        scaled: Its plan with scales.
        statistics: The statistics of the tensors that the plan needs.
        equalized: Equalizes the model, and gives its plan scales.
    """
    choice = scaled.choice
    asked = any(each.name == EQUALIZE.name for each in job.requests)
    if choice is None or asked or not job.adds_passes or worst_db(choice) >= LOST_DB:
        return job
    parts = _outliers(job.plan.graph, statistics, choice)
    # Boxes in another order are noise in decibels, and no loss.
    if not parts or ((found := found_by(choice)) is not None and found.like >= DETECTED):
        return job
    with contextlib.suppress(IntactError):
        after = equalized().choice
        after = after if after is None else after.on(choice.runs)
        if after is not None and _gains(after, choice):
            note = note_gain(parts, EQUALIZED, worst_db(after), choice, NoteKind.CALIBRATION, _UNDO)
            plan = job.plan.with_notes((note,))
            requests = (EQUALIZE, *job.requests)
            return msgspec.structs.replace(job, plan=plan, requests=requests)
    return job


def _gains(after: Choice, before: Choice) -> bool:
    lost = after.errors.loses(before.errors)
    return not lost and worst_db(after) > worst_db(before) + TOLD_DB


def _outliers(graph: Graph, statistics: Statistics, choice: Choice) -> list[HugePart]:
    """Find channels that equalization may move, and that are much larger than the others.

    None where it would take longer than what nobody asked for may.
    """
    ties = Ties.of(graph)
    blocks = len(set(ties.blocks[ties.blocks >= 0].tolist()))
    samples = min(statistics.samples, CHOSEN)
    each = samples * elements_of(statistics) * PER_ELEMENT + _PLANS * SESSION
    if blocks * each > UNASKED_SECONDS:
        return []
    names = [tensor.name for tensor in tensors_of(ties)]
    parts = huge_parts(graph, names, choice.runs, UNLIKE)
    return [part for part in parts if part.kind == "channel"]
