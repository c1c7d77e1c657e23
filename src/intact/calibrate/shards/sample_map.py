"""Shards of samples mapped over the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType

import numpy as np

from intact.calibrate.shards.cutting import (
    SHARDS,
    BatchesHere,
    Cut,
    FilesThere,
    files_of,
    refuse_order,
)
from intact.calibrate.shards.messages import Images, Numbered, Source, decode_place, encode
from intact.cluster import Connection, ShardMap
from intact.cluster.actors import Savable
from intact.data.batching import Batch
from intact.data.mask import RealPositions
from intact.data.signature import LABELS
from intact.data.stream import Samples
from intact.engines.cpu import detect_cpu


class SampleMap:
    """A cluster that shards of samples are sent to; a context manager that ends the connection.

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        self, cut: Cut, job: Savable, opener: str, *, threads: int = 0
    ) -> Iterator[tuple[Numbered, bytes]]:
        """Yield each shard with the reply of its worker, as they come.

        Args:
            cut: The samples.
            job: What workers load.
            opener: Loads it, as of `intact.cluster.ShardMap`; to an empty message it answers with
                a `Place`.
            threads: Of each worker; 0 divides the processors of the cluster.

        Raises:
            ClusterError: The cluster has other versions, or loses its workers.
            IntactError: What a worker raised.
        """
        own = detect_cpu().name

        def message(each: Numbered, said: bytes) -> bytes:
            place = decode_place(said)
            if place.processor != own:
                self._processors.add(place.processor)
            return encode(cut.sent(each.shard, sees_files=place.sees_files))

        with ShardMap(
            self._connection, job, opener, workers=self._workers, threads=threads
        ) as shards:
            yield from shards.results(cut.shards(shards.workers), message)

    def replies_in_order(
        self,
        samples: Samples,
        size: int,
        job: Callable[[Source], Savable],
        opener: str,
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
            size: Of a batch.
            job: Makes what workers load, for what they must know of the samples.
            opener: As of `replies`.
            threads: As of `replies`.
            shards: For each worker, at least, where there are enough batches.
            first: Filled with the first batch.

        Returns:
            The reply to each shard, in the order of the samples.

        Raises:
            ClusterError: As of `open_for` and `replies`.
            IntactError: A sample is wrong, or what a worker raised.
        """
        self.open_for(samples)
        quiet = replace(samples, progress=None)  # what is done counts, and not what is read
        reader = files_of(samples, skips=False)
        cut: BatchesHere | FilesThere
        if reader is None:

            def feed() -> Iterator[tuple[Batch, int, RealPositions | None]]:
                for rows, count in quiet.batches(size):
                    if first is not None and not first:
                        first.update(rows)
                    yield rows, count, None

            cut = BatchesHere(samples, size, feed, shards)
        else:
            cut = FilesThere(samples, reader, size, shards)
            if first is not None:
                first.update(next(quiet.batches(size))[0])
        found: dict[int, bytes] = {}
        done = 0
        for each, reply in self.replies(cut, job(cut.source), opener, threads=threads):
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
        return [found[number] for number in sorted(found)]
