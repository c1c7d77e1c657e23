"""What is sent to the workers of a cluster and back, as msgpack: decoding runs no code."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from intact.data.chosen_samples import Mark
from intact.errors import DataError


class Array(msgspec.Struct, frozen=True, array_like=True):
    """An array of numbers."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes

    @staticmethod
    def of(array: npt.NDArray[Any]) -> Array:
        """Copy an array."""
        return Array(array.dtype.str, array.shape, array.tobytes())

    def array(self) -> npt.NDArray[Any]:
        """Return the array, read-only."""
        return np.frombuffer(self.content, np.dtype(self.dtype)).reshape(self.shape)


class FolderProbe(msgspec.Struct, frozen=True):
    """A file that tells whether a worker sees the folder of this program.

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
        name: Of the data, for messages.
        mask: Name of the mask.
        no_batch: Inputs that have no axis for samples.
        folder: Of the images, an absolute path.
        seen: Some of the images.
        preprocess: Of images, as a file of it.
        skip_bad: Whether images that cannot be read are left out.
    """

    name: str
    mask: str | None = None
    no_batch: tuple[str, ...] = ()
    folder: str = ""
    seen: tuple[FolderProbe, ...] = ()
    preprocess: bytes = b""
    skip_bad: bool = False


class Job(msgspec.Struct, frozen=True):
    """What a worker counts, beside the model.

    Attributes:
        source: Of the samples.
        tensors: Names of the values to observe.
        raise_limits: How far the limits of files are raised.
        max_memory: Of one worker, as in `intact.calibrate.collect`.
    """

    source: Source
    tensors: tuple[str, ...]
    raise_limits: int = 1
    max_memory: int | None = None


class Place(msgspec.Struct, frozen=True):
    """What a worker says of itself.

    Attributes:
        processor: Its name.
        sees_files: Whether it has the same images at the same path.
    """

    processor: str
    sees_files: bool


class Rows(msgspec.Struct, frozen=True, array_like=True):
    """A batch of the model's size.

    Attributes:
        inputs: By name.
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


encode = msgspec.msgpack.Encoder().encode
decode_job = msgspec.msgpack.Decoder(Job).decode
decode_place = msgspec.msgpack.Decoder(Place).decode
decode_shard = msgspec.msgpack.Decoder(Shard).decode
decode_counted = msgspec.msgpack.Decoder(Counted).decode
