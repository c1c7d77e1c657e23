"""The worker: it counts one shard after the other, with one session."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from intact.calibrate.collect import collect
from intact.calibrate.observe.observer import Observer
from intact.calibrate.shards.messages import (
    Batches,
    Counted,
    Job,
    Place,
    Rows,
    Seen,
    decode_job,
    decode_shard,
    encode,
)
from intact.data.batching import Batch
from intact.data.chosen_samples import ChosenSamples
from intact.data.feeding import Feeding
from intact.data.images.decode import require_pillow
from intact.data.images.fit import image_input
from intact.data.images.labels import FolderLabels
from intact.data.images.reader import ImageFolder
from intact.data.mask import RealPositions
from intact.data.preprocess import preprocess_from_toml
from intact.data.signature import input_specs
from intact.data.stream import Samples
from intact.engines.cpu import detect_cpu
from intact.errors import DataError
from intact.graph import Graph
from intact.graph.files.limits import raised_limits

if TYPE_CHECKING:
    from PIL.Image import Image

MODEL, JOB = "model.onnx", "job.msgpack"
"""The files of a saved job."""
OPENER = f"{__name__}:open_counter"


def open_counter(folder: Path, threads: int) -> Callable[[bytes], bytes]:
    """Load a job; an opener of `intact.cluster.ShardMap`."""
    job = decode_job((folder / JOB).read_bytes())
    with raised_limits(job.raise_limits):
        graph = Graph.load(folder / MODEL)
    for value in graph.model.graph.initializers.values():
        if value.const_value is not None:
            value.const_value.numpy()  # mapped now: the files are removed
    return ShardCounter(graph, job, threads).answer


class ShardCounter:
    """Counts shards.

    Args:
        graph: The float model.
        job: What is counted.
        threads: Batches that run side by side.
    """

    def __init__(self, graph: Graph, job: Job, threads: int) -> None:
        self._graph, self._job, self._threads = graph, job, threads
        self._specs, self._feeding = input_specs(graph), Feeding(job.no_batch)
        takes_feeds = self._rows(()).takes_feeds
        self._observer = (  # within a limit of memory, parts of the model are observed
            Observer(graph, job.tensors, takes_feeds=takes_feeds)
            if job.max_memory is None
            else None
        )

    def answer(self, message: bytes) -> bytes:
        """Count a shard; to an empty message, say what is known of the place."""
        if not message:
            return encode(self._place())
        with raised_limits(self._job.raise_limits):
            shard = decode_shard(message)
            if isinstance(shard, Batches):
                return encode(self._counted(self._rows(shard.batches)))
            if shard.contents is None:
                return encode(self._images(shard.files))
            return encode(self._sent(shard.files, shard.contents))

    def _place(self) -> Place:
        job, folder = self._job, Path(self._job.folder)
        sees_files = all(Seen.of(folder, each.name) == each for each in job.seen)
        return Place(detect_cpu().name, bool(job.seen) and sees_files)

    def _rows(self, batches: Sequence[Rows]) -> _Ready:
        job = self._job
        return _Ready(
            job.source, self._specs, (), mask=job.mask, feeding=self._feeding, ready=batches
        )

    def _sent(self, files: Sequence[str], contents: Sequence[bytes]) -> Counted:
        """Count images that were sent."""
        with tempfile.TemporaryDirectory(prefix="intact-cluster-") as temporary:
            places: dict[str, Path] = {}
            for number, (name, content) in enumerate(zip(files, contents, strict=True)):
                # Not by its name, which may lead out of the folder.
                places[name] = Path(temporary) / str(number)
                places[name].write_bytes(content)
            return self._images(files, places)

    def _images(self, files: Sequence[str], places: Mapping[str, Path] | None = None) -> Counted:
        """Decode and count images."""
        require_pillow()
        steps = preprocess_from_toml(self._job.preprocess, JOB)
        takes = image_input(self._specs, steps)
        reader = _Folder(
            Path(self._job.folder),
            files,
            FolderLabels(None),
            takes,
            skip_bad=self._job.skip_bad,
            threads=self._threads,
        )
        reader.places = places or {}
        samples = Samples(self._job.source, {takes.name: takes.spec}, reader, count=len(files))
        chosen = ChosenSamples()
        try:
            found = self._counted(samples, chosen)
        except DataError:
            if len(reader.bad) < len(files):
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


class _Folder(ImageFolder):
    """Images, some of which lie elsewhere here; messages name them as they were given."""

    places: Mapping[str, Path]

    def _source(self, file: str | Path | Image) -> Path | Image:
        return self.places.get(str(file)) or super()._source(file)


@dataclass(frozen=True)
class _Ready(Samples):
    """Samples that were read and put into batches by another program."""

    ready: Sequence[Rows] = ()

    def masked_batches(self, size: int) -> Iterator[tuple[Batch, int, RealPositions | None]]:
        """Yield them; they have the size that is asked for."""
        del size
        for rows in self.ready:
            inputs = {name: each.array() for name, each in rows.inputs.items()}
            yield inputs, rows.count, None if rows.real is None else rows.real.array()
