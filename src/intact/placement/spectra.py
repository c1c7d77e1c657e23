"""Keeps spectra in front of a net in float where integers lose too much there.

Plans that keep more and more of what leads to logarithms and roots in float are simulated on the
samples that the scales were chosen on.
"""

from __future__ import annotations

import msgspec

from intact.calibrate.choice import Choice
from intact.calibrate.front import Front
from intact.calibrate.statistics import Statistics
from intact.limits import ENOUGH_DB, MOST_DB, TOLD_DB
from intact.placement.heads import UNDO, gains, is_held, plan_in_float
from intact.plan import Note, NoteKind
from intact.plan.given_scales import ScaleTable
from intact.plan.topology import spectral
from intact.results.job import Job


class Spectra(msgspec.Struct, frozen=True):
    """A job, and what computes spectra in it.

    Attributes:
        job: What is made.
        front: What computes them.
    """

    job: Job
    front: Front

    @staticmethod
    def of(job: Job) -> Spectra | None:
        """Find what there is to decide of a job; None for nothing."""
        front = Front.of(job.plan)
        return None if front is None else Spectra(job, front)

    def decide(self, choice: Choice, statistics: Statistics, given: ScaleTable | None) -> Job:
        """Return the job with what loses less in float.

        Args:
            choice: The plan with its scales, as the target's rules have it.
            statistics: The statistics of the tensors that the plan needs, and of the front's.
            given: Scales that need none.

        Returns:
            The job itself where all outputs have 25 dB, where nothing gains 1 dB on one without a
            loss on another, or where the target's formats cannot hold it.
        """
        job = self.job
        # Above that the spectra cannot be what is lost, and trying costs a simulation each.
        if min(choice.errors.decibels.values(), default=MOST_DB) >= ENOUGH_DB:
            return job
        best = choice
        found: tuple[str, ...] = ()
        for names in self.front.candidates():
            plan = plan_in_float(job, names, statistics, choice.method, given, spectral)
            if plan is None:
                continue
            tried = choice.changed(plan)
            gain = max(gains(best.errors, tried.errors).values(), default=0.0)
            if gain > TOLD_DB and not tried.errors.loses(best.errors) and is_held(job, plan):
                found, best = names, tried
        if not found:
            return job
        return job.in_float(found, _note(found, choice, best), spectral)


def _note(names: tuple[str, ...], before: Choice, after: Choice) -> Note:
    """Say in one line what stays float, and what that gains."""
    was, has = before.errors.decibels, after.errors.decibels
    most = max(was, key=lambda name: has.get(name, was[name]) - was[name])
    more = f" and {len(names) - 1} node(s) around it stay" if len(names) > 1 else " stays"
    message = (
        f"computes a spectrum, of which logarithms or roots read numbers of unlike size: it{more} "
        f"float, and {most!r} has {has[most]:.1f} dB of signal to noise instead of {was[most]:.1f}"
    )
    return Note(NoteKind.HEAD, names[0], message, UNDO)
