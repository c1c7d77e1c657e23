"""``collect`` on a cluster: samples in shards, one worker for each, and what they found merged.

Every count is an integer and every sum exact, so the statistics are the same, bit for bit, as those
of one machine, whoever counts which shard and in whatever order. Images are decoded by the workers;
other samples are read here, because only this program has them, and sent as batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from intact.calibrate.collect import Feed
from intact.calibrate.observe.observer import find_layout, model_of_outputs
from intact.calibrate.shards.messages import (
    Array,
    Batches,
    Counted,
    Images,
    Job,
    Rows,
    Seen,
    Shard,
    decode_counted,
    decode_place,
    encode,
)
from intact.calibrate.shards.worker import JOB, MODEL, OPENER
from intact.calibrate.statistics import Statistics
from intact.cluster import Connection, ShardMap
from intact.data.batching import Batch
from intact.data.chosen_samples import MOST, ChosenSamples, Mark
from intact.data.images.labels import FolderLabels
from intact.data.images.reader import ImageFolder
from intact.data.preprocess import preprocess_to_toml
from intact.data.progress import Progress
from intact.data.stream import AGAIN, Samples
from intact.engines.cpu import detect_cpu
from intact.engines.session import make_session, run_session
from intact.errors import UsageError
from intact.graph import Graph
from intact.graph.files.limits import limit_of
from intact.plan import Note, NoteKind

if TYPE_CHECKING:
    import numpy.typing as npt
    from onnxruntime import InferenceSession

_SHARDS = 8
"""Shards for each worker: while the last ones are counted, others idle."""
_MOST_SAMPLES = 1024
_MOST_BYTES = 1 << 26
"""Of the samples of one shard that are sent: they are kept until they are counted."""
_UNIT = 32
"""Images come in multiples of the largest batch."""
_UNKNOWN = 256
"""Samples of a shard where their number is not known."""


class ShardedCollector:
    """Collects statistics on a cluster; a context manager that ends the connection.

    Args:
        address: Of the Ray cluster; ``local`` starts one here.
        workers: How many; None for one on each processor.

    Raises:
        MissingExtraError: Ray is not installed.
    """

    def __init__(self, address: str, workers: int | None = None) -> None:
        self._connection = Connection(address)
        self._workers = workers
        self._processors: set[str] = set()

    @property
    def notes(self) -> tuple[Note, ...]:
        """What is to be known of the workers."""
        if not self._processors:
            return ()
        names = ", ".join(sorted(self._processors))
        message = (
            f"some samples were run on other processors ({names}), where ONNX Runtime's floats may "
            "differ in their last bits"
        )
        return (Note(NoteKind.CALIBRATION, "", message),)

    def __enter__(self) -> ShardedCollector:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Disconnect."""
        self._connection.close()

    def collect(
        self,
        graph: Graph,
        samples: Samples,
        tensors: Sequence[str],
        *,
        threads: int = 0,
        progress: Progress | None = None,
        max_memory: int | None = None,
        first: Batch | None = None,
        chosen: ChosenSamples | None = None,
    ) -> Statistics:
        """Observe tensors of the float model over all samples.

        The arguments are those of `intact.calibrate.collect`; threads and memory are those of each
        worker, where 0 threads divides the processors of the cluster, and ``progress`` is called
        after every shard.

        Returns:
            The statistics that one machine gives.

        Raises:
            ClusterError: The cluster cannot be reached, has other versions, or loses its workers.
            UsageError: The samples have an order, or can be read once only.
            IntactError: As of `intact.calibrate.collect`.
        """
        _refuse_order(samples)
        self._connection.open()
        job = Job(
            samples.source,
            tuple(tensors),
            raise_limits=limit_of(1),
            max_memory=max_memory,
            mask=samples.mask,
            no_batch=samples.feeding.no_batch,
        )
        reader = _decodable(samples)
        task: _ReadHere | _Decoded
        if reader is None:
            task = _ReadHere(graph, samples, job, first, chosen)
        else:
            task = _Decoded(samples, reader, job, first, chosen)
        saved = _SavedJob(graph, task.job)
        statistics, done = Statistics(graph.hash), 0
        with ShardMap(
            self._connection, saved, OPENER, workers=self._workers, threads=threads
        ) as shards:
            for shard, reply in shards.results(task.shards(shards.workers), self._message(task)):
                counted = decode_counted(reply)
                if counted.statistics:
                    statistics.merge_bytes(counted.statistics)
                task.take(shard, counted)
                done += counted.samples
                if progress is not None:
                    progress(done, samples.count)
        task.end()
        return statistics

    def _message(self, task: _ReadHere | _Decoded) -> _Message:
        return _Message(task, self._processors)


