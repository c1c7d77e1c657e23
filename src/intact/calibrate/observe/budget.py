"""How tensors are observed within some memory: by how many threads, in which groups."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from intact.calibrate.observe.layout import Layout, Shape
from intact.calibrate.observe.observed import Observed
from intact.errors import CalibrationError, UsageError
from intact.graph import Graph
from intact.numerics.histogram import BINS
from intact.run.session import refuse_threads

COUNTS_BYTES = BINS * 16
"""One tensor's counts in one thread: int64, and the part of the scratch tables that is in use."""
_VALUE_BYTES = 4
_MOST_COUNTS = 1 << 30
"""Memory for the counts of all threads; beyond it fewer threads are used."""


@dataclass(frozen=True)
class Schedule:
    """How tensors are observed.

    Attributes:
        workers: Batches that run side by side.
        groups: Tensors that are observed together, in their order; each group in a pass over the
            samples.
    """

    workers: int
    groups: tuple[tuple[str, ...], ...]


def worker_count(threads: int, tensors: int) -> int:
    """Return how many batches run side by side, within the memory for their counts.

    Args:
        threads: As many as that; 0 for all cores.
        tensors: How many are observed.

    Raises:
        UsageError: ``threads`` is no number of threads.
    """
    refuse_threads(threads)
    wanted = threads or os.cpu_count() or 1
    return max(1, min(wanted, _MOST_COUNTS // (tensors * COUNTS_BYTES + 1)))


def schedule(
    tensors: Sequence[str], workers: int, sizes: Mapping[str, int], max_memory: int
) -> Schedule:
    """Return how tensors are observed within the memory.

    First with fewer threads, which costs time only where there are cores; then in groups, as few
    as fit, each of which costs a pass over the samples.

    Args:
        tensors: Names, in the order of the graph.
        workers: Threads that are wanted.
        sizes: Bytes of each tensor in one thread: one batch of activations and the counts.
        max_memory: Bytes.

    Raises:
        CalibrationError: A tensor alone needs more.
        UsageError: The limit is not positive.
    """
    if max_memory <= 0:
        raise UsageError(f"max_memory is {max_memory}", remedy="give a number of bytes")
    largest = max(tensors, key=lambda name: sizes[name], default=None)
    if largest is not None and sizes[largest] > max_memory:
        raise CalibrationError(
            f"one batch of {largest!r} and its counts need {_shown(sizes[largest])} of memory, "
            f"{max_memory >> 20} MiB are allowed",
            remedy=f"allow {_shown(sizes[largest])}, or keep the nodes around it float",
        )
    groups = tuple(_groups(tensors, sizes, max_memory)) or ((),)
    most = max(sum(sizes[name] for name in group) for group in groups)
    return Schedule(max(1, min(workers, max_memory // max(most, 1))), groups)


def _groups(
    tensors: Sequence[str], sizes: Mapping[str, int], max_memory: int
) -> Iterator[tuple[str, ...]]:
    """Yield neighbours that fit: an early group then needs only the beginning of the model."""
    group: list[str] = []
    room = max_memory
    for name in tensors:
        if sizes[name] > room:
            yield tuple(group)
            group, room = [], max_memory
        group.append(name)
        room -= sizes[name]
    if group:
        yield tuple(group)


def known_sizes(graph: Graph, layout: Layout, tensors: Sequence[str]) -> dict[str, int] | None:
    """Return the bytes of each tensor in one thread; None where they depend on the samples."""
    if layout.shapes is not None:
        return {name: _bytes(layout.shapes[name], copies=1) for name in tensors}
    sizes = {}
    for name in tensors:
        dims = graph.value(name).shape
        numbers = tuple(dim for dim in dims or () if isinstance(dim, int))
        if dims is None or len(numbers) < len(dims):
            return None
        sizes[name] = _bytes(numbers, copies=2)  # the runtime's own, and what is counted
    return sizes


def seen_sizes(observed: Observed, tensors: Sequence[str]) -> dict[str, int]:
    """Return the same from a batch that was run."""
    sizes = observed.elements * observed.samples
    return {n: _bytes((int(size),), copies=2) for n, size in zip(tensors, sizes, strict=True)}


def _bytes(shape: Shape, *, copies: int) -> int:
    return math.prod(shape) * _VALUE_BYTES * copies + COUNTS_BYTES


def _shown(size: int) -> str:
    return f"{math.ceil(size / 2**20)} MiB"
