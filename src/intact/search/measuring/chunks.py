"""Samples in memory, in the portions in which they run, with what the float model gives of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.data.batching import real_samples
from intact.data.stream import Samples
from intact.engines.session import FloatModel
from intact.errors import DataError
from intact.graph import Graph
from intact.search.measuring.objective import Arrays


@dataclass(frozen=True)
class Chunk:
    """Samples that run together.

    Attributes:
        feeds: The model's inputs by name; the last chunk is filled by repeating its last sample.
        outputs: The float model's, of the real samples.
        size: Samples in ``feeds``.
        count: How many of them are real.
        labels: Class numbers, ``[count]``.
    """

    feeds: Arrays
    outputs: Arrays
    size: int
    count: int
    labels: npt.NDArray[np.int64] | None = None

    def float_outputs(self) -> Arrays:
        """Return the float model's outputs as a run of the chunk would give them."""
        missing = self.size - self.count
        return {
            name: np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])
            if missing and array.ndim and len(array) == self.count
            else array
            for name, array in self.outputs.items()
        }


def read_samples(samples: Samples, size: int, max_bytes: int) -> dict[str, npt.NDArray[Any]]:
    """Return all samples by input name, axis 0 first."""
    parts: list[Mapping[str, npt.NDArray[Any]]] = []
    taken = 0
    for feeds, count in samples.batches(size):
        part = {name: array[:count] for name, array in feeds.items()}
        taken += sum(array.nbytes for array in part.values())
        known = taken if samples.count is None else taken * samples.count // _done(parts, count)
        if max(taken, known) > max_bytes:
            raise _too_large(samples.source, max(taken, known), max_bytes)
        parts.append(part)
    for name in parts[0]:
        shapes = {part[name].shape[1:] for part in parts}
        if len(shapes) > 1:
            raise DataError(
                f"{samples.source}: samples of input {name!r} have different shapes",
                remedy="pad them to one shape to search on them",
            )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _done(parts: list[Mapping[str, npt.NDArray[Any]]], count: int) -> int:
    return sum(len(next(iter(part.values()))) for part in parts) + count


def _too_large(source: str, needed: int, allowed: int) -> DataError:
    return DataError(
        f"{source}: samples and float outputs take {math.ceil(needed / 2**20)} MiB, allowed are "
        f"{allowed >> 20}",
        remedy="use fewer samples, or allow more",
    )


def portions(total: int, size: int, first: int = 1) -> list[int]:
    """Yield batch sizes until all samples have run; the first portion is split in parts.

    >>> portions(40, 16, first=2)
    [8, 8, 16, 16]
    """
    part = math.ceil(size / first)
    sizes = [part] * (size // part) + [size % part] * (size % part > 0)
    sizes += [size] * math.ceil((total - size) / size)
    starts = np.cumsum([0, *sizes[:-1]])
    return [each for each, start in zip(sizes, starts, strict=True) if start < total]


def chunks_of(
    graph: Graph,
    feeds: Mapping[str, npt.NDArray[Any]],
    labels: npt.NDArray[np.int64] | None,
    sizes: Sequence[int],
    threads: int,
    max_bytes: int,
) -> Iterator[Chunk]:
    """Cut the samples into chunks of these sizes and run the float model over each."""
    model = FloatModel(graph, threads=threads)
    total, start = len(next(iter(feeds.values()))), 0
    taken = sum(array.nbytes for array in feeds.values())
    for size in sizes:
        rows = {name: array[start : start + size] for name, array in feeds.items()}
        count = min(size, total - start)
        if count < size:
            rows = {
                name: np.concatenate([array, np.repeat(array[-1:], size - count, axis=0)])
                for name, array in rows.items()
            }
        outputs = real_samples(model.run(dict(rows)), size, count)
        _refuse_not_finite(outputs)
        taken += sum(array.nbytes for array in outputs.values())
        if taken > max_bytes:
            raise _too_large("the samples", taken, max_bytes)
        own = None if labels is None else labels[start : start + count]
        yield Chunk(rows, outputs, size, count, own)
        start += size


def not_finite(outputs: Arrays) -> str:
    """Return the name of the first output that holds NaN or infinity; empty if none does."""
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return name
    return ""


def _refuse_not_finite(outputs: Arrays) -> None:
    name = not_finite(outputs)
    if name:
        raise DataError(
            f"output {name!r} of the float model holds NaN or infinity",
            remedy="check the samples and the model",
        )
