"""Samples cut into shards: images as names of files, all others as batches, read here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from intact.calibrate.shards.messages import (
    Array,
    Batches,
    FolderProbe,
    Images,
    Numbered,
    Rows,
    Shard,
    Source,
)
from intact.data.batching import Batch
from intact.data.images.reader import ImageFolder
from intact.data.mask import RealPositions
from intact.data.preprocess import preprocess_to_toml
from intact.data.stream import AGAIN, Samples
from intact.errors import UsageError

SHARDS = 8
"""Shards for each worker: while the last ones are done, others idle."""
_MOST_SAMPLES = 1024
_MOST_BYTES = 1 << 26
"""Of the samples of one shard that are sent: they are kept until they are done."""
_UNKNOWN = 256
"""Samples of a shard where their number is not known."""


class Cut(Protocol):
    """Samples in shards."""

    @property
    def source(self) -> Source:
        """What workers must know of them."""

    def shards(self, workers: int) -> Iterator[Numbered]:
        """Yield them in the order of the samples."""

    def sent(self, shard: Shard, *, sees_files: bool) -> Shard:
        """Return what a worker is sent, which sees the files of this program or does not."""


def refuse_order(samples: Samples) -> None:
    """Refuse samples that are not a set.

    Raises:
        UsageError: They have states, or are an iterator.
    """
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


def files_of(samples: Samples, *, skips: bool) -> ImageFolder | None:
    """Return the images that workers can decode; None of other samples.

    Args:
        samples: As they were opened.
        skips: Whether files may be left out within a shard. Where batches must be those of one
            machine they may not: they would shift.
    """
    reader = samples.reader
    if not isinstance(reader, ImageFolder) or not all(
        isinstance(each, str | Path) for each in reader.files
    ):
        return None
    return None if reader.skip_bad and not skips else reader


class BatchesHere:
    """Samples that this program reads, checks and sends.

    Args:
        samples: The samples.
        size: Of a batch.
        feed: Makes their batches, each with the number of real samples and their real positions.
        each: Shards for each worker.
    """

    def __init__(
        self,
        samples: Samples,
        size: int,
        feed: Callable[[], Iterable[tuple[Batch, int, RealPositions | None]]],
        each: int = SHARDS,
    ) -> None:
        self.source = Source(samples.source, samples.mask, samples.feeding.no_batch)
        self._count, self._size, self._feed, self._each = samples.count, size, feed, each

    def shards(self, workers: int) -> Iterator[Numbered]:
        """Read the samples, batch by batch."""
        wanted = _shard_samples(self._count, workers * self._each, self._size)
        batches: list[Rows] = []
        number = count = size = 0
        for inputs, real_count, real in self._feed():
            rows = {name: Array.of(array) for name, array in inputs.items()}
            batches.append(Rows(rows, real_count, None if real is None else Array.of(real)))
            count += real_count
            size += sum(len(each.content) for each in rows.values())
            if count >= wanted or size >= _MOST_BYTES:
                yield Numbered(number, Batches(batches))
                batches, number, count, size = [], number + 1, 0, 0
        if batches:
            yield Numbered(number, Batches(batches))

    def sent(self, shard: Shard, *, sees_files: bool) -> Shard:
        """Return the shard."""
        del sees_files
        return shard


class FilesThere:
    """Images that workers decode.

    Args:
        samples: The samples.
        reader: Their images.
        size: Of a batch: shards are multiples of it.
        each: Shards for each worker.

    Attributes:
        folder: An absolute path.
        files: Relative to the folder.
    """

    def __init__(
        self, samples: Samples, reader: ImageFolder, size: int, each: int = SHARDS
    ) -> None:
        self.folder = reader.folder.resolve()
        self.files = [str(name) for name in reader.files]
        self._size, self._each = size, each
        ends = {0: None, len(self.files) // 2: None, len(self.files) - 1: None}
        seen = (FolderProbe.of(self.folder, self.files[place]) for place in ends)
        self.source = Source(
            samples.source,
            samples.mask,
            samples.feeding.no_batch,
            str(self.folder),
            tuple(one for one in seen if one is not None),
            preprocess_to_toml(reader.takes.preprocess),
            reader.skip_bad,
        )

    def shards(self, workers: int) -> Iterator[Numbered]:
        """Cut the list of files."""
        size = _shard_samples(len(self.files), workers * self._each, self._size)
        for number, start in enumerate(range(0, len(self.files), size)):
            yield Numbered(number, Images(self.files[start : start + size]))

    def sent(self, shard: Shard, *, sees_files: bool) -> Shard:
        """Return the shard, with the files if the worker does not see them.

        Raises:
            DataError: One cannot be read.
        """
        if sees_files or not isinstance(shard, Images):
            return shard
        return shard.with_contents(self.folder)


def _shard_samples(count: int | None, shards: int, unit: int) -> int:
    """Return the number of samples of a shard, a multiple of a unit."""
    wanted = _UNKNOWN if count is None else -(-count // shards)
    return -(-min(wanted, _MOST_SAMPLES) // unit) * unit
