"""Holds what trials need: search space, statistics, samples, float outputs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.calibrate.assign import Method
from intact.calibrate.statistics import Statistics
from intact.data.batching import Batch, joined, padded, real_samples
from intact.data.labels import Reference
from intact.data.stream import Samples
from intact.engines.session import FloatModel
from intact.errors import DataError, UsageError
from intact.graph import Graph
from intact.limits import RUN_AT_ONCE, SEARCH_SAMPLES_BYTES
from intact.search.measuring.objective import (
    Arrays,
    Objective,
    OutputPair,
    Rows,
    are_probabilities,
    default_kind,
    has_classes,
    margins_of,
)
from intact.search.measuring.stopping import ERROR
from intact.search.plans import Planner
from intact.search.roundings import Roundings
from intact.search.space import Space


@dataclass(frozen=True)
class Chunk:
    """A batch of samples that run together.

    Attributes:
        feeds: The model's inputs by name; the last chunk is padded with its last sample.
        outputs: The float model's outputs, without those of padding.
        size: Samples in ``feeds``.
        count: How many of them are not padding.
        labels: Class numbers, ``[count]``.
    """

    feeds: Arrays
    outputs: Arrays
    size: int
    count: int
    labels: npt.NDArray[np.int64] | None = None

    def float_outputs(self) -> Arrays:
        """Return the float model's outputs with padding, as a run of the chunk gives them."""
        missing = self.size - self.count
        return {
            name: padded(array, self.size)
            if missing and array.ndim and len(array) == self.count
            else array
            for name, array in self.outputs.items()
        }


def read_samples(samples: Samples, size: int, max_bytes: int) -> dict[str, npt.NDArray[Any]]:
    """Read all samples into one array for each input; samples along axis 0.

    Feeds, which have no such axis, get it in front.
    """
    parts: list[Batch] = []
    taken = 0
    for feeds, count in samples.batches(size):
        part = {
            name: array[None] if samples.takes_feeds else array[:count]
            for name, array in feeds.items()
        }
        taken += sum(array.nbytes for array in part.values())
        # Foreseen from the part that was read: refused after the first batch, not after minutes.
        known = (
            taken if samples.count is None else taken * samples.count // _samples_in(parts, count)
        )
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
    return joined(parts)


def _samples_in(parts: list[Batch], count: int) -> int:
    return sum(len(next(iter(part.values()))) for part in parts) + count


def _too_large(source: str, needed: int, allowed: int) -> DataError:
    return DataError(
        f"{source}: samples and float outputs need {math.ceil(needed / 2**20)} MiB, the limit is "
        f"{allowed >> 20}",
        remedy="use fewer samples, or raise the limit",
    )


