"""Keeps the activations between blocks, float and quantized, for all samples."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from intact.data.stream import Samples
from intact.improve.learn.blocks import Block
from intact.improve.learn.segments import Values
from intact.improve.learn.slices import Mode, Slices


@dataclass
class Stream:
    """What one of the models has computed so far of some samples.

    Attributes:
        units: Tensors by key, on the CPU. Each unit is run as it is; all but the last have as many
            samples.
        is_free: Whether samples of several units may be put together to other units.
    """

    units: list[Values]
    is_free: bool

    def advance(self, slices: Slices, block: Block, mode: Mode) -> Stream:
        """Run a block on all units."""
        with torch.no_grad():
            found = [
                # Kept on the CPU: all samples of both models do not fit on a GPU.
                {k: t.cpu() for k, t in slices.run(block, to_device(slices, unit), mode).items()}
                for unit in self.units
            ]
        return replace(self, units=found)

    def forget(self, block: Block) -> None:
        """Drop what nothing behind a block reads."""
        for unit in self.units:
            for key in unit.keys() - block.keeps:
                del unit[key]


def to_device(slices: Slices, values: Values) -> Values:
    """Return tensors where a plan is computed."""
    return {key: tensor.to(slices.device) for key, tensor in values.items()}


@dataclass(frozen=True)
class Source:
    """The inputs: half of the samples to learn by, the others to judge by.

    Attributes:
        fit: Samples to learn by.
        held_out: Others.
        digest: Identifies all samples, to know them again by.
    """

    fit: Stream
    held_out: Stream
    digest: int

    @staticmethod
    def of(samples: Samples, most: int, batch: int) -> Source:
        """Read samples, every second one to judge by.

        Args:
            samples: The data; their progress is not told.
            most: Maximum number of samples.
            batch: Samples of a unit, where the model leaves it open.
        """
        limited = samples.first(most)
        # Twice a unit, because every second sample goes to the other half.
        size = limited.batch_size(2 * batch)
        is_free = limited.fixed_batch is None and size > 1
        parts: tuple[list[Values], list[Values]] = ([], [])
        digest = 0
        for index, (feeds, count) in enumerate(limited.batches(size)):
            for array in feeds.values():
                # A checksum: it tells other samples apart, and nobody attacks their own checkpoint.
                digest = zlib.crc32(np.ascontiguousarray(array).data, digest)
            if not is_free:
                parts[index % 2].append(_tensors(feeds))
                continue
            for part, first in zip(parts, (0, 1), strict=True):
                rows = {name: array[first:count:2] for name, array in feeds.items()}
                if count > first:
                    part.append(_tensors(rows))
        return Source(Stream(parts[0], is_free), Stream(parts[1], is_free), digest)


def _tensors(feeds: dict[str, np.ndarray]) -> Values:
    return {n: torch.from_numpy(np.array(array, order="C")) for n, array in feeds.items()}


class Draws:
    """Batches to learn a block by, in an order that a seed decides.

    Args:
        streams: The same samples, each with other tensors, by which a batch is known.
        size: Samples of a batch.
        by_sample: Keys of tensors whose first axis is that of samples.
        random: Decides the order.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        size: int,
        by_sample: Collection[str],
        random: torch.Generator,
    ) -> None:
        self._streams, self._random, self._size = streams, random, size
        keys = {key for stream in streams for key in stream.units[0]}
        is_free = all(stream.is_free for stream in streams) and keys <= set(by_sample)
        self._rows = [_concatenate(stream.units) for stream in streams] if is_free else None

    def __iter__(self) -> Iterator[list[Values]]:
        """Yield batches without end: the tensors of each stream by key."""
        if self._rows is None:
            count = len(self._streams[0].units)
            while True:
                for index in torch.randperm(count, generator=self._random).tolist():
                    yield [stream.units[index] for stream in self._streams]
        total = len(next(iter(self._rows[0].values())))
        size = min(self._size, total)
        while True:
            order = torch.randperm(total, generator=self._random)
            # Full batches only: what is left over comes in the next order.
            for start in range(0, total - size + 1, size):
                rows = order[start : start + size]
                yield [{k: t[rows] for k, t in values.items()} for values in self._rows]


def _concatenate(units: Sequence[Values]) -> Values:
    return {key: torch.cat([unit[key] for unit in units]) for key in units[0]}
