"""Counts the values of tensors on a cluster: a shard of samples for each worker.

Every count is an integer and every sum exact, so the statistics are the same, bit for bit, as those
of one machine, whoever counts which shard and in whatever order. Images are decoded by the workers;
other samples are read here, because only this program has them, and sent as batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from intact.calibrate.collect import Feed, collect
from intact.calibrate.observe.observer import Observer, find_layout
from intact.calibrate.shards import SampleMap, mapped
from intact.calibrate.statistics import Statistics
from intact.data.batching import Batch
from intact.data.chosen_samples import ChosenSamples, Mark
from intact.data.images.labels import FolderLabels
from intact.data.images.reader import ImageFolder
from intact.data.progress import Progress
from intact.data.shards import BatchShards, Images, ImageShards, Numbered, encode, files_of
from intact.data.stream import Samples
from intact.engines.session import make_session, model_of_outputs, run_session
from intact.errors import DataError, UsageError
from intact.graph import Graph
from intact.limits import CHOSEN, OBSERVED_AT_ONCE

if TYPE_CHECKING:
    import numpy.typing as npt
    from onnxruntime import InferenceSession

_MODEL, _JOB = "model.onnx", "job.msgpack"
"""The files of a saved job."""


class Counted(msgspec.Struct, frozen=True):
    """What a worker found in a shard.

    Attributes:
        statistics: Saved, not compressed; empty where no sample could be read.
        samples: How many there were.
        shapes: How many samples of images had which shapes.
        bad: Positions of the images that were skipped.
        skipped: A line for each.
        marks: The images that may be kept as `ChosenSamples`, numbered among those not skipped.
        limit: The least checksum that was left out for want of room.
    """

    statistics: bytes = b""
    samples: int = 0
    shapes: tuple[tuple[tuple[tuple[int, ...], ...], int], ...] = ()
    bad: tuple[int, ...] = ()
    skipped: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    limit: int | None = None


class _Request(msgspec.Struct, frozen=True):
    tensors: tuple[str, ...]
    max_memory: int | None = None


_decode_asked = msgspec.msgpack.Decoder(_Request).decode
_decode_counted = msgspec.msgpack.Decoder(Counted).decode


class CountingJob(NamedTuple):
    """Counts, with one session; see `intact.calibrate.shards.SampleJob`.

    Attributes:
        graph: The float model.
        tensors: Names of the values to observe.
        max_memory: What one worker may use, as in `intact.calibrate.collect`.
    """

    graph: Graph
    tensors: Sequence[str]
    max_memory: int | None = None

    def save(self, folder: Path) -> None:
        """Write the job to a folder, from which workers `load` it."""
        self.graph.save(folder / _MODEL)
        (folder / _JOB).write_bytes(encode(_Request(tuple(self.tensors), self.max_memory)))

    @classmethod
    def load(cls, folder: Path) -> CountingJob:
        """Read a job that `save` wrote."""
        asked = _decode_asked((folder / _JOB).read_bytes())
        graph = Graph.load(folder / _MODEL)
        mapped(graph.model)
        return cls(graph, asked.tensors, asked.max_memory)

    def open(self, threads: int, *, takes_feeds: bool) -> Callable[[Samples], Counted]:
        """Make the session; return the function that counts a shard."""
        observer = (  # within a limit of memory, parts of the model are observed
            Observer(self.graph, self.tensors, takes_feeds=takes_feeds)
            if self.max_memory is None
            else None
        )

        def counted(samples: Samples, chosen: ChosenSamples | None = None) -> Counted:
            done = 0

            def progress(count: int, _: int | None) -> None:
                nonlocal done
                done = count

            statistics = collect(
                self.graph,
                samples,
                self.tensors,
                threads=threads,
                max_memory=self.max_memory,
                progress=progress,
                chosen=chosen,
                observer=observer,
            )
            return Counted(statistics.to_bytes(compressed=False), done)

        def count_shard(samples: Samples) -> Counted:
            if isinstance(samples.reader, ImageFolder):
                return _image_counts(samples, samples.reader, counted)
            return counted(samples)

        return count_shard


def _image_counts(
    samples: Samples, reader: ImageFolder, counted: Callable[[Samples, ChosenSamples], Counted]
) -> Counted:
    """Decode and count images, and say which could not be."""
    chosen = ChosenSamples()
    try:
        found = counted(samples, chosen)
    except DataError:
        if len(reader.bad) < len(reader):
            raise
        found = Counted()  # other shards may have better ones
    return msgspec.structs.replace(
        found,
        shapes=tuple(samples.shapes.items()),
        bad=tuple(reader.bad),
        skipped=tuple(reader.skipped),
        marks=tuple(chosen.marks),
        limit=chosen.limit,
    )


def collect_on(
    cluster: SampleMap,
    graph: Graph,
    samples: Samples,
    tensors: Sequence[str],
    *,
    threads: int = 0,
    progress: Progress | None = None,
    max_memory: int | None = None,
    first: Batch | None = None,
    chosen: ChosenSamples | None = None,
    bins: int = 0,
) -> Statistics:
    """Observe tensors of the float model over all samples, on the workers of a cluster.

    The other arguments are those of `intact.calibrate.collect`. Threads and memory are those of
    each worker, where 0 threads divides the processors of the cluster; ``progress`` is called after
    every shard.

    Returns:
        The statistics that one machine gives.

    Raises:
        ClusterError: The cluster cannot be reached, has other versions, or loses its workers.
        UsageError: The samples have an order, can be read once only, or were to be read twice.
        IntactError: The errors of `intact.calibrate.collect`.
    """
    if bins:
        raise UsageError(
            "this threshold method reads the samples twice, which a cluster does not",
            remedy="leave out --cluster, or give --method kl_stepwise, which reads them once",
        )
    cluster.open_for(samples)
    fixed = samples.fixed_batch or 1
    reader = files_of(samples, skips=fixed == 1)
    cut: BatchShards | ImageShards
    kept: _KeptImages | None = None
    if reader is None:
        size = _batch_size(graph, samples, tensors)
        cut = BatchShards(samples, size, partial(Feed, samples, size, None, first, chosen))
    else:
        cut = ImageShards(samples, reader, fixed * -(-OBSERVED_AT_ONCE // fixed))
        kept = _KeptImages(samples, reader, cut, first, chosen)
    job = CountingJob(graph, tensors, max_memory)
    statistics, done = Statistics(graph.hash), 0
    for shard, reply in cluster.replies(cut, job, threads=threads):
        counted = _decode_counted(reply)
        if counted.statistics:
            statistics.merge_bytes(counted.statistics)
        if kept is not None:
            kept.take(shard, counted)
        done += counted.samples
        if progress is not None:
            progress(done, samples.count)
    if kept is not None:
        kept.end()
    return statistics


def _batch_size(graph: Graph, samples: Samples, tensors: Sequence[str]) -> int:
    """Return the size of the batches that one machine would run."""

    @cache
    def session(*names: str) -> InferenceSession:
        return make_session(model_of_outputs(graph, names), threads=1)

    def run(inputs: Batch, names: Sequence[str]) -> Sequence[npt.NDArray[Any]]:
        return run_session(session(*names), inputs, names)

    return find_layout(graph, tensors, run, takes_feeds=samples.takes_feeds).batch_size


class _KeptImages:
    """What is kept of images that workers decode: their shapes, the first, and some chosen ones."""

    def __init__(
        self,
        samples: Samples,
        reader: ImageFolder,
        cut: ImageShards,
        first: Batch | None,
        chosen: ChosenSamples | None,
    ) -> None:
        self._samples, self._reader, self._folder = samples, reader, cut.folder
        self._first, self._chosen = first, chosen
        self._found: dict[int, tuple[Images, Counted]] = {}
        samples.shapes.clear()

    def take(self, numbered: Numbered, counted: Counted) -> None:
        """Take what a worker found beside the statistics."""
        if isinstance(numbered.shard, Images):
            # The statistics are merged already; kept for every shard, they would fill the memory.
            small = msgspec.structs.replace(counted, statistics=b"")
            self._found[numbered.number] = numbered.shard, small
        self._samples.shapes.update(dict(counted.shapes))

    def end(self) -> None:
        """Read the few samples that are kept.

        Raises:
            DataError: No image can be used, or one is there no more.
        """
        # In the order of the samples, whichever worker was faster: the first sample is that of one
        # machine.
        ordered = [self._found[number] for number in sorted(self._found)]
        self._reader.skipped = [line for _, counted in ordered for line in counted.skipped]
        self._reader.refuse_all_bad()
        good = [_good(shard, counted) for shard, counted in ordered]
        if self._first is not None and not self._first:
            size = self._samples.fixed_batch or 1
            files = [name for names in good for name in names]
            rows, _ = next(self._open(files[:size]).batches(size))
            self._first.update({name: array.copy() for name, array in rows.items()})
        if self._chosen is not None:
            # A worker left out checksums from its limit on: beyond the least of these the choice is
            # not known to be that of one machine.
            limits = [each.limit for _, each in ordered if each.limit is not None]
            self._chosen.limit = min(limits, default=None)
            marks = [
                (m, names) for (_, c), names in zip(ordered, good, strict=True) for m in c.marks
            ]
            files = _least(marks, self._chosen.limit)
            if files:
                for rows, count in self._open(files).batches(1):
                    self._chosen.add(rows, count)

    def _open(self, files: Sequence[str]) -> Samples:
        """Open some of the files here."""
        reader = ImageFolder(self._folder, files, FolderLabels(None), self._reader.takes)
        return Samples(self._samples.source, self._samples.specs, reader, count=len(files))


def _good(shard: Images, counted: Counted) -> list[str]:
    """List the files of a shard that were not skipped."""
    bad = set(counted.bad)
    return [name for place, name in enumerate(shard.files) if place not in bad]


def _least(marks: Sequence[tuple[Mark, Sequence[str]]], limit: int | None) -> list[str]:
    """Return the files of the least checksums: each once, and only below the limit."""
    found: dict[int, str] = {}
    for mark, files in sorted(marks, key=lambda each: each[0].checksum):
        if limit is None or mark.checksum < limit:
            found.setdefault(mark.checksum, files[mark.number])
    return list(found.values())[:CHOSEN]
