"""Keeps the decoding behind a net's last layers in float where integers lose too much there.

A detector joins boxes of 0 to 640 pixels with scores of 0 to 1 in one Concat, on one scale: with
eight bits nothing is left of the scores. If keeping that Concat, and what leads to it, in float
gains enough, the job says so and tells the user how to undo it.

Boxes and scores that are joined share a scale where the target has one for a join; grids, squares,
exponentials and expectations over bins need finer steps than eight bits have. Plans that keep
more and more of that in float are simulated on the samples that the scales were chosen on. What is
compared are the parts of the outputs, each by itself: noise that is small beside boxes of hundreds
of pixels may be all that is left of scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from intact.analyze.detected import Found, found_by
from intact.calibrate.assign import assign
from intact.calibrate.choice import Choice
from intact.calibrate.joined_state import JoinedState
from intact.calibrate.method import Method
from intact.calibrate.outputs import Errors, FloatRuns
from intact.calibrate.statistics import Statistics
from intact.calibrate.tail import SIGNS_OF_DECODING, Join, Tail
from intact.data.detections import DetectionMetric
from intact.data.preprocess import Preprocess
from intact.errors import IntactError
from intact.graph import Graph
from intact.graph.edit import Editor
from intact.limits import DETECTED, SAFE_DB, TOLD_DB
from intact.plan import Note, NoteKind, QuantizedGraph
from intact.plan.given_scales import ScaleTable
from intact.plan.topology import decoded
from intact.results.job import Decide, Job

UNDO = "--quantize-heads undoes it"
"""The remedy in each note: these nodes are kept float without being asked."""


class Heads(msgspec.Struct, frozen=True):
    """A job, and the nodes of its net that may be better in float.

    Attributes:
        job: The plan to be made, with all that it takes.
        tail: The nodes behind the last layers; None if they are activations at most.
        state: Inputs that are read in parts of unlike ranges; None where there are none.
    """

    job: Job
    tail: Tail | None
    state: JoinedState | None

    @staticmethod
    def of(job: Job) -> Heads | None:
        """Find the nodes of a job to decide about; None where there are none."""
        types = {node.op_type for node in job.plan.graph.nodes}
        tail = Tail.of(job.plan) if types & SIGNS_OF_DECODING else None
        state = JoinedState.of(job.plan)
        return None if tail is None and state is None else Heads(job, tail, state)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the activations whose ranges have to be known."""
        parts = [each.tensors for each in (self.tail, self.state) if each is not None]
        return tuple(name for part in parts for name in part)

    def decide(
        self, choice: Choice, statistics: Statistics, given: ScaleTable | None, threads: int
    ) -> Job:
        """Return the job that keeps in float what loses less there.

        Args:
            choice: The plan with its scales, as the target's rules have it.
            statistics: The statistics of the tensors that the plan needs, and of `tensors`.
            given: Scales that a table gives; None for none.
            threads: Threads of the runtime.

        Returns:
            The job itself where nothing gains 1 dB on some part without a loss on another, and
            nothing of unlike ranges is joined behind a choice; or where the target's formats cannot
            hold it.
        """
        joins = [] if self.tail is None else self.tail.unlike(statistics)
        found, note = self._measured(joins, choice, statistics, given, threads)
        job = self.job if note is None else self.job.in_float(found, note, decoded)
        nodes = [join.node for join in joins]
        others = () if self.tail is None else self.tail.unmeasured(nodes)
        others = tuple(name for name in others if name not in found)
        if not others:
            return job
        plan = plan_in_float(job, others, statistics, choice.method, given, decoded)
        if plan is None or not is_held(job, plan):
            return job
        return job.in_float(others, _note_unmeasured(others, joins), decoded)

    def _measured(
        self,
        joins: list[Join],
        choice: Choice,
        statistics: Statistics,
        given: ScaleTable | None,
        threads: int,
    ) -> tuple[tuple[str, ...], Note | None]:
        """Find the nodes that gain in float, as simulations show, and the note that says so."""
        job = self.job
        if not any(self._candidates(statistics, joins, self._is_detector)):
            return (), None
        judge = _Judge(job.plan.graph, self._parts, choice, threads)
        first = best = judge.judged(choice.plan)
        candidates = self._candidates(statistics, joins, first.misses)
        found: tuple[str, ...] = ()
        least = TOLD_DB
        for names in candidates:
            plan = plan_in_float(job, names, statistics, choice.method, given, decoded)
            if plan is None:
                continue
            now = judge.judged(plan)
            if now.is_better(best, least) and is_held(job, plan):
                # After the first find each further step must gain more: candidates are compared on
                # the same few samples, and the best of many looks better than it is.
                found, best, least = names, now, SAFE_DB
        return found, _note(found, joins, first, best) if found else None

    def _candidates(
        self, statistics: Statistics, joins: Sequence[Join], misses: bool
    ) -> Iterator[tuple[str, ...]]:
        """Yield names of nodes to keep in float.

        Args:
            statistics: What `decide` takes.
            joins: Those of unlike ranges.
            misses: Whether a detector does not find all that float does, by its outputs.
        """
        nodes = [join.node for join in joins]
        if self.tail is not None and (nodes or self.tail.decoders or misses):
            yield from self.tail.candidates(nodes)
        if self.tail is not None and misses and (names := self.tail.with_refined()):
            yield names
        unlike = {} if self.state is None else self.state.unlike(statistics)
        if self.state is not None and unlike:
            yield from self.state.candidates(unlike, self.tail, nodes)

    @property
    def _is_detector(self) -> bool:
        return DetectionMetric.of_model(self.job.plan.graph) is not None

    @property
    def _parts(self) -> Sequence[str]:
        """Names of the tensors to judge by."""
        if self.tail is not None:
            return self.tail.parts
        graph = self.job.plan.graph
        return [str(value.name) for value in graph.outputs if graph.is_float(value)]