class _Message:
    """Writes shards for workers, by what they said of themselves."""

    def __init__(self, task: _ReadHere | _Decoded, processors: set[str]) -> None:
        self._task, self._processors = task, processors
        self._own = detect_cpu().name

    def __call__(self, shard: _Numbered, said: bytes) -> bytes:
        place = decode_place(said)
        if place.processor != self._own:
            self._processors.add(place.processor)
        return encode(self._task.sent(shard.shard, sees_files=place.sees_files))


class _Numbered(msgspec.Struct, frozen=True):
    number: int
    shard: Shard


def _refuse_order(samples: Samples) -> None:
    """Refuse samples that are not a set."""
    if samples.feeding.states:
        raise UsageError(
            f"{samples.source}: samples with states are a sequence, and --cluster cuts them into "
            "shards",
            remedy="leave out --cluster",
        )
    if isinstance(samples.reader, Iterator):
        raise UsageError(
            f"{samples.source}: an iterator cannot be cut into shards for --cluster",
            remedy=f"{AGAIN}, or leave out --cluster",
        )


def _decodable(samples: Samples) -> ImageFolder | None:
    """Return the files of images that workers decode; None of other samples.

    A model of a fixed batch gets the same batches as on one machine: files that are left out would
    shift them within a shard.
    """
    reader = samples.reader
    if not isinstance(reader, ImageFolder) or not all(
        isinstance(each, str | Path) for each in reader.files
    ):
        return None
    shifts = reader.skip_bad and (samples.fixed_batch or 1) > 1
    return None if shifts else reader


