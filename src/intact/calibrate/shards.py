"""Sends shards of samples to the workers of a cluster, and collects their replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import onnx_ir as ir

from intact.data.batching import Batch
from intact.data.mask import RealPositions
from intact.data.shards import (
    SHARDS,
    BatchShards,
    Images,
    ImageShards,
    Numbered,
    ShardedSamples,
    ShardReader,
    Source,
    decode_shard,
    encode,
    files_of,
    refuse_order,
)
from intact.data.signature import LABELS
from intact.data.stream import Samples
from intact.engines.cpu import detect_cpu
from intact.errors import ClusterError
from intact.graph import Graph
from intact.graph.files.limits import limit_of, raised_limits
from intact.workers.job import LostError, Opened, class_named, name_of
from intact.workers.pool import MOST_WORKERS, Pool
from intact.workers.ray_ import Connection, RayLauncher

_HEAD = "shards.msgpack"
_TRIES = 3
"""Workers that one shard may cost."""
_AHEAD = 2
"""Shards at one worker."""


class _Place(msgspec.Struct, frozen=True):
    """What a worker says of itself.

    Attributes:
        processor: Its name.
        sees_files: Whether it has the same images at the same path.
    """

    processor: str
    sees_files: bool


_decode_place = msgspec.msgpack.Decoder(_Place).decode


class SampleJob(Protocol):
    """What is done with samples, as a worker does it with each shard of them.

    Workers find the class by its name, so it is at the top of a module.
    """

    @property
    def graph(self) -> Graph:
        """The float model, whose inputs the samples are."""

    def save(self, folder: Path) -> None:
        """Write the job to an empty folder."""

    @classmethod
    def load(cls, folder: Path) -> SampleJob:
        """Read a job that `save` wrote; map its weights here or in `open`, for the folder goes."""

    def open(self, threads: int, *, takes_feeds: bool) -> Callable[[Samples], msgspec.Struct]:
        """Prepare to work; return what is done with the samples of a shard.

        Args:
            threads: For the work.
            takes_feeds: Whether each sample is a batch of its own.
        """


class _Head(msgspec.Struct, frozen=True):
    """What is saved beside a `SampleJob`."""

    kind: str
    source: Source
    raise_limits: int


class _ShardJob(NamedTuple):
    """A `SampleJob` for workers: it answers shards of the samples of a source."""

    own: SampleJob
    source: Source
    raise_limits: int

    def save(self, folder: Path) -> None:
        (folder / _HEAD).write_bytes(encode(_Head(name_of(self.own), *self[1:])))
        self.own.save(folder)

    @classmethod
    def load(cls, folder: Path) -> _ShardJob:
        head = _decode_head((folder / _HEAD).read_bytes())
        # The limits that the user raised hold in the worker too, which is another process.
        with raised_limits(head.raise_limits):
            return cls(class_named(head.kind).load(folder), head.source, head.raise_limits)

    def open(self, threads: int) -> Opened:
        reader = ShardReader(self.own.graph, self.source, threads)
        with raised_limits(self.raise_limits):
            work = self.own.open(threads, takes_feeds=reader.takes_feeds)

        def answer(message: bytes) -> bytes:
            with raised_limits(self.raise_limits):
                return encode(work(reader.samples(decode_shard(message))))

        return Opened(answer, encode(_Place(detect_cpu().name, reader.sees_files)))


_decode_head = msgspec.msgpack.Decoder(_Head).decode


def mapped(model: ir.Model) -> None:
    """Map the weights of a model that was just loaded: its files are removed."""
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            value.const_value.numpy()


class SampleMap:
    """A cluster that shards of samples are sent to; a context manager that ends the connection.

    Args:
        address: Where the Ray cluster is; ``local`` starts one here.
        workers: How many; None for one on each processor.

    Raises:
        MissingExtraError: Ray is not installed.
    """

    def __init__(self, address: str, workers: int | None = None) -> None:
        self._connection = Connection(address)
        self._workers = workers
        self._processors: set[str] = set()

    @property
    def doubts(self) -> tuple[str, ...]:
        """What makes results of the workers doubtful, a line each."""
        if not self._processors:
            return ()
        names = ", ".join(sorted(self._processors))
        return (
            f"some samples were run on other processors ({names}), where ONNX Runtime's floats may "
            "differ in their last bits",
        )

    def __enter__(self) -> SampleMap:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self._connection.close()

    def open_for(self, samples: Samples) -> None:
        """Connect, if the samples can be cut.

        Raises:
            ClusterError: The cluster cannot be reached.
            UsageError: The samples have an order, or can be read once only.
        """
        refuse_order(samples)
        self._connection.open()

    def replies(
        self, cut: ShardedSamples, job: SampleJob, *, threads: int = 0
    ) -> Iterator[tuple[Numbered, bytes]]:
        """Yield each shard with the reply of its worker, as they come.

        Args:
            cut: The samples.
            job: What workers do.
            threads: Threads of each worker; 0 divides the processors of the cluster.

        Raises:
            ClusterError: The cluster has other versions, or loses its workers.
            IntactError: What a worker raised.
        """
        own = detect_cpu().name

        def message(each: Numbered, hello: bytes) -> bytes:
            place = _decode_place(hello)
            # Another processor may have other kernels, whose floats differ in their last bits.
            if place.processor != own:
                self._processors.add(place.processor)
            return encode(cut.sent(each.shard, sees_files=place.sees_files))

        launcher = RayLauncher(self._connection, threads)
        workers = self._workers
        if workers is None:
            workers = min(max(1, self._connection.processors), MOST_WORKERS)
        shard_job = _ShardJob(job, cut.source, limit_of(1))
        with Pool(launcher, shard_job, workers, tries=_TRIES, ahead=_AHEAD) as pool:
            pool.start()
            for each, reply in pool.results(cut.shards(workers), message):
                if isinstance(reply, LostError):
                    raise ClusterError(
                        f"{_TRIES} workers were lost at the same samples; the last: {reply}",
                        remedy=launcher.remedy,
                    )
                yield each, reply

    def replies_in_order(
        self,
        samples: Samples,
        size: int,
        job: SampleJob,
        *,
        threads: int = 0,
        shards: int = SHARDS,
        first: Batch | None = None,
    ) -> list[bytes]:
        """Map shards of whole batches, the same as one machine would run.

        Images are read here where bad ones are skipped: batches would shift within a shard.

        Args:
            samples: The samples; their labels and references are known afterwards, and their
                progress is told after every shard.
            size: Samples of a batch.
            job: What workers do.
            threads: The same as for `replies`.
            shards: For each worker, at least, where there are enough batches.
            first: Filled with the first batch.

        Returns:
            The reply to each shard, in the order of the samples.

        Raises:
            ClusterError: The errors of `open_for` and `replies`.
            IntactError: A sample is wrong, or what a worker raised.
        """
        self.open_for(samples)
        quiet = replace(samples, progress=None)  # what is done counts, and not what is read
        reader = files_of(samples, skips=False)
        cut: BatchShards | ImageShards
        if reader is None:

            def feed() -> Iterator[tuple[Batch, int, RealPositions | None]]:
                for rows, count in quiet.batches(size):
                    if first is not None and not first:
                        first.update(rows)
                    yield rows, count, None

            cut = BatchShards(samples, size, feed, shards)
        else:
            # Workers decode the files. Only the first batch is read here too, where the caller asks
            # for it.
            cut = ImageShards(samples, reader, size, shards)
            if first is not None:
                first.update(next(quiet.batches(size))[0])
        found: dict[int, bytes] = {}
        done = 0
        for each, reply in self.replies(cut, job, threads=threads):
            found[each.number] = reply
            shard = each.shard
            done += (
                len(shard.files)
                if isinstance(shard, Images)
                else sum(rows.count for rows in shard.batches)
            )
            if samples.progress is not None:
                samples.progress(done, samples.count)
        if reader is not None:
            numbers = None if reader.takes.name == LABELS else reader.labels.numbers
            known = {} if numbers is None else {LABELS: np.array(numbers, np.int64)}
            samples.was_read(known, len(reader.files))
        # Replies come as workers end. By their numbers, results do not depend on who was faster.
        return [found[number] for number in sorted(found)]
