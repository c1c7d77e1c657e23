"""Sounds as samples: ``.wav`` files, read here, as the input of a model takes them.

The layout of the files is that of Microsoft and IBM, "Multimedia Programming Interface and Data
Specifications 1.0" (1991), with the extensible form of Windows 2000. Numbers of 8 to 32 bits and
floats are read; what is compressed is refused.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from intact.data.batching import Batch
from intact.data.images.reader import SUFFIXES as IMAGES
from intact.data.images.reader import evenly_spread
from intact.data.items import Holds, OpenedSource
from intact.data.signature import InputSpec, shown_sizes
from intact.errors import DataError, UsageError
from intact.graph.files.regular import open_file

SUFFIX = ".wav"
_LARGEST_FILE = 1 << 30
_INTEGERS, _FLOATS, _EXTENSIBLE = 1, 3, 0xFFFE
_RATES = frozenset({"sr", "sample_rate", "sampling_rate"})
_LENGTHS = ("length", "_len", "lens")
"""What names of inputs have that take how long a sound is."""


class Sound(NamedTuple):
    """A sound of one channel.

    Attributes:
        samples: float32 of -1 to 1, ``[samples]``.
        rate: Samples a second.
    """

    samples: npt.NDArray[np.float32]
    rate: int


def is_sound_folder(folder: Path) -> bool:
    """Tell whether a folder has sounds and no images, in it or below."""
    has_sounds = False
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        suffixes = {Path(here, name).suffix.lower() for name in files if name[0] != "."}
        if suffixes & IMAGES:
            return False
        has_sounds |= SUFFIX in suffixes
    return has_sounds


def sound_files(source: Path) -> list[Path]:
    """List the sounds of a folder and all below, sorted; a file is a list of itself."""
    if source.suffix.lower() == SUFFIX and not source.is_dir():
        return [source]
    found = []
    for here, folders, files in os.walk(source):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = (name for name in files if name[0] != ".")
        # `os.walk` follows no links to folders, which may lead in circles.
        found += [Path(here, n) for n in names if Path(n).suffix.lower() == SUFFIX]
    return sorted(found)


def read_sound(path: Path) -> Sound:
    """Read a ``.wav`` file of one channel.

    Integers are divided by half the number of their values, as is usual.

    Raises:
        DataError: It cannot be read, is damaged or compressed, or has several channels.
    """
    try:
        with open_file(path) as file:
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(content) > _LARGEST_FILE:
        raise DataError(f"{path}: larger than 1 GiB", remedy="cut it into pieces")
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise DataError(f"{path}: is no .wav file", remedy="convert it, or take it out")
    chunks = dict(_chunks(content))
    header, data = chunks.get(b"fmt ", b""), chunks.get(b"data")
    if len(header) < 16 or data is None:
        raise DataError(f"{path}: is damaged: a part is missing", remedy="write it again")
    kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", header)
    # The first two bytes of the format's GUID are the kind.
    if kind == _EXTENSIBLE and len(header) >= 26:
        (kind,) = struct.unpack_from("<H", header, 24)
    if channels != 1:
        raise DataError(
            f"{path}: has {channels} channels, the model takes one", remedy="mix them down to mono"
        )
    samples = _numbers(data, kind, bits)
    if samples is None:
        raise DataError(
            f"{path}: holds numbers of kind {kind} with {bits} bits, not plain integers or floats",
            remedy="convert it to 16-bit PCM",
        )
    return Sound(samples, rate)


def _chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 12
    while at + 8 <= len(content):
        name, size = content[at : at + 4], int.from_bytes(content[at + 4 : at + 8], "little")
        yield name, content[at + 8 : at + 8 + size]
        # Chunks begin at even places.
        at += 8 + size + size % 2


def _numbers(data: bytes, kind: int, bits: int) -> npt.NDArray[np.float32] | None:
    """Return the numbers as float32; None if they are of another kind."""
    width = bits // 8
    # A file that was cut ends within a number.
    data = data[: len(data) // width * width] if width else b""
    if kind == _FLOATS and bits in (32, 64):
        return np.frombuffer(data, f"<f{width}").astype(np.float32)
    if kind != _INTEGERS or bits not in (8, 16, 24, 32):
        return None
    if bits == 8:  # the only ones without a sign
        return ((np.frombuffer(data, np.uint8) - 128.0) / 128).astype(np.float32)
    if bits == 24:
        parts = np.frombuffer(data, np.uint8).reshape(-1, 3).astype(np.int32)
        # Into the upper bytes and back, which extends the sign.
        values = (parts[:, 0] << 8 | parts[:, 1] << 16 | parts[:, 2] << 24) >> 8
    else:
        values = np.frombuffer(data, f"<i{width}")
    return (values / 2.0 ** (bits - 1)).astype(np.float32)


class SoundInputs(msgspec.Struct, frozen=True):
    """The inputs of a model that takes sounds.

    Attributes:
        sound: Takes the samples: one axis is theirs, all others have one element.
        axis: That one.
        rates: Take the sample rate.
        lengths: Take how many samples there are.
        specs: Shapes and types of all inputs.
    """

    sound: str
    axis: int
    rates: tuple[str, ...]
    lengths: tuple[str, ...]
    specs: Mapping[str, InputSpec]

    @staticmethod
    def of(source: str, specs: Mapping[str, InputSpec], states: frozenset[str]) -> SoundInputs:
        """Tell the inputs of a model apart.

        Raises:
            DataError: It takes no sound, or something else besides.
        """
        rates = tuple(n for n in specs if n.lower() in _RATES)
        others = [n for n in specs if n not in rates and n not in states]
        lengths = tuple(n for n in others if _is_length(n, specs[n]))
        sounds = [n for n in others if n not in lengths]
        axis = _axis(specs[sounds[0]]) if len(sounds) == 1 else None
        if axis is None:
            shown = ", ".join(f"{name} {shown_sizes(specs[name].shape)}" for name in sounds)
            raise DataError(
                f"{source}: sounds are for a model with one input [batch, samples] or [samples], "
                f"and this takes {shown}",
                remedy="give arrays of all inputs; --state names those that are outputs, and "
                "--input-value fixes numbers",
            )
        return SoundInputs(sounds[0], axis, rates, lengths, specs)

    @property
    def length(self) -> int | None:
        """How many samples the model takes, where it fixes that."""
        return self.specs[self.sound].shape[self.axis]

    @property
    def no_batch(self) -> tuple[str, ...]:
        """Inputs that have no axis for sounds."""
        is_row = len(self.specs[self.sound].shape) == 1
        rates = tuple(name for name in self.rates if len(self.specs[name].shape) == 1)
        return ((self.sound, *self.lengths) if is_row else ()) + rates

    def feed(self, samples: npt.NDArray[np.float32], rate: int) -> Batch:
        """Make the inputs of one sound."""
        spec = self.specs[self.sound]
        shape = [1] * len(spec.shape)
        shape[self.axis] = len(samples)
        if spec.dtype.kind == "i":  # of 16 bits, whatever holds them
            samples = np.clip(np.rint(samples * 32768), -32768, 32767)
        found = {self.sound: samples.reshape(shape).astype(spec.dtype)}
        for names, number in ((self.rates, rate), (self.lengths, len(samples))):
            for name in names:
                sizes = (1,) * len(self.specs[name].shape)
                found[name] = np.full(sizes, number, self.specs[name].dtype)
        return found


def _is_length(name: str, spec: InputSpec) -> bool:
    is_named = any(each in name.lower() for each in _LENGTHS)
    return is_named and spec.dtype.kind in "iu" and len(spec.shape) < 2


def _axis(spec: InputSpec) -> int | None:
    """Return the axis of the samples: the last, where all others may have one element."""
    shape = spec.shape
    if not 1 <= len(shape) <= 3 or any(size not in (None, 1) for size in shape[:-1]):
        return None
    return len(shape) - 1


class _Sounds(msgspec.Struct, frozen=True):
    """Sounds, each read when it is its turn, as batches of one."""

    inputs: SoundInputs
    pieces: Sequence[tuple[Path, int]]
    """Files, and which piece of them, where the model fixes a length."""
    rate: int

    def __iter__(self) -> Iterator[Batch]:
        path, sound = None, None
        for file, number in self.pieces:
            if sound is None or file != path:
                path, sound = file, read_sound(file)
            length = self.inputs.length
            samples = sound.samples
            if length is not None:
                samples = samples[number * length : (number + 1) * length]
            yield self.inputs.feed(samples, self.rate)


class SoundSource(NamedTuple):
    """Sounds that were opened, and the inputs that have no axis for them."""

    opened: OpenedSource
    no_batch: tuple[str, ...]


def open_sounds(
    source: str | Path,
    specs: Mapping[str, InputSpec],
    states: frozenset[str],
    rate: int | None,
    limit: int | None,
) -> SoundSource:
    """Open a ``.wav`` file or a folder of them for a model.

    A model that fixes how many samples it takes gets the pieces of each file, one after the other;
    what remains at the end of a file is left out.

    Args:
        source: The file or folder.
        specs: The model's inputs.
        states: Those that are outputs of the sample before.
        rate: Samples a second that the model takes.
        limit: At most so many samples, evenly spread; in the order of a sequence the first.

    Raises:
        DataError: The model takes no sounds, a file cannot be read, has another rate or several
            channels, or is shorter than the model takes.
        UsageError: The rate is not known.
    """
    files = sound_files(Path(source))
    if not files:
        raise DataError(f"{source}: no {SUFFIX} file in this folder or below")
    if rate is None:
        found = read_sound(files[0]).rate
        raise UsageError(
            f"{source}: has sounds, and nothing says at what rate the model takes them",
            remedy=f"give --sample-rate, which is {found} in {files[0].name}",
        )
    inputs = SoundInputs.of(str(source), specs, states)
    pieces = []
    for path in files:
        # Each file is read once here to count its pieces; the samples are read again when it is
        # their turn, so that not all are in memory.
        sound = read_sound(path)
        if sound.rate != rate:
            raise DataError(
                f"{path}: has {sound.rate} samples a second, and --sample-rate is {rate}",
                remedy="resample it, or give the rate that the model was trained on",
            )
        shortest = inputs.length or 1
        if len(sound.samples) < shortest:
            raise DataError(
                f"{path}: {len(sound.samples)} samples, the model takes {shortest} at least",
                remedy="take it out, or fill it up with silence",
            )
        count = 1 if inputs.length is None else len(sound.samples) // inputs.length
        pieces += [(path, number) for number in range(count)]
    numbers = list(range(len(pieces)))
    numbers = numbers[:limit] if states else evenly_spread(numbers, limit)
    items = _Sounds(inputs, [pieces[number] for number in numbers], rate)
    opened = OpenedSource(
        items, "the folder", "sound", numbers=numbers, count=len(numbers), holds=Holds.BATCHES
    )
    return SoundSource(opened, inputs.no_batch)
