"""Observes samples, and gives plans their scales from that."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from intact.analyze.diagnose.evidence import Calibrated
from intact.calibrate.assign import assign, required_tensors
from intact.calibrate.choice import choose, elements_of
from intact.calibrate.collect import collect
from intact.calibrate.method import Method, counted_bins
from intact.calibrate.original import Original, OriginalComparison
from intact.calibrate.outputs import FloatRuns
from intact.calibrate.statistics import Statistics
from intact.data.archive import free_memory
from intact.data.batching import Batch, sample_count, within
from intact.data.chosen_samples import ChosenSamples
from intact.data.preprocess import Preprocess
from intact.data.sources import has_image_steps
from intact.data.stream import AGAIN, Samples
from intact.errors import DataError, UsageError
from intact.flow.look import CalibrationSamples
from intact.graph import Graph, is_constant
from intact.graph.files.tensors import weight_bytes
from intact.limits import MEMORY_SHARE, TRIED_AT_ONCE
from intact.plan import Note, NoteKind, QuantizedGraph
from intact.plan.given_scales import ScaleTable
from intact.recipe.groups import CalibrationOptions, SpeedOptions
from intact.recipe.samples import LabelOptions
from intact.results.first_run import draw_sample
from intact.results.job import Job, Scaled
from intact.results.recipes import open_fed

if TYPE_CHECKING:
    from intact.calibrate.shards import SampleMap
    from intact.recipe.groups import DataSource

_SMALL = 1 << 26
"""Bytes of weights of which several copies in memory do not matter."""
_TRIED_ELEMENTS = 1 << 26
"""Elements of activations that they have at most, but for a single sample."""
_BYTES = 8
"""Memory for each element of them that a simulation takes, as measured with a DNSMOS."""


@dataclass(frozen=True)
class Calibration:
    """How data is read and observed.

    Attributes:
        options: The options of the call.
        preprocess: What is done to samples first.
        original: The model as it was given, to compare the graphs with; None for one that is
            quantized already.
        drawn: How many samples were drawn, which come as the model takes them; 0 for those of a
            user.
        speed: What is asked for of speed; None where nothing is.
        cluster: Observes on a cluster; None for this process.
        data: The samples; None where all scales are given.
        given: Scales that need no samples.
        start: When it began, in seconds.
    """

    options: CalibrationOptions
    preprocess: Preprocess
    original: Original | None = None
    drawn: int = 0
    speed: SpeedOptions | None = None
    cluster: SampleMap | None = None
    data: DataSource | None = None
    given: ScaleTable | None = None
    start: float = field(default_factory=time.perf_counter)

    def refuse_data(self, jobs: Sequence[Job]) -> None:
        """Refuse no data where it is needed, and data that the steps are not for.

        Raises:
            UsageError: See above.
        """
        data = self.data
        needs = [required_tensors(job.plan, self.given) for job in jobs]
        if data is None and self.given is None and any(needs):
            # A model that was read quantized has its scales, and no float model to draw images
            # from.
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

    def compare(self, graph: Graph, sample: Batch | None) -> OriginalComparison:
        """Compare a graph with the given model."""
        return (
            OriginalComparison() if self.original is None else self.original.compare(graph, sample)
        )

    def recalibrate(self, job: Job, graph: Graph) -> Scaled:
        """Plan a job on a graph that a rewrite made, and give that plan its scales."""
        own = self.with_caches(job.on(graph))
        observed = self.observe(graph, tensors_of(own.plan, self.given), job.methods)
        return self.give_scales(own, observed)

    def with_caches(self, job: Job) -> Job:
        """Give the caches of a plan their scales, from a pass over the samples of their own.

        Raises:
            UsageError: There are no samples, or they are read once only.
        """
        if job.plan.target.cache is None or job.plan.target.cache.scheme is None:
            return job
        if isinstance(self.data, Iterator):
            raise UsageError("--cache-bits runs samples a second time", remedy=AGAIN)
        from intact.calibrate.cache_ranges import cache_ranges

        opened = self.samples(job.plan.graph)
        size = opened.batch_size(TRIED_AT_ONCE)
        ranges = cache_ranges(job.plan, opened.batches(size), threads=self.options.threads)
        return job.with_caches(ranges)

    def give_scales(self, job: Job, observed: Observation | None) -> Scaled:
        """Choose the method and the scales of one plan.

        Args:
            job: What is made, with the plan.
            observed: The tensors of its graph; None where all scales are given.
        """
        given = self.given
        options = self.options
        if observed is None:
            plan = assign(_in_range(job.plan, None), None, job.methods[0], given)
            plan.provenance = plan.provenance.observed(options.mask, options.method_options)
            return Scaled(plan, None, None, given)
        # Each target keeps the statistics of its own tensors, and those of the inputs.
        names = dict.fromkeys((*observed.samples.specs, *required_tensors(job.plan, given)))
        statistics = observed.statistics.only(names)
        # First: what is infinite in float16 would decide what is chosen.
        in_range = _in_range(job.plan, observed.statistics)
        choice = choose(in_range, statistics, job.methods, observed.runs, given)
        plan, fed = choice.plan, observed.samples.feeding
        provenance = plan.provenance.observed(options.mask, options.method_options)
        provenance = provenance.fed(fed.no_batch, fed.states, observed.shapes)
        plan.provenance = provenance.drawn_from(self.drawn)
        plan = plan.with_notes(observed.notes)
        return Scaled(plan, statistics, choice, given)

    def observe(
        self, graph: Graph, required: Sequence[str], methods: Iterable[Method]
    ) -> Observation:
        """Run the float model over the data.

        Args:
            graph: The float model.
            required: Names of tensors.
            methods: The threshold methods that scales are chosen by.

        Raises:
            UsageError: There are no samples.
        """
        opened = self._open(graph)
        # The inputs too, quantized or not: `verify` draws new ones from their distributions.
        inputs = tuple(opened.specs)
        first: Batch = {}
        # Kept in the same pass, so that samples are read once.
        chosen = ChosenSamples(whole=opened.takes_feeds)
        statistics = self._collect(
            graph,
            opened,
            tuple(dict.fromkeys((*inputs, *required))),
            threads=self.options.threads,
            progress=self.options.progress,
            **self._limit(),
            first=first,
            chosen=chosen,
            bins=counted_bins(methods),
        )
        size = max(elements_of(statistics), 1)
        # Fewer at once where activations are large: a trial holds all of them.
        batch = opened.batch_size(within(TRIED_AT_ONCE, _TRIED_ELEMENTS, size))
        threads = self.options.threads or os.cpu_count() or 1
        # Batches run side by side, each with activations of its own.
        threads = min(threads, self._memory // (_BYTES * batch * size))
        runs = FloatRuns(graph, list(chosen.batches(batch)), threads=max(threads, 1))
        notes = _skipped_notes(opened.skipped)
        if self.cluster is not None:
            notes += tuple(Note(NoteKind.CALIBRATION, "", each) for each in self.cluster.doubts)
        # A pass begins by forgetting what the last one saw.
        shapes = opened.usual_shapes  # before a further pass
        # Equal samples have equal checksums; with a limit some were left out, so there are many.
        different = len(chosen.marks) if chosen.limit is None else None
        known = Calibrated(inputs, different, self.options.mask is not None, _classes(opened))
        seen = CalibrationSamples(
            runs, known, self.preprocess, self.drawn > 0, self.options.threads
        )
        return Observation(opened, statistics, notes, first, shapes, seen)

    @property
    def _memory(self) -> int:
        return self.options.max_memory or int(MEMORY_SHARE * free_memory())

    def _limit(self) -> dict[str, Any]:
        """Return the limit for what observes: only what the user gives refuses, or is another's."""
        if self.options.max_memory is not None or self.cluster is not None:
            return {"max_memory": self.options.max_memory}
        return {"max_memory": self._memory, "refuses": False}

    @property
    def _collect(self) -> Callable[..., Statistics]:
        if self.cluster is None:
            return collect
        from intact.calibrate.collect_on import collect_on

        return partial(collect_on, self.cluster)

    def samples(self, graph: Graph) -> Samples:
        """Open the samples anew, for a pass that tells how far it is.

        Raises:
            UsageError: There are none.
        """
        options = self.options
        return replace(self._open(graph), progress=options.progress, memory=self._memory)

    def _open(self, graph: Graph) -> Samples:
        if self.data is None:
            raise UsageError("there are no samples", remedy="give some with --data")
        return open_fed(
            self.data,
            graph,
            self.options,
            preprocess=Preprocess() if self.drawn else self.preprocess,
            limit=self.options.samples,
            labels=self.options.labels if isinstance(self.options, LabelOptions) else None,
            mask=self.options.mask,
            skip_bad=self.options.skip_bad,
        )


