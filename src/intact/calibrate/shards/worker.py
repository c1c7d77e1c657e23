"""The worker that counts: one shard after the other, with one session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir

from intact.calibrate.collect import collect
from intact.calibrate.observe.observer import Observer
from intact.calibrate.shards.messages import Counted, Images, Job, decode_job, decode_shard, encode
from intact.calibrate.shards.reading import ShardReader
from intact.data.chosen_samples import ChosenSamples
from intact.data.images.reader import ImageFolder
from intact.data.stream import Samples
from intact.errors import DataError
from intact.graph import Graph
from intact.graph.files.limits import raised_limits

MODEL, JOB = "model.onnx", "job.msgpack"
"""The files of a saved job."""
OPENER = f"{__name__}:open_counter"


def open_counter(folder: Path, threads: int) -> Callable[[bytes], bytes]:
    """Load a job; an opener of `intact.cluster.ShardMap`."""
    job = decode_job((folder / JOB).read_bytes())
    with raised_limits(job.raise_limits):
        graph = Graph.load(folder / MODEL)
    mapped(graph.model)
    return ShardCounter(graph, job, threads).answer


def mapped(model: ir.Model) -> None:
    """Map the weights of a model that was just loaded: its files are removed."""
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            value.const_value.numpy()


class ShardCounter:
    """Counts shards.

    Args:
        graph: The float model.
        job: What is counted.
        threads: Batches that run side by side.
    """

    def __init__(self, graph: Graph, job: Job, threads: int) -> None:
        self._graph, self._job, self._threads = graph, job, threads
        self._reader = ShardReader(graph, job.source, threads)
        self._observer = (  # within a limit of memory, parts of the model are observed
            Observer(graph, job.tensors, takes_feeds=self._reader.takes_feeds)
            if job.max_memory is None
            else None
        )

    def answer(self, message: bytes) -> bytes:
        """Count a shard; to an empty message, say what is known of the place."""
        if not message:
            return encode(self._reader.place())
        with raised_limits(self._job.raise_limits):
            shard = decode_shard(message)
            samples = self._reader.samples(shard)
            if isinstance(shard, Images):
                return encode(self._images(samples))
            return encode(self._counted(samples))

    def _images(self, samples: Samples) -> Counted:
        """Decode and count images, and say which could not be."""
        reader = samples.reader
        if not isinstance(reader, ImageFolder):
            raise TypeError("images are not read from a folder")
        chosen = ChosenSamples()
        try:
            found = self._counted(samples, chosen)
        except DataError:
            if len(reader.bad) < len(reader):
                raise
            found = Counted()  # other shards may have better ones
        return Counted(
            found.statistics,
            found.samples,
            tuple(samples.shapes.items()),
            tuple(reader.bad),
            tuple(reader.skipped),
            tuple(chosen.marks),
            chosen.limit,
        )

    def _counted(self, samples: Samples, chosen: ChosenSamples | None = None) -> Counted:
        done = 0

        def progress(count: int, _: int | None) -> None:
            nonlocal done
            done = count

        statistics = collect(
            self._graph,
            samples,
            self._job.tensors,
            threads=self._threads,
            max_memory=self._job.max_memory,
            progress=progress,
            chosen=chosen,
            observer=self._observer,
        )
        return Counted(statistics.to_bytes(compressed=False), done)
