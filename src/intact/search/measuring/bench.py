"""``Bench``: all that trials need, in memory, and the same in a folder for other processes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.calibrate.assign import Method
from intact.calibrate.statistics import Statistics
from intact.data.labels import Reference
from intact.data.stream import Samples
from intact.errors import DataError, UsageError
from intact.search.measuring.chunks import Chunk, chunks_of, portions, read_samples
from intact.search.measuring.objective import (
    Objective,
    Seen,
    are_probabilities,
    default_kind,
    has_classes,
)
from intact.search.measuring.stopping import ERROR
from intact.search.space import Space

CHUNK = 16
"""Samples in one run: as fast as more of them, and their data stay in the caches of the cores."""

_FIRST_CHUNKS = 2
"""Into so many the first run is split: trials on few samples then take several cores too."""

SAMPLE_BYTES = 4 << 30
"""What samples and float outputs may take in memory, unless the caller says."""

ORDER_SEED = 0
"""Of the order of the samples: fixed, so that all searches draw alike."""


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
    def float_hits(self) -> npt.NDArray[np.bool_]:
        """Where the float model has a hit, of objectives that count them; bool ``[samples]``."""
        rows = self.objective.row.rows
        if rows is None:
            return np.zeros(0, np.bool_)
        seen = (
            Seen(each.outputs, each.outputs, each.count, each.labels, self.is_probability)
            for each in self.chunks
        )
        return np.concatenate([rows(each) > 0.0 for each in seen])

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
        feeds = read_samples(samples, size, max_bytes)
        total = len(next(iter(feeds.values())))
        order = np.random.default_rng(ORDER_SEED).permutation(total)
        feeds = {name: array[order] for name, array in feeds.items()}
        needs_labels = objective is None or objective.kind == "accuracy"
        labels = samples.labels() if needs_labels else None
        if labels is not None:
            labels = labels[order]
        first = 1 if size == samples.fixed_batch else _FIRST_CHUNKS
        sizes = portions(total, size, first)
        chunks = tuple(chunks_of(space.plan.graph, feeds, labels, sizes, threads, max_bytes))
        output, count = next(iter(chunks[0].outputs.values())), chunks[0].count
        if objective is None:
            kind = default_kind(output, count, has_labels=labels is not None)
            objective = Objective.of(kind)
        _check(objective, output, count, labels, samples.source)
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
        """Write everything into a folder; see `intact.search.measuring.bench_file`."""
        from intact.search.measuring.bench_file import save_bench

        save_bench(self, folder)

    @staticmethod
    def load(folder: Path) -> Bench:
        """Read what ``save`` wrote; samples and float outputs are mapped into memory."""
        from intact.search.measuring.bench_file import load_bench

        return load_bench(folder)


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