class Observation(NamedTuple):
    """The result of a pass of the float model over the samples."""

    samples: Samples
    """The samples, for further passes. Every result keeps the statistics of their inputs."""
    statistics: Statistics
    notes: tuple[Note, ...]
    first: Batch
    """The inputs of one sample."""
    shapes: Mapping[str, tuple[int, ...]]
    """The shapes that most samples have where the model leaves them open."""
    seen: CalibrationSamples
    """Some samples, to try plans on, and what is known of all."""

    @property
    def runs(self) -> FloatRuns:
        """Some samples, to try plans on."""
        return self.seen.runs

    def sample(self, count: int) -> Batch:
        """Return a batch of so many samples, some of them several times.

        Raises:
            UsageError: The model fixes another number.
        """
        if self.samples.has_free_batch:
            rows = np.arange(count)
            return {
                # Repeated where there are fewer: times do not depend on the values.
                name: array[rows % len(array)]
                for name, array in self.runs.batches[0][0].items()
            }
        feeds = dict(self.runs.batches[0][0])
        size = sample_count(feeds)
        if count not in (1, size):
            raise UsageError(
                f"--fastest-batch {count}: the model takes {size} sample(s) at once",
                remedy="leave it out",
            )
        return feeds


class OriginalCheck:
    """The comparison of a graph with the given model, once for all targets of the graph.

    Args:
        calibration: Knows the given model.
        graph: The graph.
        sample: What both are run on; None draws it.
        pool: Compares beside the choice of scales.
    """

    def __init__(
        self, calibration: Calibration, graph: Graph, sample: Batch | None, pool: ThreadPoolExecutor
    ) -> None:
        self._calibration, self._graph, self._pool = calibration, graph, pool
        self.sample = sample
        self._found: Future[OriginalComparison] | None = None
        # Beside the choice of scales, where there is memory for both.
        if sample is not None and weight_bytes(graph.model) <= _SMALL:
            self._begin()  # the choice of scales has copies of the weights of its own

    def _begin(self) -> Future[OriginalComparison]:
        of = self._calibration.compare
        self._found = self._found or self._pool.submit(of, self._graph, self.sample)
        return self._found

    def result(self, scaled: Scaled) -> OriginalComparison:
        """Return what was found.

        Args:
            scaled: A plan with scales, to draw a sample from where there is none.

        Raises:
            ModelError: They differ.
        """
        if self.sample is None:
            self.sample = draw_sample(scaled.plan, scaled.statistics)
        return self._begin().result()


