"""Samples: where calibration and evaluation data come from, checked against the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.data.batching import Batch, joined, owned, padded, pieces
from intact.data.functions import describe
from intact.data.images.reader import ImageFolder
from intact.data.labels import (
    BatchReferences,
    Reference,
    as_reference,
    is_reference,
    joined_labels,
    joined_references,
)
from intact.data.mask import RealPositions, real_positions, refuse_missing
from intact.data.preprocess import Preprocess
from intact.data.signature import LABELS, InputSpec, check_batch
from intact.errors import DataError


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
        mask: Name of the array that tells real from padded positions, ``[N, S]``: an input of
            the model, or an array of the source that the model does not take.
        unread: Names of arrays of the source that this use of it does not need.
        keep_references: Keep what comes along with the samples for ``references``, not only the
            labels; it may be large.
    """

    source: str
    specs: Mapping[str, InputSpec]
    reader: Iterable[Batch]
    preprocess: Preprocess = field(default_factory=Preprocess)
    limit: int | None = None
    count: int | None = None
    progress: Callable[[int, int | None], None] | None = None
    mask: str | None = None
    unread: frozenset[str] = frozenset()
    keep_references: bool = False
    _seen: list[BatchReferences] = field(default_factory=list, repr=False, compare=False)

    def batches(self, size: int) -> Iterator[tuple[Batch, int]]:
        """Yield batches of exactly ``size`` samples and how many of each are real.

        The last one is filled by repeating its last sample, because a runtime's floats can
        change with the batch size. The caller's own batch sizes leave no trace.

        Raises:
            DataError: No samples, or one with a wrong name, dtype, shape, NaN or infinity; a mask
                that is none, or that marks everything as padded.
        """
        for rows, count, _ in self.masked_batches(size):
            yield rows, count

    def masked_batches(self, size: int) -> Iterator[tuple[Batch, int, RealPositions | None]]:
        """Yield the same batches, each with its real positions; None without a mask.

        These are bool ``[size, S]``, all False for a sample that holds nothing.

        Raises:
            DataError: As for ``batches``.
        """
        done, is_any_real = 0, self.mask is None
        for rows in self._rebatched(size):
            count = len(next(iter(rows.values())))
            full = rows
            if count < size:
                full = {name: padded(array, size) for name, array in rows.items()}
            real = None if self.mask is None else full[self.mask] != 0
            is_any_real = is_any_real or bool(np.any(real))
            yield {name: full[name] for name in self.specs}, count, real
            done += count
            if self.progress is not None:
                self.progress(done, self.count)
        if not is_any_real:
            raise DataError(
                f"{self.source}: the mask {self.mask!r} is 0 everywhere",
                remedy="give 0 where a sequence is padded and 1 where it is real",
            )

    @property
    def fixed_batch(self) -> int | None:
        """The batch size that the model fixes; None if it is free."""
        fixed = (spec.fixed_batch for spec in self.specs.values())
        return next((size for size in fixed if size is not None), None)

    def batch_size(self, wanted: int) -> int:
        """Return the batch size: the model's own where it fixes one, else up to ``wanted``.

        One where inputs have other free dimensions, since samples may then differ in shape.
        """
        if self.fixed_batch is not None:
            return self.fixed_batch
        if any(None in spec.shape[1:] for spec in self.specs.values()):
            return 1
        return wanted if self.count is None else max(1, min(wanted, self.count))

    @property
    def skipped(self) -> tuple[str, ...]:
        """The files of a folder that the last pass left out: a line for each, its path and why."""
        return tuple(self.reader.skipped) if isinstance(self.reader, ImageFolder) else ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that a folder's sub-folders name; empty where there are no such names."""
        return self.reader.labels.classes if isinstance(self.reader, ImageFolder) else ()

    @property
    def why_no_labels(self) -> str:
        """Why a folder gives no labels; empty where it does, and for other sources."""
        return self.reader.labels.reason if isinstance(self.reader, ImageFolder) else ""

    def labels(self) -> npt.NDArray[np.int64] | None:
        """Return the labels of the samples, [N]; None where the source has none.

        They are those of the last pass over the samples: a function may give them in another
        order each time. Only where there was no pass yet, the source is read for them.

        Raises:
            DataError: Some samples have no label, or labels are not class numbers.
        """
        if not self._seen:
            for _ in self._checked():
                pass
        return joined_labels(self.source, self._seen)

    def references(self) -> dict[str, Reference]:
        """Return the extra arrays of the last pass by key, labels included.

        Raises:
            DataError: Some samples have no entry, or there are not as many entries as samples.
        """
        return joined_references(self.source, self._seen)

    def _rebatched(self, size: int) -> Iterator[Batch]:
        pending: list[Batch] = []
        waiting = 0
        for batch in self._checked():
            pending.append(batch)
            waiting += len(next(iter(batch.values())))
            if waiting >= size:
                rows = joined(pending)
                whole = waiting - waiting % size
                for start in range(0, whole, size):
                    yield {name: array[start : start + size] for name, array in rows.items()}
                waiting -= whole
                pending = [{name: array[whole:] for name, array in rows.items()}] if waiting else []
        if waiting:
            yield joined(pending)

    def _checked(self) -> Iterator[Batch]:
        scaled = self.preprocess.inputs(self.specs) - {self.mask}
        self._seen.clear()
        seen = 0
        for raw in self._raw():
            inputs, references = self._separated(raw)
            before = seen
            for batch in pieces(inputs):
                room = None if self.limit is None else self.limit - seen
                if room == 0:
                    break
                cut = {n: array[:room] if array.ndim else array for n, array in batch.items()}
                ready = {
                    name: self.preprocess(name, array) if name in scaled else array
                    for name, array in cut.items()
                }
                checked = self._check(ready, first=seen)
                if self._is_refilled:
                    checked = owned(checked, inputs)
                seen += len(next(iter(checked.values())))
                yield checked
            every = len(next(iter(inputs.values())))
            self._seen.append(BatchReferences(references, every, seen - before))
            if self.limit is not None and seen >= self.limit:
                return  # before reading on: the source may never end
        if seen == 0:
            raise DataError(f"{self.source}: no samples", remedy="give at least one")

    def _separated(self, raw: Mapping[str, Any]) -> tuple[Batch, dict[str, Reference]]:
        """Split a sample: arrays for the model or the mask, and extra arrays to keep."""
        along = {n for n in raw if n != self.mask and is_reference(n, self.specs)}
        kept = along if self.keep_references else along & {LABELS}
        inputs = {n: as_array(self.source, n, raw[n]) for n in raw if n not in along | self.unread}
        found = {n: raw[n] for n in raw if n in kept}
        if self._is_refilled:
            found = {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in found.items()}
        return inputs, {n: as_reference(self.source, n, each) for n, each in found.items()}

    @property
    def _is_refilled(self) -> bool:
        """Whether arrays may be filled anew once the next are asked for, as loaders do.

        A list stays as it is.
        """
        return not isinstance(self.reader, list | ImageFolder)

    def _check(self, batch: Batch, *, first: int) -> Batch:
        """Return the inputs as the model takes them, and the mask beside them if it is none."""
        refuse_missing(self.source, self.mask, batch)
        inputs = {n: array for n, array in batch.items() if n in self.specs or n != self.mask}
        checked = check_batch(self.source, self.specs, inputs, first=first)
        if self.mask is None:
            return checked
        real = real_positions(self.source, self.mask, batch, self.specs, first=first)
        return checked if self.mask in checked else checked | {self.mask: real}

    def _raw(self) -> Iterator[dict[str, Any]]:
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
            try:
                arrays = {str(name): item[name] for name in item}
            except Exception as error:  # whatever reads a file when it is asked for an array
                raise DataError(f"{self.source}: cannot be read ({describe(error)})") from error
            yield arrays


def as_array(source: str, name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Convert an item of a source to an array.

    Raises:
        DataError: It is none, or holds masked values.
    """
    if np.ma.is_masked(values):
        raise DataError(
            f"{source}: {name!r} is a masked array", remedy="fill it, or leave the samples out"
        )
    try:
        return np.asarray(values)
    except Exception as error:  # other libraries' arrays raise what they like
        raise DataError(
            f"{source}: {name!r} is no array ({error})", remedy="give arrays of numbers"
        ) from error
