"""``Bench``: all that trials need, in memory, and the same in a folder for other processes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.calibrate.assign import Method
from intact.calibrate.statistics import Statistics
from intact.errors import DataError, UsageError
from intact.run.float import FloatModel
from intact.samples.labels import Reference
from intact.samples.stream import Samples
from intact.search.objective import (
    Arrays,
    Objective,
    are_probabilities,
    default_kind,
    has_classes,
)
from intact.search.space import Space
from intact.search.stopping import ERROR

CHUNK = 32
"""Samples in one run."""

SAMPLE_BYTES = 4 << 30
"""What samples and float outputs may take in memory, unless the caller says."""

ORDER_SEED = 0
"""Of the order of the samples: fixed, so that all searches draw alike."""


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


@dataclass(frozen=True)
class Bench:
    """What a search measures its candidates on.

    Attributes:
        space: The candidates.
        statistics: Of the tensors that `intact.search.plans.required` names.
        method: How scales follow from the statistics.
        objective: What is scored.
        chunks: The samples, in a fixed pseudo-random order: the first ones are drawn from all
            without replacement, as early stopping takes them to be.
        references: What came along with the samples for the user's metric, in their order.
        is_probability: The first output is probabilities already: a divergence takes no softmax.
        error: Chance of a trial being stopped wrongly; 0 stops only what is certain.
        cache_bytes: What an executor may keep of intermediate results; None leaves its default.
        session_bytes: What compiled pieces may take; likewise.
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

    @property
    def samples(self) -> int:
        """How many there are."""
        return sum(chunk.count for chunk in self.chunks)

    @cached_property
    def samples_hash(self) -> str:
        """SHA-256 of the samples, their order and their labels, in hexadecimal."""
        digest = hashlib.sha256()
        for chunk in self.chunks:
            arrays = {name: array[: chunk.count] for name, array in chunk.feeds.items()}
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
        chunk: int = CHUNK,
        max_bytes: int = SAMPLE_BYTES,
        threads: int = 0,
        error: float = ERROR,
        cache_bytes: int | None = None,
        session_bytes: int | None = None,
    ) -> Bench:
        """Read the samples, put them in order, and run the float model over them once.

        Args:
            space: The candidates.
            statistics: Of the tensors that `intact.search.plans.required` names.
            method: How scales follow from the statistics.
            samples: With labels, if there are any.
            objective: None takes the accuracy where there are labels, else the agreement where
                the first output has classes, else the SQNR.
            chunk: Samples in one run.
            max_bytes: What samples and float outputs may take.
            threads: Of the float model; 0 takes all cores.
            error: See the class.
            cache_bytes: See the class.
            session_bytes: See the class.

        Raises:
            DataError: The samples do not fit the model, take more than ``max_bytes``, have labels
                that are no classes of it, or make its outputs NaN or infinite.
            UsageError: The objective does not fit the model or the samples.
        """
        if chunk < 1:
            raise UsageError(f"chunks of {chunk} samples", remedy="give 1 or more")
        keeps = objective is not None and objective.metric is not None
        samples = replace(samples, keep_references=keeps)
        size = samples.batch_size(chunk)
        feeds = _read(samples, size, max_bytes)
        total = len(next(iter(feeds.values())))
        order = np.random.default_rng(ORDER_SEED).permutation(total)
        feeds = {name: array[order] for name, array in feeds.items()}
        needs_labels = objective is None or objective.kind == "accuracy"
        labels = samples.labels() if needs_labels else None
        if labels is not None:
            labels = labels[order]
        chunks = tuple(_run(space, feeds, labels, size, threads, max_bytes))
        first = chunks[0]
        output = next(iter(first.outputs.values()))
        if objective is None:
            kind = default_kind(output, first.count, has_labels=labels is not None)
            objective = Objective.of(kind)
        _check(objective, output, first.count, labels, samples.source)
        return Bench(
            space,
            statistics,
            method,
            objective,
            chunks,
            _ordered(samples.references(), order) if keeps else {},
            are_probabilities([next(iter(each.outputs.values())) for each in chunks]),
            error,
            cache_bytes,
            session_bytes,
        )

    def save(self, folder: Path) -> None:
        """Write everything into a folder; see `intact.search.bench_file`."""
        from intact.search.bench_file import save_bench

        save_bench(self, folder)

    @staticmethod
    def load(folder: Path) -> Bench:
        """Read what ``save`` wrote; samples and float outputs are mapped into memory."""
        from intact.search.bench_file import load_bench

        return load_bench(folder)


def _read(samples: Samples, size: int, max_bytes: int) -> dict[str, npt.NDArray[Any]]:
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


def _run(
    space: Space,
    feeds: Mapping[str, npt.NDArray[Any]],
    labels: npt.NDArray[np.int64] | None,
    size: int,
    threads: int,
    max_bytes: int,
) -> Iterator[Chunk]:
    """Cut the samples into chunks and run the float model over each."""
    model = FloatModel(space.plan.graph, threads=threads)
    total = len(next(iter(feeds.values())))
    taken = sum(array.nbytes for array in feeds.values())
    for start in range(0, total, size):
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


def real_samples(outputs: Arrays, size: int, count: int) -> dict[str, npt.NDArray[Any]]:
    """Return the first ``count`` of ``size`` samples; what has no sample axis stays whole."""
    return {
        name: array[:count] if array.ndim and len(array) == size else array
        for name, array in outputs.items()
    }


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


def _check(
    objective: Objective,
    output: npt.NDArray[Any],
    count: int,
    labels: npt.NDArray[np.int64] | None,
    source: str,
) -> None:
    """Refuse an objective that cannot be scored."""
    kind = objective.kind
    if kind in ("accuracy", "agreement") and not has_classes(output, count):
        raise UsageError(
            f"objective {kind!r}: the first output has shape {list(output.shape)} in a batch and "
            "no classes",
            remedy="take sqnr, cosine or a metric of yours",
        )
    if kind == "kl" and (output.dtype.kind != "f" or output.ndim < 2 or len(output) != count):
        raise UsageError(
            f"objective 'kl': the first output has shape {list(output.shape)} in a batch",
            remedy="take sqnr, cosine or a metric of yours",
        )
    if kind != "accuracy":
        return
    if labels is None:
        raise UsageError(f"{source}: there are no labels", remedy="take agreement, kl or sqnr")
    if labels.min() < 0 or labels.max() >= output.shape[1]:
        raise DataError(
            f"{source}: labels {labels.min()}..{labels.max()} for {output.shape[1]} classes",
            remedy="check that labels start at 0 and belong to this model",
        )


def _ordered(
    references: Mapping[str, Reference], order: npt.NDArray[np.int64]
) -> dict[str, Reference]:
    return {
        name: [values[k] for k in order] if isinstance(values, list) else values[order]
        for name, values in references.items()
    }