def _skipped_notes(files: Sequence[str]) -> tuple[Note, ...]:
    if not files:
        return ()
    message = f"{len(files)} file(s) that are no image were left out (first: {files[0]})"
    return (Note(NoteKind.CALIBRATION, "", message),)


def _classes(samples: Samples) -> int | None:
    """Count the classes of samples that were read; None where they have no labels of classes."""
    try:
        labels = samples.labels()
    except DataError:  # references for a metric, or some samples lack theirs
        return None
    return None if labels is None else len(set(labels.ravel().tolist()))


def tensors_of(plan: QuantizedGraph, given: ScaleTable | None) -> tuple[str, ...]:
    """Return the names of the tensors that are observed for a plan."""
    needed = required_tensors(plan, given)
    if plan.float16 is None:
        return needed
    # All of them: what is kept in float later may be any. Not float16 ends, which hold no more.
    values = (v for v in plan.graph.values if v.dtype is ir.DataType.FLOAT and not is_constant(v))
    return tuple(dict.fromkeys((*needed, *(str(value.name) for value in values))))


def _in_range(plan: QuantizedGraph, statistics: Statistics | None) -> QuantizedGraph:
    """Keep in float32 what float16 cannot hold."""
    if plan.float16 is None:
        return plan
    from intact.calibrate.float16 import keep_within_range  # which few plans need

    return keep_within_range(plan, statistics)
