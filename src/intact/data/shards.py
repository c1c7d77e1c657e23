"""Cuts samples into shards, which workers on other machines read (``--cluster``).

Of a folder of images the names of files are sent, and workers decode them (`ImageShards`); their
contents go along to a worker that does not see the folder. All other samples are read here, and
sent as batches of arrays (`BatchShards`). Both are `ShardedSamples`. 1000 images for 4 workers with
8 shards each become 32 shards, ``Images(("a.png", "b.png", ...))``; where they arrive, a
`ShardReader` makes `Samples` of each.

What is sent is msgpack: decoding runs no code.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from intact.data.batching import Batch
from intact.data.feeding import Feeding
from intact.data.images.decode import require_pillow
from intact.data.images.fit import image_input
from intact.data.images.labels import FolderLabels
from intact.data.images.reader import ImageFolder
from intact.data.mask import RealPositions
from intact.data.preprocess import preprocess_from_toml, preprocess_to_toml
from intact.data.signature import input_specs
from intact.data.stream import AGAIN, Samples
from intact.errors import DataError, UsageError
from intact.graph import Graph

if TYPE_CHECKING:
    from PIL.Image import Image

SHARDS = 8
"""Shards for each worker: with few, workers that are done wait long for the last one."""
_MOST_SAMPLES = 1024
"""Most samples of one shard."""
_MOST_BYTES = 1 << 26
"""Most bytes of one shard that is sent: it is kept until it is done."""
_UNKNOWN = 256
"""Samples of a shard where their number is not known."""


class Array(msgspec.Struct, frozen=True, array_like=True):
    """An array as it is sent."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes

    @staticmethod
    def of(array: npt.NDArray[Any]) -> Array:
        """Copy an array."""
        # `tobytes` is in C order whatever the array's, and `dtype.str` has the byte order.
        return Array(array.dtype.str, array.shape, array.tobytes())

    def array(self) -> npt.NDArray[Any]:
        """Return the array, read-only."""
        return np.frombuffer(self.content, np.dtype(self.dtype)).reshape(self.shape)


class FolderProbe(msgspec.Struct, frozen=True):
    """A file by which a worker tells whether it sees the same folder as this program.

    Attributes:
        name: Relative to the folder.
        checksum: CRC-32 of its content.
    """

    name: str
    checksum: int

    @staticmethod
    def of(folder: Path, name: str) -> FolderProbe | None:
        """Read a file; None if it cannot be read."""
        try:
            return FolderProbe(name, zlib.crc32((folder / name).read_bytes()))
        except OSError:
            return None


class Source(msgspec.Struct, frozen=True):
    """What a worker must know of samples to read a shard of them.

    Attributes:
        name: What the data is called in messages.
        mask: Name of the mask.
        no_batch: Inputs that have no axis for samples.
        folder: Absolute path of the folder of images.
        seen: Some of the images, by which a worker tells whether it sees the folder.
        preprocess: The steps of images, as the content of a preprocessing file.
        skip_bad: Whether images that cannot be read are left out.
    """

    name: str
    mask: str | None = None
    no_batch: tuple[str, ...] = ()
    folder: str = ""
    seen: tuple[FolderProbe, ...] = ()
    preprocess: bytes = b""
    skip_bad: bool = False


class Rows(msgspec.Struct, frozen=True, array_like=True):
    """A batch of the model's size.

    Attributes:
        inputs: The inputs by name.
        count: How many samples are real.
        real: Their real positions, if there is a mask.
    """

    inputs: dict[str, Array]
    count: int
    real: Array | None


class Batches(msgspec.Struct, tag=True, frozen=True):
    """A shard of samples that this program has read."""

    batches: Sequence[Rows]


class Images(msgspec.Struct, tag=True, frozen=True):
    """A shard of images.

    Attributes:
        files: Paths, relative to the folder.
        contents: The files, for a worker that does not see them.
    """

    files: Sequence[str]
    contents: Sequence[bytes] | None = None

    def with_contents(self, folder: Path) -> Images:
        """Read the files.

        Raises:
            DataError: One cannot be read.
        """
        try:
            return Images(self.files, [(folder / name).read_bytes() for name in self.files])
        except OSError as error:
            raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error


Shard: TypeAlias = Batches | Images


class Numbered(msgspec.Struct, frozen=True):
    """A shard and its place in the order of the samples."""

    number: int
    shard: Shard


