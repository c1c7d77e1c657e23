"""Samples: where calibration and evaluation data come from, checked against the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.errors import DataError
from intact.graph import Graph
from intact.samples.labels import BatchLabels, joined_labels
from intact.samples.preprocess import Preprocess
from intact.samples.signature import LABELS, InputSpec, check_batch, input_specs
from intact.samples.sources import FunctionSource, load_arrays

Batch = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Samples:
    """Batches of any sizes, checked and preprocessed when they are read.

    Attributes:
        source: What to call it in messages.
        specs: What the model's inputs accept.
        reader: Gives fresh iterators of raw batches, arrays by input name.
        preprocess: Applied to every batch.
        limit: Read at most this many samples; None reads all.
        count: How many samples there will be, where that is known before reading.
        progress: Told the samples done and, where known, in all.
    """

    source: str
    specs: Mapping[str, InputSpec]
    reader: Iterable[Batch]
    preprocess: Preprocess = field(default_factory=Preprocess)
    limit: int | None = None
    count: int | None = None
    progress: Callable[[int, int | None], None] | None = None
    _seen_labels: list[BatchLabels] = field(default_factory=list, repr=False, compare=False)

    def batches(self, size: int) -> Iterator[tuple[Batch, int]]:
        """Yield batches of exactly ``size`` samples and how many of each are real.

        The last one is filled by repeating its last sample, because a runtime's floats can
        change with the batch size. The caller's own batch sizes leave no trace.

        Raises:
            DataError: No samples, or one with a wrong name, dtype, shape, NaN or infinity.
        """
        done = 0
        for rows in self._rebatched(size):
            count = len(next(iter(rows.values())))
            if count < size:
                rows = {name: _padded(array, size) for name, array in rows.items()}  # noqa: PLW2901
            yield rows, count
            done += count
            if self.progress is not None:
                self.progress(done, self.count)

    @property
    def fixed_batch(self) -> int | None:
        """The batch size that the model fixes; None if it is free."""
        fixed = (spec.fixed_batch for spec in self.specs.values())
        return next((size for size in fixed if size is not None), None)

    def batch_size(self, wanted: int) -> int:
        """Return how many samples can run at once: as the model fixes, or up to ``wanted``.

        One where inputs have other free dimensions, since samples may then differ in shape.
        """
        if self.fixed_batch is not None:
            return self.fixed_batch
        if any(None in spec.shape[1:] for spec in self.specs.values()):
            return 1
        return wanted if self.count is None else max(1, min(wanted, self.count))

    def labels(self) -> npt.NDArray[np.int64] | None:
        """Return the labels of the samples, [N]; None where the source has none.

        They are those of the last pass over the samples: a function may give them in another
        order each time. Only where there was no pass yet, the source is read for them.

        Raises:
            DataError: Some samples have no label, or labels are not class numbers.
        """
        if not self._seen_labels:
            for _ in self._checked():
                pass
        return joined_labels(self.source, self._seen_labels)

    def _rebatched(self, size: int) -> Iterator[Batch]:
        pending: list[Batch] = []
        waiting = 0
        for batch in self._checked():
            pending.append(batch)
            waiting += len(next(iter(batch.values())))
            if waiting >= size:
                joined = _joined(pending)
                whole = waiting - waiting % size
                for start in range(0, whole, size):
                    yield {name: array[start : start + size] for name, array in joined.items()}
                waiting -= whole
                pending = (
                    [{name: array[whole:] for name, array in joined.items()}] if waiting else []
                )
        if waiting:
            yield _joined(pending)

    def _checked(self) -> Iterator[Batch]:
        scaled = self.preprocess.inputs(self.specs)
        self._seen_labels.clear()
        seen = 0
        for raw in self._raw():
            inputs = {n: array for n, array in raw.items() if n != LABELS or n in self.specs}
            labels = raw[LABELS] if len(inputs) < len(raw) else None
            before = seen
            for batch in _pieces(inputs):
                room = None if self.limit is None else self.limit - seen
                if room == 0:
                    break
                cut = {n: array[:room] if array.ndim else array for n, array in batch.items()}
                ready = {
                    name: self.preprocess(name, array) if name in scaled else array
                    for name, array in cut.items()
                }
                checked = check_batch(self.source, self.specs, ready, first=seen)
                seen += len(next(iter(checked.values())))
                yield checked
            every = len(next(iter(inputs.values())))
            self._seen_labels.append(BatchLabels(labels, every, seen - before))
            if self.limit is not None and seen >= self.limit:
                return  # before reading on: the source may never end
        if seen == 0:
            raise DataError(f"{self.source}: no samples", remedy="give at least one")

    def _raw(self) -> Iterator[Batch]:
        try:
            items = iter(self.reader)
        except TypeError:
            raise DataError(
                f"{self.source}: {type(self.reader).__name__} cannot be iterated",
                remedy="give dicts of arrays by input name",
            ) from None
        for item in items:
            if not isinstance(item, Mapping):
                raise DataError(
                    f"{self.source}: yields {type(item).__name__}",
                    remedy="yield dicts of arrays by input name",
                )
            yield {str(name): _array(self.source, str(name), item[name]) for name in item}


def _array(source: str, name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{source}: {name!r} is no array ({error})", remedy="give arrays of numbers"
        ) from error


_PIECE = 64


def _pieces(batch: Batch) -> Iterator[Batch]:
    """Cut a large array into small pieces, so that only these become float32 at a time."""
    lengths = [len(array) if np.ndim(array) else 0 for array in batch.values()]
    longest = max(lengths, default=0)
    if len(set(lengths)) > 1 or longest <= _PIECE:
        yield batch  # unequal lengths are for the checks to name
        return
    for start in range(0, longest, _PIECE):
        yield {name: array[start : start + _PIECE] for name, array in batch.items()}


def _joined(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def _padded(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    return np.concatenate([array, np.repeat(array[-1:], size - len(array), axis=0)])


def open_samples(
    source: str | Path | npt.NDArray[Any] | Mapping[str, npt.ArrayLike] | Iterable[Batch],
    graph: Graph,
    *,
    preprocess: Preprocess | None = None,
    limit: int | None = None,
) -> Samples:
    """Open calibration or evaluation data.

    Args:
        source: A ``.npz`` keyed by input name (and ``labels``), a ``.npy`` for a model with one
            input, ``module:function`` that returns an iterable of dicts, a dict of arrays, an
            array for a model with one input, or any iterable of such dicts. Arrays have the
            samples along axis 0.
        graph: The model that the samples are for.
        preprocess: Mean and scale.
        limit: Use the first so many samples.

    Raises:
        DataError: The source is missing, unreadable or holds pickled objects.
    """
    specs = input_specs(graph)
    reader, name = _reader(source, specs)
    count = _count(reader)
    if count is not None and limit is not None:
        count = min(count, limit)
    return Samples(name, specs, reader, preprocess or Preprocess(), limit, count)


def _count(reader: Iterable[Batch]) -> int | None:
    """Return how many samples a list of batches holds; None for what has to be read to know."""
    if not isinstance(reader, list):
        return None
    lengths = [
        [len(array) for array in batch.values() if np.ndim(array)]
        for batch in reader
        if isinstance(batch, Mapping)  # what is not is named when it is read
    ]
    return sum(max(each, default=0) for each in lengths)


def _reader(
    source: str | Path | npt.NDArray[Any] | Mapping[str, npt.ArrayLike] | Iterable[Batch],
    specs: Mapping[str, InputSpec],
) -> tuple[Iterable[Batch], str]:
    if isinstance(source, Mapping):
        return [{name: _array("data", name, array) for name, array in source.items()}], "data"
    if isinstance(source, np.ndarray):
        return [_only_input("data", source, specs)], "data"
    if not isinstance(source, str | Path):
        return source, "data"
    text = str(source)
    path = Path(text)
    if path.suffix in {".npz", ".npy"} or path.exists():
        loaded = load_arrays(path)
        if isinstance(loaded, np.ndarray):
            loaded = _only_input(text, loaded, specs)
        return [loaded], text
    if ":" in text:
        return FunctionSource(text), text
    raise DataError(f"{text}: no such file", remedy="give an .npz, an .npy or module:function")


def _only_input(
    where: str, array: npt.NDArray[Any], specs: Mapping[str, InputSpec]
) -> dict[str, npt.NDArray[Any]]:
    if len(specs) != 1:
        raise DataError(
            f"{where}: one array, the model has {len(specs)} inputs ({', '.join(specs)})",
            remedy="give an .npz with one array for each",
        )
    return {next(iter(specs)): array}
