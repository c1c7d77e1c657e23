"""Shards of samples mapped over the workers of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from intact.calibrate.shards.cutting import Cut, refuse_order
from intact.calibrate.shards.messages import Numbered, decode_place, encode
from intact.cluster import Connection, Savable, ShardMap
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