encode = msgspec.msgpack.Encoder().encode
decode_shard = msgspec.msgpack.Decoder(Shard).decode


class ShardedSamples(Protocol):
    """Samples that are sent to workers shard by shard."""

    @property
    def source(self) -> Source:
        """What workers must know of them."""

    def shards(self, workers: int) -> Iterator[Numbered]:
        """Yield them in the order of the samples."""

    def sent(self, shard: Shard, *, sees_files: bool) -> Shard:
        """Return what a worker is sent: with the files where it does not see them itself."""


def refuse_order(samples: Samples) -> None:
    """Refuse samples whose order matters, or that can be read only once.

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
        samples: The samples as they were opened.
        skips: Whether files may be left out within a shard. Where batches must be those of one
            machine they may not: they would shift.
    """
    reader = samples.reader
    if not isinstance(reader, ImageFolder) or not all(
        isinstance(each, str | Path) for each in reader.files
    ):
        return None
    return None if reader.skip_bad and not skips else reader


class BatchShards:
    """Samples that this program reads and checks, to send batches of arrays.

    Args:
        samples: The samples.
        size: Samples of a batch.
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
            # Cut between batches only, so that batches are those of one machine.
            if count >= wanted or size >= _MOST_BYTES:
                yield Numbered(number, Batches(batches))
                batches, number, count, size = [], number + 1, 0, 0
        if batches:
            yield Numbered(number, Batches(batches))

    def sent(self, shard: Shard, *, sees_files: bool) -> Shard:
        """Return the shard."""
        del sees_files
        return shard


class ImageShards:
    """A folder of images, of which the names of files are sent: workers decode them.

    Args:
        samples: The samples.
        reader: Their images.
        size: Samples of a batch: shards are multiples of it.
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
        # The first, the middle and the last: another folder at the same path has hardly the same
        # three.
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
    # Rounded up to whole batches: only the last shard of all may have an incomplete one.
    return -(-min(wanted, _MOST_SAMPLES) // unit) * unit


class ShardReader:
    """Opens shards, in the worker that they were sent to.

    Args:
        graph: The float model.
        source: What is known of the samples, sent before the first shard.
        threads: Number of threads that decode images.
    """

    def __init__(self, graph: Graph, source: Source, threads: int) -> None:
        self._source, self._threads = source, threads
        self._specs, self._feeding = input_specs(graph), Feeding(source.no_batch)

    @property
    def takes_feeds(self) -> bool:
        """Whether each sample is a batch of its own."""
        return self._batches(()).takes_feeds

    @property
    def sees_files(self) -> bool:
        """Whether this worker has the same images at the same path."""
        folder, seen = Path(self._source.folder), self._source.seen
        return bool(seen) and all(FolderProbe.of(folder, each.name) == each for each in seen)

    def samples(self, shard: Shard) -> Samples:
        """Open a shard.

        Raises:
            MissingExtraError: There are images, and Pillow is not installed.
        """
        if isinstance(shard, Batches):
            return self._batches(shard.batches)
        require_pillow()
        source = self._source
        takes = image_input(
            self._specs, preprocess_from_toml(source.preprocess, "the steps of this program")
        )
        reader = _SentFolder(
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

    def _batches(self, batches: Sequence[Rows]) -> _ReadSamples:
        source = self._source
        return _ReadSamples(
            source.name,
            self._specs,
            (),
            mask=source.mask,
            feeding=self._feeding,
            ready=batches,
        )


class _SentFolder(ImageFolder):
    """A folder of images, of which ``contents`` were sent; others are read from the disk.

    Messages name files as the sender does.
    """

    contents: Mapping[str, bytes] = {}

    def _source(self, file: str | Path | Image) -> Path | Image | bytes:
        content = self.contents.get(str(file))
        return super()._source(file) if content is None else content


@dataclass(frozen=True)
class _ReadSamples(Samples):
    """Samples that were read and put into batches by another program."""

    ready: Sequence[Rows] = ()

    def masked_batches(self, size: int) -> Iterator[tuple[Batch, int, RealPositions | None]]:
        """Yield them: the sender made them of the size that is asked for."""
        del size
        for rows in self.ready:
            inputs = {name: each.array() for name, each in rows.inputs.items()}
            yield inputs, rows.count, None if rows.real is None else rows.real.array()