def portions(total: int, size: int, first: int = 1) -> list[int]:
    """Compute the sizes of all batches; the first batch is split into parts.

    >>> portions(40, 16, first=2)
    [8, 8, 16, 16]
    """
    part = math.ceil(size / first)
    sizes = [part] * (size // part) + [size % part] * (size % part > 0)
    sizes += [size] * math.ceil((total - size) / size)
    # The split of the first batch may already hold all samples.
    starts = np.cumsum([0, *sizes[:-1]])
    return [each for each, start in zip(sizes, starts, strict=True) if start < total]


def chunks_of(
    graph: Graph,
    feeds: Mapping[str, npt.NDArray[Any]],
    labels: npt.NDArray[np.int64] | None,
    sizes: Sequence[int],
    threads: int,
    max_bytes: int,
    *,
    are_feeds: bool = False,
) -> Iterator[Chunk]:
    """Split the samples into chunks of these sizes and run the float model over each.

    Of feeds, each is a chunk, without the axis along which they are stacked.
    """
    model = FloatModel(graph, threads=threads)
    total, start = len(next(iter(feeds.values()))), 0
    taken = sum(array.nbytes for array in feeds.values())
    for size in sizes:
        rows = {name: array[start : start + size] for name, array in feeds.items()}
        if are_feeds:
            rows = {name: np.asarray(array[start]) for name, array in feeds.items()}
        # Filled up, so that all runs but the first have one size: float results may depend on it.
        count = min(size, total - start)
        if count < size:
            rows = {name: padded(array, size) for name, array in rows.items()}
        # Padding is run and then cut off: it must not count in a score.
        outputs = real_samples(model.run(dict(rows)), size, count)
        _refuse_not_finite(outputs)
        taken += sum(array.nbytes for array in outputs.values())
        if taken > max_bytes:
            raise _too_large("the samples", taken, max_bytes)
        own = None if labels is None else labels[start : start + count]
        yield Chunk(rows, outputs, size, count, own)
        start += size


def not_finite(outputs: Arrays) -> str:
    """Find the first output that holds NaN or infinity; return its name, or an empty text."""
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


_FIRST_CHUNKS = 2

"""The first run is split into so many chunks, so that trials on few samples use several cores."""


ORDER_SEED = 0

"""Seed of the order of the samples; the same for all searches."""


@dataclass(frozen=True)
class TrialData:
    """The data that candidates are measured with.

    Attributes:
        space: The search space.
        statistics: Statistics of the tensors that `intact.search.plans.required` lists.
        method: The threshold methods.
        objective: The score.
        chunks: The samples, in a fixed pseudo-random order. Early stopping relies on it: the first
            samples are a random sample without replacement.
        references: Labels and other references for the user's metric, in the order of the samples.
        is_probability: The first output holds probabilities: a divergence applies no softmax.
        error: Probability of stopping a trial wrongly; 0 stops only where the result is certain.
        cache_bytes: Limit of the executor's cache of activations; None for its default.
        session_bytes: Limit of its compiled pieces; None for its default.
        roundings: Weights that are rounded already.
    """

    space: Space
    statistics: Statistics
    method: Method
    objective: Objective
    chunks: tuple[Chunk, ...]
    references: Mapping[str, Reference] = field(default_factory=dict)
    is_probability: bool = False
    error: float = ERROR
    cache_bytes: int | None = None
    session_bytes: int | None = None
    roundings: Roundings = field(default_factory=Roundings)

    @property
    def samples(self) -> int:
        """The number of samples."""
        return sum(chunk.count for chunk in self.chunks)

    @cached_property
    def planner(self) -> Planner:
        """Makes the plans of candidates."""
        return Planner(self.space, self.statistics, self.method, self.roundings)

    @cached_property
    def float_hits(self) -> npt.NDArray[np.bool_]:
        """Which samples the float model gets right, for objectives that count; bool
        ``[samples]``.
        """
        rows = self.objective.row.rows
        if rows is None:
            return np.zeros(0, np.bool_)
        return np.concatenate([rows(each) > 0.0 for each in self._float_pairs()])

    @cached_property
    def float_margins(self) -> Rows:
        """The margins of the float model, for objectives that count; float64 ``[samples]``."""
        return np.concatenate([margins_of(each) for each in self._float_pairs()])

    def _float_pairs(self) -> Iterator[OutputPair]:
        """Yield the float model's outputs beside themselves."""
        for each in self.chunks:
            yield OutputPair(
                each.outputs, each.outputs, each.count, each.labels, self.is_probability
            )

    @cached_property
    def samples_hash(self) -> str:
        """SHA-256 of the samples, their order and their labels, in hexadecimal."""
        digest = hashlib.sha256()
        for chunk in self.chunks:
            arrays = real_samples(chunk.feeds, chunk.size, chunk.count)
            for name, array in [*arrays.items(), ("labels", chunk.labels)]:
                if array is not None:
                    digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
                    digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @staticmethod
    def of(
        space: Space,
        statistics: Statistics,
        method: Method,
        samples: Samples,
        objective: Objective | None = None,
        *,
        chunk: int = RUN_AT_ONCE,
        max_bytes: int = SEARCH_SAMPLES_BYTES,
        threads: int = 0,
        error: float = ERROR,
        cache_bytes: int | None = None,
        session_bytes: int | None = None,
        roundings: Roundings | None = None,
    ) -> TrialData:
        """Read the samples, shuffle them, and run the float model over them once.

        Args:
            space: The search space.
            statistics: Statistics of the tensors that `intact.search.plans.required` lists.
            method: The threshold methods.
            samples: The samples, with labels where there are any.
            objective: None takes the accuracy where there are labels, else the agreement where
                the first output has classes, else the SQNR.
            chunk: Samples in one run.
            max_bytes: Limit for the samples and float outputs in memory.
            threads: Threads of the float model; 0 uses all cores.
            error: See the class.
            cache_bytes: See the class.
            session_bytes: See the class.
            roundings: See the class.

        Raises:
            DataError: The samples do not fit the model, exceed ``max_bytes``, have labels that are
                not classes of the model, or give outputs that are NaN or infinite.
            UsageError: The objective does not fit the model or the samples.
        """
        if chunk < 1:
            raise UsageError(f"chunks of {chunk} samples", remedy="give 1 or more")
        keeps = objective is not None and objective.metric is not None
        # References may be large (images); only a metric reads them.
        samples = replace(samples, keep_references=keeps)
        size = samples.batch_size(chunk)
        feeds = read_samples(samples, size, max_bytes)
        total = len(next(iter(feeds.values())))
        # Sorted files come class by class; early stopping needs the first samples to be drawn from
        # all.
        order = np.random.default_rng(ORDER_SEED).permutation(total)
        feeds = {name: array[order] for name, array in feeds.items()}
        needs_labels = objective is None or objective.kind == "accuracy"
        labels = samples.labels() if needs_labels else None
        if labels is not None:
            labels = labels[order]
        # A model of a fixed batch takes no parts of one.
        first = 1 if size == samples.fixed_batch else _FIRST_CHUNKS
        sizes = portions(total, size, first)
        graph, are_feeds = space.plan.graph, samples.takes_feeds
        chunks = tuple(
            chunks_of(graph, feeds, labels, sizes, threads, max_bytes, are_feeds=are_feeds)
        )
        output, count = next(iter(chunks[0].outputs.values())), chunks[0].count
        if objective is None:
            kind = default_kind(output, count, has_labels=labels is not None)
            objective = Objective.of(kind)
        _check(objective, output, count, labels, samples.source)
        return TrialData(
            space,
            statistics,
            method,
            objective,
            chunks,
            _reorder(samples.references(), order) if keeps else {},
            are_probabilities([next(iter(each.outputs.values())) for each in chunks]),
            error,
            cache_bytes,
            session_bytes,
            roundings or Roundings(),
        )


def _check(
    objective: Objective,
    output: npt.NDArray[Any],
    count: int,
    labels: npt.NDArray[np.int64] | None,
    source: str,
) -> None:
    """Check that the objective can be computed from the outputs and labels."""
    kind = objective.kind
    if kind in ("accuracy", "agreement") and not has_classes(output, count):
        raise UsageError(
            f"objective {kind!r}: the first output has shape {list(output.shape)} in a batch and "
            "no classes",
            remedy="use sqnr, cosine or a metric of your own",
        )
    if kind == "kl" and (output.dtype.kind != "f" or output.ndim < 2 or len(output) != count):
        raise UsageError(
            f"objective 'kl': the first output has shape {list(output.shape)} in a batch",
            remedy="use sqnr, cosine or a metric of your own",
        )
    if kind != "accuracy":
        return
    if labels is None:
        raise UsageError(f"{source}: there are no labels", remedy="use agreement, kl or sqnr")
    if labels.min() < 0 or labels.max() >= output.shape[1]:
        raise DataError(
            f"{source}: labels {labels.min()}..{labels.max()} for {output.shape[1]} classes",
            remedy="check that labels start at 0 and belong to this model",
        )


def _reorder(
    references: Mapping[str, Reference], order: npt.NDArray[np.int64]
) -> dict[str, Reference]:
    return {
        name: [values[k] for k in order] if isinstance(values, list) else values[order]
        for name, values in references.items()
    }
