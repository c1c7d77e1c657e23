"""Declares the stages from plans to results: each takes a job one step further.

`Observe` runs once for all targets of one graph. `OWN` run for each target by itself, one after the
other, so that the sessions of one are gone before those of the next are made. In front of them are
those of `intact.flow.shared_stages`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from intact.analyze.diagnose.sample_signs import blaming
from intact.calibrate.original import OriginalComparison
from intact.data.progress import begin
from intact.data.stream import AGAIN
from intact.errors import UsageError
from intact.flow.calibration import Calibration, Observation, OriginalCheck, tensors_of
from intact.flow.look import (
    PlanFindings,
    look_at_plan,
    look_at_runtime,
    look_at_samples,
    verdict_of,
)
from intact.improve.passes import Request
from intact.limits import CLOSE_DB, ENOUGH_DB
from intact.placement.alternatives import Alternatives
from intact.plan import Note, NoteKind
from intact.recipe.groups import LengthOptions
from intact.results.first_run import run_once
from intact.results.job import Job, Scaled
from intact.results.refusals import Refusals
from intact.results.result import Result

if TYPE_CHECKING:
    from intact.analyze.diagnose.findings import Finding
    from intact.data.batching import Batch
    from intact.flow.improvement import Rewritten
    from intact.placement.choice import Fastest


@dataclass(frozen=True)
class TargetRun:
    """One target between its plan and its result.

    Attributes:
        calibration: How samples are read and observed.
        job: What is made.
        observed: What the float model's tensors are; None without samples.
        signs: What is odd about the samples.
        others: Plans that may lose less; None without samples.
        comparing: The graph with the given model.
        scaled: The plan, with scales once they are chosen.
        compared: What the comparison found.
        fastest: What was measured to place precision, where that was asked for.
        rewritten: What passes made already, to see what they gain.
        looked: What was found before files are written.
        written: The result, once there is one.
    """

    calibration: Calibration
    job: Job
    observed: Observation | None
    signs: tuple[Finding, ...]
    others: Alternatives | None
    comparing: OriginalCheck
    scaled: Scaled
    compared: OriginalComparison = field(default_factory=OriginalComparison)
    fastest: Fastest | None = None
    rewritten: Mapping[Request, Rewritten] = field(default_factory=dict)
    looked: PlanFindings = field(default_factory=PlanFindings)
    written: Result | None = None

    @property
    def name(self) -> str:
        """Name of the target."""
        return self.job.plan.target.name

    @property
    def result(self) -> Result:
        """The result, behind the stage that writes it."""
        if self.written is None:
            raise RuntimeError("nothing is written yet")
        return self.written

    def begin(self, phase: str) -> None:
        """Tell what is done next."""
        begin(self.calibration.options.progress, phase)

    def run_once(self, result: Result) -> None:
        """Run a result on the sample; raises where its runtime refuses it or differs."""
        threads = self.calibration.options.threads
        run_once(result, self.comparing.sample, self.compared.outputs, threads=threads)

    def rescale(self, job: Job) -> Scaled:
        """Give another plan of the same graph its scales."""
        return self.calibration.give_scales(job, self.observed)


class Stage(ABC):
    """Takes a target one step further."""

    stops_all: ClassVar[bool] = False
    """Whether an error is one of the model, and not of one target."""

    @abstractmethod
    def run(self, state: TargetRun) -> TargetRun:
        """Return the state with what this stage adds; the given one is not changed."""


@dataclass(frozen=True)
class Observe:
    """Runs the float model over the samples, once for all targets of a graph.

    Attributes:
        calibration: How samples are read and observed.
        pool: Runs what is done beside that which needs its results.
    """

    calibration: Calibration
    pool: ThreadPoolExecutor

    def run(self, jobs: Sequence[Job]) -> list[TargetRun]:
        """Observe the tensors that the plans of the jobs need, and those of their alternatives."""
        calibration = self.calibration
        begin(calibration.options.progress, "calibrating")
        jobs = [calibration.with_caches(job) for job in jobs]
        graph, given = jobs[0].plan.graph, calibration.given
        others: list[Alternatives | None] = [
            None if calibration.data is None else Alternatives.of(job, has_table=given is not None)
            for job in jobs
        ]
        needs = [name for job in jobs for name in tensors_of(job.plan, given)]
        # In the same pass: a plan that is chosen later has its statistics then.
        needs += [name for each in others if each is not None for name in each.tensors]
        observed: Observation | None = None
        sample: Batch | None = None
        signs: tuple[Finding, ...] = ()
        if calibration.data is not None:
            methods = [method for job in jobs for method in job.methods]
            observed = calibration.observe(graph, needs, methods)
            sample, signs = observed.first, look_at_samples(observed.seen, observed.statistics)
        # One for all targets of the graph, whichever asks first.
        comparing = OriginalCheck(calibration, graph, sample, self.pool)
        return [
            TargetRun(
                calibration,
                job,
                observed,
                signs,
                each,
                comparing,
                Scaled(job.plan, None, None, given),
            )
            for job, each in zip(jobs, others, strict=True)
        ]


class Scale(Stage):
    """The method and the scales of the plan are chosen."""

    def run(self, state: TargetRun) -> TargetRun:
        """Choose method and scales."""
        state.begin(f"choosing scales for {state.name}")
        return replace(state, scaled=state.rescale(state.job))


class PlacePrecision(Stage):
    """Keeps in float, or requantizes, what loses less so."""

    def run(self, state: TargetRun) -> TargetRun:
        """Try it on the samples that the scales were chosen on."""
        if state.observed is None or state.others is None:
            return state
        options = state.calibration.options
        job, scaled = state.others.choose(
            state.job,
            state.scaled,
            state.observed.statistics,
            state.rescale,
            threads=options.threads,
            progress=options.progress,
        )
        return replace(state, job=job, scaled=scaled)


class HandleHuge(Stage):
    """Equalizes, widens or keeps in float what stands around huge channels and tokens.

    Where an output is lost, channels that are many times larger are equalized too.
    """

    def run(self, state: TargetRun) -> TargetRun:
        """Try each way on the samples that the scales were chosen on."""
        observed, job, calibration = state.observed, state.job, state.calibration
        choice = state.scaled.choice
        if observed is None or not job.floats_ends or choice is None:
            return state
        if min(choice.errors.decibels.values(), default=ENOUGH_DB) >= ENOUGH_DB:
            return state
        if not any(each.quantized for each in job.plan.decisions.values()):
            return state  # activations are floats: the range of none is too wide
        from intact.placement.huge import EQUALIZE, handle_huge  # few lose that much
        from intact.placement.outliers import equalize_lost

        def equalized() -> Scaled:
            if isinstance(calibration.data, Iterator):
                raise UsageError(f"{EQUALIZE.name} runs samples a second time", remedy=AGAIN)
            from intact.flow.improvement import Improver

            again = partial(calibration.recalibrate, job)
            threads = calibration.options.threads
            improver = Improver((EQUALIZE,), calibration.samples, again, None, threads, rewritten)
            return improver.improve(state.scaled, observed.runs)

        rewritten: dict[Request, Rewritten] = {}
        job, scaled = handle_huge(job, state.scaled, observed.statistics, state.rescale, equalized)
        if job is state.job:
            job = equalize_lost(job, scaled, observed.statistics, equalized)
        kept: Mapping[Request, Rewritten] = {}
        if job.planner is state.job.planner:  # others would plan other scales
            told = tuple(note for note in job.plan.notes if note not in state.job.plan.notes)
            kept = {name: each.told(told) for name, each in rewritten.items()}
        return replace(state, job=job, scaled=scaled, rewritten=kept)


class Compare(Stage):
    """Checks that the graph computes what the given model does, on one sample."""

    stops_all = True

    def run(self, state: TargetRun) -> TargetRun:
        """Wait for the comparison; raises where they differ."""
        return replace(state, compared=state.comparing.result(state.scaled))


class KeepFastFloat(Stage):
    """Keeps in float what is faster there, where that is asked for (``--fastest``)."""

    def run(self, state: TargetRun) -> TargetRun:
        """Measure it, which takes as long as all before."""
        calibration, observed = state.calibration, state.observed
        speed = calibration.speed
        if speed is None:
            return state
        from intact.placement.placing import find_fastest

        state.begin("looking for the fastest")
        # A batch as it will be deployed: what is faster depends on its size.
        sample = None if observed is None else observed.sample(speed.fastest_batch)
        threads, given = calibration.options.threads, calibration.given
        seconds = time.perf_counter() - calibration.start
        job, found = find_fastest(state.job, state.scaled, sample, given, speed, threads, seconds)
        # Scales of neighbours depend on what is float: new ends may be quantized.
        if not found.kept_float:
            return replace(state, job=job, fastest=found)
        return replace(state, job=job, scaled=state.rescale(job), fastest=found, rewritten={})


class Improve(Stage):
    """Improvement passes run, and stay where the outputs gain."""

    def run(self, state: TargetRun) -> TargetRun:
        """Run them; a graph that one rewrote is compared with the given model too."""
        calibration, observed, job = state.calibration, state.observed, state.job
        if not job.requests or self._is_close(state):
            return state
        if observed is None:
            raise UsageError(
                f"the pass {job.requests[0].name} needs samples", remedy="give some with --data"
            )
        if isinstance(calibration.data, Iterator):
            raise UsageError(
                f"--improve {job.requests[0].name} runs samples a second time", remedy=AGAIN
            )
        # Passes load much that plain calibration has no use for.
        from intact.flow.improvement import Improver  # few run passes

        options = calibration.options
        recalibrate = partial(calibration.recalibrate, job)
        improver = Improver(
            job.requests,
            calibration.samples,
            recalibrate,
            options.progress,
            options.threads,
            dict(state.rewritten),
        )
        graph = state.scaled.plan.graph
        scaled = improver.improve(state.scaled, observed.runs)
        if job.unasked is not None:
            scaled = scaled._replace(plan=scaled.plan.with_notes((job.unasked,)))
        state = replace(state, scaled=scaled)
        if scaled.plan.graph is graph:
            return state
        # A rewrite promises to compute the same: it is held to that.
        compared = calibration.compare(scaled.plan.graph, state.comparing.sample)
        return replace(state, compared=compared)

    def _is_close(self, state: TargetRun) -> bool:
        """Tell whether passes that nobody asked for have little to gain."""
        choice = state.scaled.choice
        if state.job.unasked is None or choice is None:
            return False
        return min(choice.errors.decibels.values(), default=0.0) >= CLOSE_DB


class MeasureLoss(Stage):
    """Finds what the plan loses, while its sessions are still there."""

    def run(self, state: TargetRun) -> TargetRun:
        """Ask the quick checks."""
        state.begin("measuring the loss")
        state = self._by_length(state)
        seen = None if state.observed is None else state.observed.seen
        looked = look_at_plan(state.job, state.scaled, seen, state.signs, state.run_once)
        # Its sessions have copies of weights.
        return replace(state, looked=looked, scaled=state.scaled._replace(choice=None))

    def _by_length(self, state: TargetRun) -> TargetRun:
        """Note what short and long samples lose, where that is asked for."""
        scaled, observed, options = state.scaled, state.observed, state.calibration.options
        if not isinstance(options, LengthOptions) or options.by is None:
            return state
        if observed is None or scaled.choice is None:
            return state
        from intact.analyze.evaluation.by_length import lengths_of_choice  # few ask

        lines = lengths_of_choice(scaled.choice, observed.samples).lines()
        notes = tuple(Note(NoteKind.CALIBRATION, "", line) for line in lines)
        return replace(state, scaled=scaled._replace(plan=scaled.plan.with_notes(notes)))


class Write(Stage):
    """Lowers the plan, and writes it in the formats of the job."""

    def run(self, state: TargetRun) -> TargetRun:
        """Write it, in memory."""
        state.begin("quantizing")
        scaled, preprocess = state.scaled, state.calibration.preprocess
        result = state.job.deployment.result(
            scaled.plan, scaled.statistics, preprocess, state.compared.notes
        )
        result.improvements, result.loss = scaled.tried, state.looked.loss
        result.fastest = state.fastest
        return replace(state, written=result)


class FirstRun(Stage):
    """Runs what was written once, in its own runtime."""

    def run(self, state: TargetRun) -> TargetRun:
        """Run it; raises where its runtime refuses it or computes something else."""
        state.begin("running what was made")
        state.run_once(state.result)
        return state


class Look(Stage):
    """Looks what the runtime makes of what was written."""

    def run(self, state: TargetRun) -> TargetRun:
        """Ask the checks that need the runtime."""
        start = state.calibration.start
        # With --fastest both models were timed already.
        spent = None if state.fastest is not None else time.perf_counter() - start
        state.result.findings = look_at_runtime(state.looked, state.result, spent)
        state.result.verdict = verdict_of(state.looked, state.result.findings)
        return state


OWN: tuple[Stage, ...] = (
    Scale(),
    PlacePrecision(),
    HandleHuge(),
    Compare(),
    KeepFastFloat(),
    Improve(),
    MeasureLoss(),
    Write(),
    FirstRun(),
    Look(),
)
"""The stages for each target by itself, behind `Observe`."""


def make_results(
    calibration: Calibration, jobs: Sequence[Job], refusals: Refusals | None = None
) -> list[Result]:
    """Take jobs from their plans to results.

    Args:
        calibration: How samples are read and observed.
        jobs: What is made.
        refusals: Takes what is wrong with one job, which has no result then; None raises it.

    Raises:
        UsageError: There are no samples, or the steps are not for such, or they are read several
            times and cannot be.
    """
    calibration.refuse_data(jobs)
    groups: dict[int, list[int]] = {}
    for index, job in enumerate(jobs):
        # By identity: targets whose preparation changed nothing share the object.
        groups.setdefault(id(job.plan.graph), []).append(index)
    if isinstance(calibration.data, Iterator) and len(groups) > 1:
        raise UsageError(
            f"samples are read {len(groups)} times: there are targets that change the graph, "
            "and an iterator gives them once",
            remedy=AGAIN,
        )
    refusals = refusals or Refusals(collects=False)
    results: dict[int, Result] = {}
    for members in groups.values():  # some targets calibrate a graph of their own
        # One thread, which compares while this one chooses scales.
        with ThreadPoolExecutor(1) as pool:
            begun = Observe(calibration, pool).run([jobs[index] for index in members])
            for index, state in zip(members, begun, strict=True):
                done = _through_stages(state, refusals)
                if done is not None:
                    results[index] = done.result
    return [results[index] for index in sorted(results)]


def _through_stages(state: TargetRun, refusals: Refusals) -> TargetRun | None:
    """Take a target through its stages; None where it is refused."""
    for stage in OWN:
        # Outside of the refusals: an error of the model is one of all targets.
        if stage.stops_all:
            state = stage.run(state)
            continue
        further: TargetRun | None = None
        with refusals.of(state.name), blaming(state.signs):
            further = stage.run(state)
        if further is None:
            return None
        state = further
    return state
