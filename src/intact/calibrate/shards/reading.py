"""What a worker does with a shard first: it opens its samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from intact.calibrate.shards.messages import Batches, FolderProbe, Place, Rows, Shard, Source
from intact.data.batching import Batch
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
from intact.graph import Graph

if TYPE_CHECKING:
    from PIL.Image import Image


class ShardReader:
    """Opens shards.

    Args:
        graph: The float model.
        source: Of the samples.
        threads: That decode images.
    """

    def __init__(self, graph: Graph, source: Source, threads: int) -> None:
        self._source, self._threads = source, threads
        self._specs, self._feeding = input_specs(graph), Feeding(source.no_batch)

    @property
    def takes_feeds(self) -> bool:
        """Whether each sample is a batch of its own."""
        return self._rows(()).takes_feeds

    def place(self) -> Place:
        """Say what is known of this worker."""
        folder, seen = Path(self._source.folder), self._source.seen
        sees_files = all(FolderProbe.of(folder, each.name) == each for each in seen)
        return Place(detect_cpu().name, bool(seen) and sees_files)

    def samples(self, shard: Shard) -> Samples:
        """Open a shard.

        Raises:
            MissingExtraError: There are images, and Pillow is not installed.
        """
        if isinstance(shard, Batches):
            return self._rows(shard.batches)
        require_pillow()
        source = self._source
        takes = image_input(
            self._specs, preprocess_from_toml(source.preprocess, "the steps of this program")
        )
        reader = _Folder(
            Path(source.folder),
            shard.files,
            FolderLabels(None),
            takes,
            skip_bad=source.skip_bad,
            threads=self._threads,
        )
        if shard.contents is not None:
            reader.contents = dict(zip(map(str, shard.files), shard.contents, strict=True))
        return Samples(source.name, {takes.name: takes.spec}, reader, count=len(shard.files))

    def _rows(self, batches: Sequence[Rows]) -> _Ready:
        source = self._source
        return _Ready(
            source.name,
            self._specs,
            (),
            mask=source.mask,
            feeding=self._feeding,
            ready=batches,
        )


class _Folder(ImageFolder):
    """Images, some of which were sent; messages name them as they were given."""

    contents: Mapping[str, bytes] = {}

    def _source(self, file: str | Path | Image) -> Path | Image | bytes:
        content = self.contents.get(str(file))
        return super()._source(file) if content is None else content


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
