"""From a plan without scales to a result: observe, assign, write."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from intact.analyze.diagnose.evidence import Calibrated
from intact.analyze.diagnose.sample_signs import blaming
from intact.calibrate.assign import assign, required_tensors
from intact.calibrate.choice import FloatRuns, choose, elements_of
from intact.calibrate.collect import collect
from intact.calibrate.method import counted_bins
from intact.calibrate.original import Compared, Original
from intact.calibrate.statistics import Statistics
from intact.data.batching import Batch, sample_count
from intact.data.chosen_samples import ChosenSamples
from intact.data.feeding import Feeding
from intact.data.preprocess import Preprocess
from intact.data.progress import begin
from intact.data.sources import has_image_steps
from intact.data.stream import AGAIN, Samples
from intact.errors import UsageError
from intact.flow.improvement import Improver
from intact.flow.look import Seen, look_at_plan, look_at_runtime, look_at_samples
from intact.graph import Graph
from intact.graph.files.tensors import weight_bytes
from intact.placement.alternatives import Alternatives
from intact.plan import Note, NoteKind
from intact.plan.given_scales import ScaleTable
from intact.recipe.groups import CalibrationOptions, SpeedOptions
from intact.results.first_run import draw_sample, run_once
from intact.results.job import Job, Refusals, Scaled
from intact.results.recipes import open_fed
from intact.results.result import Result

if TYPE_CHECKING:
    from intact.analyze.diagnose.findings import Finding
    from intact.calibrate.shards import SampleMap
    from intact.placement.choice import Fastest
    from intact.recipe.groups import DataSource

_SMALL = 1 << 26
"""Bytes of weights of which several copies in memory do not matter."""
_BATCH = 4
"""Samples that plans are tried on at once: the floats of a runtime may change with it."""
_TRIED_AT_ONCE = 1 << 26
"""Elements of activations that they have at most, but for a single sample."""
_BYTES = 8
"""Memory for each element of them that a simulation takes, as measured with a DNSMOS."""


@dataclass(frozen=True)
class Calibration:
    """How data is read and observed.

    Attributes:
        options: As a call gave them.
        preprocess: What is done to samples first.
        original: The model as it was given, to compare the graphs with; None for one that is
            quantized already.
        drawn: How many samples were drawn, which come as the model takes them; 0 for those of a
            user.
        speed: What is asked for of speed; None where nothing is.
        cluster: Observes on a cluster; None for this process.
    """

    options: CalibrationOptions
    preprocess: Preprocess
    original: Original | None = None
    drawn: int = 0
    speed: SpeedOptions | None = None
    cluster: SampleMap | None = None

    def run(
        self,
        jobs: Sequence[Job],
        data: DataSource | None,
        given: ScaleTable | None = None,
        refusals: Refusals | None = None,
    ) -> list[Result]:
        """Give plans their scales and write them.

        The float model is run over the data once for all the plans that share its graph.

        Args:
            jobs: What is made.
            data: The samples.
            given: Scales that need none.
            refusals: Takes what is wrong with one job, of which there is no result then.
        """
        refusals = refusals or Refusals(collects=False)
        start = time.perf_counter()
        jobs = list(jobs)
        needs = [required_tensors(job.plan, given) for job in jobs]
        self._refuse_data(jobs, data, needed=given is None and any(needs))
        groups: dict[int, list[int]] = {}
        for index, job in enumerate(jobs):
            groups.setdefault(id(job.plan.graph), []).append(index)
        results: dict[int, Result] = {}
        if isinstance(data, Iterator) and len(groups) > 1:
            raise UsageError(
                f"samples are read {len(groups)} times: there are targets that change the graph, "
                "and an iterator gives them once",
                remedy=AGAIN,
            )
        for members in groups.values():  # some targets calibrate a graph of their own
            begin(self.options.progress, "calibrating")
            graph = jobs[members[0]].plan.graph
            others = {
                i: Alternatives.of(jobs[i], has_table=given is not None)
                for i in members
                if data is not None
            }
            more = [name for each in others.values() for name in each.tensors]
            required = [*(n for i in members for n in needs[i]), *more]
            observed = self._observe(graph, required, data, [jobs[i] for i in members])
            sample = None if observed is None else observed.first
            signs = () if observed is None else observed.signs
            comparing: Future[Compared] | None = None
            with ThreadPoolExecutor(1) as pool:
                if sample is not None and weight_bytes(graph.model) <= _SMALL:
                    # beside the choice of scales, which has copies of the weights of its own
                    comparing = pool.submit(self._compared, graph, sample)
                for index in members:
                    job, name = jobs[index], jobs[index].plan.target.name
                    begin(self.options.progress, f"choosing scales for {name}")
                    made: Scaled | None = None
                    with refusals.of(name), blaming(signs):
                        made = self._scaled(job, needs[index], observed, given)
                        if observed is not None:
                            job, made = self._settled(others[index], job, made, observed)
                    if made is None:
                        continue
                    sample = draw_sample(made.plan, made.statistics) if sample is None else sample
                    comparing = comparing or pool.submit(self._compared, graph, sample)
                    compared = comparing.result()  # a difference stops all
                    with refusals.of(name), blaming(signs):
                        fastest = None
                        if self.speed is not None:
                            job, made, fastest = self._fastest(
                                job, made, observed, given, self.speed, start
                            )
                        made = self._improved(job, made, observed, data)
                        if made.plan.graph is not graph:
                            compared = self._compared(made.plan.graph, sample)
                        begun = start if fastest is None else None
                        result = self._finished(job, made, observed, sample, compared, begun)
                        result.fastest = fastest
                        results[index] = result
        return [results[index] for index in sorted(results)]

    def _refuse_data(self, jobs: Sequence[Job], data: DataSource | None, *, needed: bool) -> None:
        """Refuse no data where it is needed, and data that the steps are not for."""
        if data is None and needed:
            can_draw = jobs[0].plan.graph.batch_norms and not jobs[0].plan.provenance.source
            other = ", or try --data-free" if can_draw else ""
            raise UsageError(
                "there is nothing to calibrate on",
                remedy=f"give samples with --data, or every scale with --scales{other}",
            )
        if (
            self.preprocess.image.given
            and not self.drawn
            and data is not None
            and not has_image_steps(data, self.options.transform)
        ):
            from intact.results.preprocessing import refuse_image_steps

            refuse_image_steps(self.options)
            raise UsageError(
                f"--preprocess has {self.preprocess.image.given[0]}, which is for a folder of "
                "images, and the data is none",
                remedy="give a file without [image], and with mean and std in the place of a "
                "normalize that orders channels: arrays come as the model takes them",
            )

    def _compared(self, graph: Graph, sample: Batch | None) -> Compared:
        """Compare a graph with the given model."""
        return Compared() if self.original is None else self.original.compare(graph, sample)

    def _finished(
        self,
        job: Job,
        scaled: Scaled,
        observed: _Observed | None,
        sample: Batch | None,
        compared: Compared,
        start: float | None,
    ) -> Result:
        """Write a plan with scales, run what was written, and say what it loses.

        Args:
            job: What is made.
            scaled: Its plan.
            observed: What calibration saw.
            sample: What is run once.
            compared: The graph with the given model.
            start: When making it began; None where it is not to be timed.
        """

        def run(result: Result) -> None:
            run_once(result, sample, compared.outputs, threads=self.options.threads)

        begin(self.options.progress, "measuring the loss")
        seen, signs = (None, ()) if observed is None else (observed.seen, observed.signs)
        looked = look_at_plan(job, scaled, seen, signs, run)
        scaled = scaled._replace(choice=None)  # its sessions have copies of weights
        begin(self.options.progress, "quantizing")
        result = job.deployment.result(
            scaled.plan, scaled.statistics, self.preprocess, compared.notes
        )
        result.improvements, result.loss = scaled.tried, looked.loss
        begin(self.options.progress, "running what was made")
        run(result)
        spent = None if start is None else time.perf_counter() - start
        result.findings = look_at_runtime(looked, result, spent)
        return result

    def _fastest(
        self,
        job: Job,
        scaled: Scaled,
        observed: _Observed | None,
        given: ScaleTable | None,
        speed: SpeedOptions,
        start: float,
    ) -> tuple[Job, Scaled, Fastest]:
        """Keep in float what is faster in float; it takes as long as all before."""
        from intact.placement.placing import placed

        begin(self.options.progress, "looking for the fastest")
        sample = None if observed is None else observed.sample(speed.fastest_batch)
        seconds = time.perf_counter() - start
        threads = self.options.threads
        own, found = placed(job, scaled, sample, given, speed, threads, seconds)
        if not found.kept_float:
            return own, scaled, found
        needs = required_tensors(own.plan, given)
        return own, self._scaled(own, needs, observed, given), found

    def _settled(
        self, others: Alternatives, job: Job, scaled: Scaled, observed: _Observed
    ) -> tuple[Job, Scaled]:
        """Try plans that may lose less."""

        def rescale(changed: Job) -> Scaled:
            needs = required_tensors(changed.plan, scaled.given)
            return self._scaled(changed, needs, observed, scaled.given)

        return others.settled(
            job,
            scaled,
            observed.statistics,
            rescale,
            threads=self.options.threads,
            progress=self.options.progress,
        )

    def _improved(
        self,
        job: Job,
        scaled: Scaled,
        observed: _Observed | None,
        data: DataSource | None,
    ) -> Scaled:
        """Run the improvement passes of a job."""
        if not job.requests:
            return scaled
        if data is None or observed is None or isinstance(data, Iterator):
            raise UsageError(
                f"--improve {job.requests[0].name} runs samples a second time", remedy=AGAIN
            )

        def recalibrate(graph: Graph) -> Scaled:
            own = job.on(graph)
            needs = required_tensors(own.plan, scaled.given)
            observed = self._observe(graph, needs, data, [job])
            return self._scaled(own, needs, observed, scaled.given)

        def samples(graph: Graph) -> Samples:
            return replace(self._open(data, graph), progress=self.options.progress)

        improver = Improver(
            job.requests, samples, recalibrate, self.options.progress, self.options.threads
        )
        return improver.improved(scaled, observed.runs)

    def _scaled(
        self,
        job: Job,
        required: Sequence[str],
        observed: _Observed | None,
        given: ScaleTable | None,
    ) -> Scaled:
        """Choose the method and the scales of one plan."""
        options = self.options
        if observed is None:
            plan = assign(job.plan, None, job.methods[0], given)
            plan.provenance = plan.provenance.observed(options.mask, options.method_options)
            return Scaled(plan, None, None, given)
        names = dict.fromkeys((*observed.inputs, *required))
        statistics = observed.statistics.only(names)
        choice = choose(job.plan, statistics, job.methods, observed.runs, given)
        plan, fed = choice.plan, observed.feeding
        provenance = plan.provenance.observed(options.mask, options.method_options)
        provenance = provenance.fed(fed.no_batch, fed.states, observed.shapes)
        plan.provenance = provenance.drawn_from(self.drawn)
        plan = plan.with_notes(observed.notes)
        return Scaled(plan, statistics, choice, given)

    def _observe(
        self,
        graph: Graph,
        required: Sequence[str],
        data: DataSource | None,
        jobs: Sequence[Job],
    ) -> _Observed | None:
        """Run the float model over the data."""
        if data is None:
            return None
        opened = self._open(data, graph)
        # The inputs too, quantized or not: `verify` draws new ones from their distributions.
        inputs = tuple(opened.specs)
        first: Batch = {}
        chosen = ChosenSamples(whole=opened.takes_feeds)
        statistics = self._collect(
            graph,
            opened,
            tuple(dict.fromkeys((*inputs, *required))),
            threads=self.options.threads,
            progress=self.options.progress,
            max_memory=self.options.max_memory,
            first=first,
            chosen=chosen,
            bins=counted_bins(method for job in jobs for method in job.methods),
        )
        size = max(elements_of(statistics), 1)
        batch = opened.batch_size(max(1, min(_BATCH, _TRIED_AT_ONCE // size)))
        threads = self.options.threads or os.cpu_count() or 1
        if self.options.max_memory is not None:
            threads = min(threads, self.options.max_memory // (_BYTES * batch * size))
        runs = FloatRuns(graph, list(chosen.batches(batch)), threads=max(threads, 1))
        notes = _skipped(opened.skipped)
        if self.cluster is not None:
            notes += tuple(Note(NoteKind.CALIBRATION, "", each) for each in self.cluster.doubts)
        fed, shapes = opened.feeding, opened.usual_shapes
        is_free = opened.has_free_batch
        different = len(chosen.marks) if chosen.limit is None else None
        known = Calibrated(inputs, different, self.options.mask is not None)
        seen = Seen(runs, known, self.preprocess, self.drawn > 0, self.options.threads)
        signs = look_at_samples(seen, statistics)
        return _Observed(statistics, inputs, notes, first, fed, shapes, seen, signs, is_free)

    @property
    def _collect(self) -> Callable[..., Statistics]:
        if self.cluster is None:
            return collect
        from intact.calibrate.shards import collect_on

        return partial(collect_on, self.cluster)

    def _open(self, data: DataSource, graph: Graph) -> Samples:
        return open_fed(
            data,
            graph,
            self.options,
            preprocess=Preprocess() if self.drawn else self.preprocess,
            limit=self.options.samples,
            mask=self.options.mask,
            skip_bad=self.options.skip_bad,
        )


class _Observed(NamedTuple):
    statistics: Statistics
    inputs: tuple[str, ...]
    """The inputs of the model, which every result keeps the statistics of."""
    notes: tuple[Note, ...]
    first: Batch
    """The inputs of one sample."""
    feeding: Feeding
    shapes: Mapping[str, tuple[int, ...]]
    """What most samples have where the model leaves it open."""
    seen: Seen
    """Some samples, to try plans on, and what is known of all."""
    signs: tuple[Finding, ...] = ()
    """What is odd about the samples."""
    has_free_batch: bool = False
    """Whether a batch may have any number of samples."""

    @property
    def runs(self) -> FloatRuns:
        """Some samples, to try plans on."""
        return self.seen.runs

    def sample(self, count: int) -> Batch:
        """Return a batch of so many samples, some of them several times.

        Raises:
            UsageError: The model fixes another number.
        """
        if self.has_free_batch:
            rows = np.arange(count)
            return {
                name: array[rows % len(array)] for name, array in self.runs.batches[0][0].items()
            }
        feeds = dict(self.runs.batches[0][0])
        size = sample_count(feeds)
        if count not in (1, size):
            raise UsageError(
                f"--fastest-batch {count}: the model takes {size} sample(s) at once",
                remedy="leave it out",
            )
        return feeds


def _skipped(files: Sequence[str]) -> tuple[Note, ...]:
    if not files:
        return ()
    message = f"{len(files)} file(s) that are no image were left out (first: {files[0]})"
    return (Note(NoteKind.CALIBRATION, "", message),)