def _shard_samples(count: int | None, workers: int, unit: int) -> int:
    """Return the number of samples of a shard, a multiple of a unit."""
    wanted = _UNKNOWN if count is None else -(-count // (workers * _SHARDS))
    return -(-min(wanted, _MOST_SAMPLES) // unit) * unit


class _SavedJob:
    """The files that workers load."""

    def __init__(self, graph: Graph, job: Job) -> None:
        self._graph, self._job = graph, job

    def save(self, folder: Path) -> None:
        """Write them to a folder."""
        self._graph.save(folder / MODEL)
        (folder / JOB).write_bytes(encode(self._job))


class _ReadHere:
    """Samples that this program reads, checks and sends."""

    def __init__(
        self,
        graph: Graph,
        samples: Samples,
        job: Job,
        first: Batch | None,
        chosen: ChosenSamples | None,
    ) -> None:
        self.job = job
        self._samples = samples

        @cache
        def session(*names: str) -> InferenceSession:
            return make_session(model_of_outputs(graph, names), threads=1)

        def run(inputs: Batch, names: Sequence[str]) -> Sequence[npt.NDArray[Any]]:
            return run_session(session(*names), inputs, names)

        layout = find_layout(graph, job.tensors, run, takes_feeds=samples.takes_feeds)
        self._size = layout.batch_size
        self._feed = partial(Feed, samples, self._size, None, first, chosen)

    def shards(self, workers: int) -> Iterator[_Numbered]:
        """Read the samples, batch by batch."""
        wanted = _shard_samples(self._samples.count, workers, self._size)
        batches: list[Rows] = []
        number = count = size = 0
        for inputs, real_count, real in self._feed():
            rows = {name: Array.of(array) for name, array in inputs.items()}
            batches.append(Rows(rows, real_count, None if real is None else Array.of(real)))
            count += real_count
            size += sum(len(each.content) for each in rows.values())
            if count >= wanted or size >= _MOST_BYTES:
                yield _Numbered(number, Batches(batches))
                batches, number, count, size = [], number + 1, 0, 0
        if batches:
            yield _Numbered(number, Batches(batches))

    def sent(self, shard: Shard, *, sees_files: bool) -> Shard:
        """Return what a worker is sent, whether it sees the files of this program or not."""
        del sees_files
        return shard

    def take(self, numbered: _Numbered, counted: Counted) -> None:
        """Take what a worker found beside the statistics: nothing that is not known here."""

    def end(self) -> None:
        """All is known."""


class _Decoded:
    """Images that workers decode."""

    def __init__(
        self,
        samples: Samples,
        reader: ImageFolder,
        job: Job,
        first: Batch | None,
        chosen: ChosenSamples | None,
    ) -> None:
        self._samples, self._reader = samples, reader
        self._first, self._chosen = first, chosen
        self._folder = reader.folder.resolve()
        self._files = [str(each) for each in reader.files]
        ends = {0: None, len(self._files) // 2: None, len(self._files) - 1: None}
        seen = (Seen.of(self._folder, self._files[place]) for place in ends)
        self.job = msgspec.structs.replace(
            job,
            folder=str(self._folder),
            seen=tuple(each for each in seen if each is not None),
            preprocess=preprocess_to_toml(reader.takes.preprocess),
            skip_bad=reader.skip_bad,
        )
        self._found: dict[int, tuple[Images, Counted]] = {}
        samples.shapes.clear()

    def shards(self, workers: int) -> Iterator[_Numbered]:
        """Cut the list of files."""
        fixed = self._samples.fixed_batch or 1
        size = _shard_samples(len(self._files), workers, fixed * -(-_UNIT // fixed))
        for number, start in enumerate(range(0, len(self._files), size)):
            yield _Numbered(number, Images(self._files[start : start + size]))

    def sent(self, shard: Shard, *, sees_files: bool) -> Shard:
        """Return what a worker is sent: with the files, if it does not see them."""
        if sees_files or not isinstance(shard, Images):
            return shard
        return shard.with_contents(self._folder)

    def take(self, numbered: _Numbered, counted: Counted) -> None:
        """Take what a worker found beside the statistics."""
        if isinstance(numbered.shard, Images):
            small = msgspec.structs.replace(counted, statistics=b"")
            self._found[numbered.number] = numbered.shard, small
        self._samples.shapes.update(dict(counted.shapes))

    def end(self) -> None:
        """Read the few samples that are kept.

        Raises:
            DataError: No image can be used, or one is there no more.
        """
        ordered = [self._found[number] for number in sorted(self._found)]
        self._reader.skipped = [line for _, counted in ordered for line in counted.skipped]
        self._reader.refuse_all_bad()
        good = [_good(shard, counted) for shard, counted in ordered]
        if self._first is not None and not self._first:
            size = self._samples.fixed_batch or 1
            files = [name for names in good for name in names]
            rows, _ = next(self._opened(files[:size]).batches(size))
            self._first.update({name: array.copy() for name, array in rows.items()})
        if self._chosen is not None:
            limits = [each.limit for _, each in ordered if each.limit is not None]
            self._chosen.limit = min(limits, default=None)
            marks = [
                (m, names) for (_, c), names in zip(ordered, good, strict=True) for m in c.marks
            ]
            files = _least(marks, self._chosen.limit)
            if files:
                for rows, count in self._opened(files).batches(1):
                    self._chosen.add(rows, count)

    def _opened(self, files: Sequence[str]) -> Samples:
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
    return list(found.values())[:MOST]
