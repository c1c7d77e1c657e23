"""Handles channels and tokens that are hundreds of times larger than the others of their tensor.

Three things may help: equalization, which moves the magnitude into the weights before and behind
where nothing between bends it; 16 bits, where the target has them; float for the layers around.
Each is simulated on the samples that the scales were chosen on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import msgspec

from intact.analyze.detected import found_by
from intact.calibrate.choice import Choice
from intact.calibrate.huge import (
    HugePart,
    group_around,
    huge_parts,
    wide_tensors,
    widened_places,
)
from intact.calibrate.statistics import Statistics
from intact.errors import IntactError
from intact.improve.passes import Request
from intact.limits import DETECTED, MOST_DB, TOLD_DB
from intact.placement.heads import UNDO, is_held
from intact.plan import Note, NoteKind
from intact.plan.topology import beside_huge
from intact.results.job import Job, Scaled

EQUALIZE = Request("equalize")
EQUALIZED = "channels are equalized"
_ENOUGH = 0.9
"""Part of what the best way regains that a cheaper one is to regain."""


class _Way(msgspec.Struct, frozen=True):
    """One way to handle it.

    Attributes:
        job: What is made then.
        scaled: Its plan with scales.
        decibels: Signal to noise of the worst output.
        what: What is done, in words.
    """

    job: Job
    scaled: Scaled
    decibels: float
    what: str


def handle_huge(
    job: Job,
    scaled: Scaled,
    statistics: Statistics,
    rescale: Callable[[Job], Scaled],
    equalized: Callable[[], Scaled],
) -> tuple[Job, Scaled]:
    """Return the job, and its plan with scales, that loses least around huge channels and tokens.

    Args:
        job: What is made.
        scaled: Its plan with scales.
        statistics: The statistics of the tensors that the plan needs.
        rescale: Gives the plan of a job its scales.
        equalized: Equalizes the model, and gives its plan scales.

    Returns:
        The job itself where there is no such channel or token, where nothing gains 1 dB without a
        loss on another output, or where the formats cannot hold it.
    """
    choice = scaled.choice
    if choice is None:
        return job, scaled
    names = wide_tensors(job.plan, statistics)
    parts = huge_parts(job.plan.graph, names, choice.runs)
    # Boxes in another order are noise in decibels, and no loss.
    if not parts or ((seen := found_by(choice)) is not None and seen.like >= DETECTED):
        return job, scaled
    ways = [
        way
        for way in _ways(job, parts, scaled, choice, rescale, equalized)
        if way.decibels > worst_db(choice) + TOLD_DB and is_held(way.job, way.scaled.plan)
    ]
    best = max((way.decibels for way in ways), default=0.0) - worst_db(choice)
    # Cheapest first: that regains nearly as much as the best is taken.
    for way in ways:
        if way.decibels - worst_db(choice) >= _ENOUGH * best:
            note = note_gain(parts, way.what, way.decibels, choice, NoteKind.HEAD, UNDO)
            plan = way.job.plan.with_notes((note,))
            found = msgspec.structs.replace(way.job, plan=plan)
            return found, way.scaled._replace(plan=way.scaled.plan.with_notes((note,)))
    return job, scaled


def _ways(
    job: Job,
    parts: Sequence[HugePart],
    before: Scaled,
    choice: Choice,
    rescale: Callable[[Job], Scaled],
    equalized: Callable[[], Scaled],
) -> Iterator[_Way]:
    """Yield the ways that can be planned, cheapest first; none that costs another output."""
    tensors = [part.tensor for part in parts]
    asked = any(each.name == EQUALIZE.name for each in job.requests)

    def equalizing() -> tuple[Job, Scaled, str]:
        requests = job.requests if asked else (EQUALIZE, *job.requests)
        return msgspec.structs.replace(job, requests=requests), equalized(), EQUALIZED

    def widened() -> tuple[Job, Scaled, str]:
        given = job.planner.overrides
        if given is not None and given.activation_bits is not None:
            raise IntactError("all activations have the width that the user gives")
        places = widened_places(job.plan.graph, tensors)
        changed = job.with_bits(places)
        return changed, rescale(changed), f"{len(places)} tensor(s) have 16 bits"

    def in_float() -> tuple[Job, Scaled, str]:
        names = group_around(job.plan, tensors)
        if not names:
            raise IntactError("the layers around are most of the network")
        changed = job.in_float(names, None, beside_huge)
        more = f" and {len(names) - 1} node(s) around it stay" if len(names) > 1 else " stays"
        return changed, rescale(changed), f"{names[0]}{more} float"

    for way in (equalizing, widened, in_float):
        with contextlib.suppress(IntactError):
            changed, scaled, what = way()
            if scaled.choice is None:
                continue
            found = scaled.choice.on(choice.runs)
            if way is equalizing:
                scaled = before  # the pass runs with the others, later
            if not found.errors.loses(choice.errors):
                yield _Way(changed, scaled, worst_db(found), what)


def worst_db(choice: Choice) -> float:
    """Return the signal to noise of the worst output, dB."""
    return min(choice.errors.decibels.values(), default=MOST_DB)


def note_gain(
    parts: Sequence[HugePart], what: str, decibels: float, before: Choice, kind: NoteKind, undo: str
) -> Note:
    """Say in one line what was found, what is done, and what that gains.

    Args:
        parts: The huge channels and tokens.
        what: What is done.
        decibels: The signal to noise of the worst output with it.
        before: What there was without.
        kind: Of the note.
        undo: How to leave it out.
    """
    first = max(parts, key=lambda part: part.reach / part.usual)
    more = f" ({len(parts)} tensors have such)" if len(parts) > 1 else ""
    message = (
        f"{first}{more}: {what}, and the worst output has {decibels:.1f} dB of signal to "
        f"noise instead of {worst_db(before):.1f}"
    )
    maker = before.plan.graph.value(first.tensor).producer()
    return Note(kind, "" if maker is None else str(maker.name), message, undo)