class _Judged(NamedTuple):
    """What a plan loses.

    Attributes:
        errors: Of the parts of the outputs.
        detections: What it finds; None of what is no detector by its outputs, and where the plan
            to be bettered finds all that float does.
    """

    errors: Errors
    detections: Found | None

    @property
    def misses(self) -> bool:
        """Whether a detector does not find all that float does."""
        return self.detections is not None and self.detections.like < DETECTED

    def is_better(self, before: _Judged, least: float) -> bool:
        """Tell whether a part gains so many decibels and none loses, or detections gain.

        Boxes that a net chooses are in another order after every change, which decibels take for
        noise.
        """
        one, other = self.detections, before.detections
        told = None if one is None or other is None else one.is_better(other)
        if told is not None:
            return told
        gained = max(gains(before.errors, self.errors).values(), default=0.0)
        return gained > least and not self.errors.loses(before.errors)


class _Judge:
    """Simulates plans, and compares them with the float model, by parts of the outputs."""

    def __init__(self, graph: Graph, names: Sequence[str], choice: Choice, threads: int) -> None:
        self._names, self._choice = names, choice
        editor = Editor(graph.model)
        outputs = editor.model.graph.outputs
        shown = [editor.value(name) for name in self._names]
        for value in outputs[:]:
            outputs.remove(value)
        # The parts alone are computed and kept: outputs of hundreds of pixels times boxes would
        # fill the memory.
        outputs.extend(shown)
        self._runs = FloatRuns(Graph(editor.finish()), choice.runs.batches, threads=threads)
        self._misses: bool | None = None

    def judged(self, plan: QuantizedGraph) -> _Judged:
        """Simulate a plan with scales."""
        detections: Found | None = None
        if self._misses is not False:
            choice = msgspec.structs.replace(self._choice, plan=plan, simulator=None)
            detections = found_by(choice)
        found = _Judged(self._runs.simulated(plan, self._names), detections)
        if self._misses is None:
            self._misses = found.misses
        return found


def plan_in_float(
    job: Job,
    names: tuple[str, ...],
    statistics: Statistics,
    method: Method,
    given: ScaleTable | None,
    decide: Decide,
) -> QuantizedGraph | None:
    """Make the plan with scales that keeps nodes in float; None where there is none."""
    types = {node.op_type for node in job.plan.graph.nodes}
    if types.intersection(names):
        return None  # such a name would keep all operators of that type
    try:
        plan = assign(job.keeping(names), statistics, method, given)
    except IntactError:
        return None
    return replace(plan, decisions={**plan.decisions, **decide(names)})


def is_held(job: Job, plan: QuantizedGraph) -> bool:
    """Tell whether the formats can hold a plan."""
    try:
        job.deployment.result(plan, None, Preprocess())
    except IntactError:
        return False
    return True


def gains(before: Errors, after: Errors) -> dict[str, float]:
    """Return the decibels that each part of the outputs has gained."""
    was, has = before.decibels, after.decibels
    return {name: has[name] - was[name] for name in was if name in has}


def _note_unmeasured(names: tuple[str, ...], unlike: list[Join]) -> Note:
    """Say in one line what stays float by rule."""
    join = next(join for join in unlike if str(join.node.name) in names)
    more = f" and {len(names) - 1} node(s) behind it stay" if len(names) > 1 else " stays"
    message = f"{join}, behind a choice of the best, where no loss can be measured: it{more} float"
    return Note(NoteKind.HEAD, str(join.node.name), message, UNDO)


def _note(names: tuple[str, ...], unlike: list[Join], before: _Judged, after: _Judged) -> Note:
    """Say in one line what stays float, and what that gains."""
    one, other = after.detections, before.detections
    if one is not None and other is not None and one.is_better(other):
        gain = f"detections have {one.like:.1f} % mAP to float instead of {other.like:.1f}"
    else:
        was, has = before.errors.decibels, after.errors.decibels
        gained = gains(before.errors, after.errors)
        most = max(gained, key=lambda name: gained[name])
        gain = f"{most!r} has {has[most]:.1f} dB of signal to noise instead of {was[most]:.1f}"
    joins = [join for join in unlike if str(join.node.name) in names]
    why = f"{joins[0]}" if joins else "decodes what the last layers say, or reads parts of an input"
    more = f" and {len(names) - 1} node(s) around it stay" if len(names) > 1 else " stays"
    node = str(joins[0].node.name) if joins else names[0]
    return Note(NoteKind.HEAD, node, f"{why}: it{more} float, and {gain}", UNDO)
