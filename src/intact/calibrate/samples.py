"""Samples: where calibration and evaluation data come from, checked against the model."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.calibrate.preprocess import Preprocess
from intact.calibrate.signature import InputSpec, check_batch, input_specs
from intact.errors import DataError, nearest
from intact.graph import Graph

Batch = dict[str, npt.NDArray[Any]]
LABELS = "labels"


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
    """

    source: str
    specs: Mapping[str, InputSpec]
    reader: Iterable[Batch]
    preprocess: Preprocess = field(default_factory=Preprocess)
    limit: int | None = None
    count: int | None = None

    def batches(self, size: int) -> Iterator[tuple[Batch, int]]:
        """Yield batches of exactly ``size`` samples and how many of each are real.

        The last one is filled by repeating its last sample, because a runtime's floats can
        change with the batch size. The caller's own batch sizes leave no trace.

        Raises:
            DataError: No samples, or one with a wrong name, dtype, shape, NaN or infinity.
        """
        for rows in self._rebatched(size):
            count = len(next(iter(rows.values())))
            if count < size:
                rows = {name: _padded(array, size) for name, array in rows.items()}  # noqa: PLW2901
            yield rows, count

    def labels(self) -> npt.NDArray[np.int64] | None:
        """Return the labels of all samples, [N]; None where the source has none."""
        found = [
            np.asarray(batch[LABELS]).reshape(-1)
            for batch in self.reader
            if LABELS in batch and LABELS not in self.specs
        ]
        if not found:
            return None
        labels = np.concatenate(found)[: self.limit]
        if labels.dtype.kind not in "iu":
            raise DataError(
                f"{self.source}: labels have dtype {labels.dtype}", remedy="give integers"
            )
        return labels.astype(np.int64)

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
        seen = 0
        for raw in self.reader:
            inputs = {
                name: array for name, array in raw.items() if name != LABELS or name in self.specs
            }
            for batch in _pieces(inputs):
                if self.limit is not None and seen >= self.limit:
                    return
                room = None if self.limit is None else self.limit - seen
                cut = {name: np.asarray(array)[:room] for name, array in batch.items()}
                ready = {name: self.preprocess(name, array) for name, array in cut.items()}
                checked = check_batch(self.source, self.specs, ready, first=seen)
                seen += len(next(iter(checked.values())))
                yield checked
        if seen == 0:
            raise DataError(f"{self.source}: no samples", remedy="give at least one")


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
    source: str | Path | Mapping[str, npt.ArrayLike] | Iterable[Batch],
    graph: Graph,
    *,
    preprocess: Preprocess | None = None,
    limit: int | None = None,
) -> Samples:
    """Open calibration or evaluation data.

    Args:
        source: A ``.npz`` keyed by input name (and ``labels``), a ``.npy`` for a model with one
            input, ``module:function`` that returns an iterable of dicts, a dict of arrays, or
            any re-iterable of such dicts. Arrays have the samples along axis 0.
        graph: The model that the samples are for.
        preprocess: Mean and scale.
        limit: Use the first so many samples.

    Raises:
        DataError: The source is missing, unreadable or holds pickled objects.
    """
    specs = input_specs(graph)
    reader, name = _reader(source, specs)
    count = None
    if isinstance(reader, list):
        lengths = [len(array) for array in reader[0].values() if np.ndim(array)]
        count = max(lengths, default=0) if limit is None else min(limit, max(lengths, default=0))
    return Samples(name, specs, reader, preprocess or Preprocess(), limit, count)


def _reader(
    source: str | Path | Mapping[str, npt.ArrayLike] | Iterable[Batch],
    specs: Mapping[str, InputSpec],
) -> tuple[Iterable[Batch], str]:
    if isinstance(source, Mapping):
        return [{name: np.asarray(array) for name, array in source.items()}], "data"
    if not isinstance(source, str | Path):
        return source, "data"
    text = str(source)
    path = Path(text)
    if path.suffix in {".npz", ".npy"} or path.exists():
        return [_load_arrays(path, specs)], text
    if ":" in text:
        return _Function(text), text
    raise DataError(f"{text}: no such file", remedy="give an .npz, an .npy or module:function")


def _load_arrays(path: Path, specs: Mapping[str, InputSpec]) -> Batch:
    try:
        loaded = np.load(path, allow_pickle=False, mmap_mode="r" if path.suffix == ".npy" else None)
        arrays = (
            {"": loaded}
            if isinstance(loaded, np.ndarray)
            else {name: loaded[name] for name in loaded.files}
        )
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file", remedy="check --data") from error
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, KeyError) as error:
        if "pickle" in str(error):
            raise DataError(
                f"{path}: holds pickled Python objects, which can run code when loaded",
                remedy="save plain numeric arrays",
            ) from error
        raise DataError(f"{path}: not a readable .npz or .npy file ({error})") from error
    if "" in arrays:
        if len(specs) != 1:
            raise DataError(
                f"{path}: the model has {len(specs)} inputs ({', '.join(specs)})",
                remedy="give an .npz with one array for each",
            )
        return {next(iter(specs)): arrays[""]}
    return arrays


class _Function:
    """A ``module:function`` source: called anew for each pass over the data."""

    def __init__(self, text: str) -> None:
        self._text = text
        module_name, _, name = text.partition(":")
        if "" not in sys.path:
            sys.path.insert(0, "")  # a module beside the user, as `python -m` would find it
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise DataError(f"--data {text}: cannot import {module_name!r} ({error})") from error
        function = getattr(module, name, None)
        if not callable(function):
            known = [key for key in vars(module) if not key.startswith("_")]
            raise DataError(
                f"--data {text}: {module_name} has no function {name!r}",
                remedy=nearest(name, known),
            )
        self._function = function

    def __iter__(self) -> Iterator[Batch]:
        try:
            for item in self._function():
                if not isinstance(item, Mapping):
                    raise DataError(
                        f"{self._text}: yields {type(item).__name__}",
                        remedy="yield dicts of arrays by input name",
                    )
                yield {str(name): np.asarray(array) for name, array in item.items()}
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{self._text}: raises {type(error).__name__}: {error}") from error
