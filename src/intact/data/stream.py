"""Declares `Samples`: a stream of calibration or evaluation data, checked when it is read.

Each pass over the samples goes these ways::

    reader -> _read_raw -> _separate (inputs, references) -> one of two:
      of batches: _read_checked (preprocessing, checks) -> _rebatch -> masked_batches -> batches
      of feeds: _feeds (preprocessing) -> _read_feeds (states, checks) -> masked_batches -> batches

A batch has samples along axis 0 of all inputs, and may be cut and joined: with 5 samples,
``batches(2)`` yields 2, 2, and 1 padded to 2. A feed is what the model takes for one run, where
some input has no axis for samples (`intact.data.feeding`); it is never cut. References are all else
that a source gives, such as labels: they are kept (`_seen`) until they are asked for, after the
pass.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from intact.data.arrays import as_array
from intact.data.batching import Batch, joined, owned, padded, pieces, shapes_of
from intact.data.feeding import Carried, Feeding, Step, arrange_feeds, takes_feeds
from intact.data.functions import describe
from intact.data.images.reader import DecodedFolder, ImageFolder
from intact.data.items import Items, PreparedBatch
from intact.data.labels import (
    BatchReferences,
    Reference,
    as_reference,
    is_reference,
    join_labels,
    join_references,
)
from intact.data.mask import RealPositions, real_positions, refuse_missing
from intact.data.preprocess import Preprocess
from intact.data.signature import (
    LABELS,
    InputSpec,
    check_batch,
    check_feed,
    check_ranks,
    without_batch_axis,
)
from intact.errors import DataError

AGAIN = "give a list of its items, a dataset, a file, or a function that makes the iterator anew"
"""The remedy where an iterator would be read twice."""


@dataclass(frozen=True)
class Samples:
    """Batches of any sizes, checked and preprocessed when they are read.

    Attributes:
        source: Name for messages.
        specs: The model's inputs.
        reader: An iterable of raw batches (arrays by input name) that can be iterated again.
        preprocess: Applied to every batch.
        limit: Read at most this many samples; None reads all.
        count: Number of samples, if known before reading.
        progress: Called with the number of samples read and, if known, of all samples.
        mask: Name of the mask of padded positions, ``[N, S]``: an input of the model, or another
            array of the source.
        unread: Names of arrays of the source that are not needed.
        keep_references: Keep all references and not only labels; they may be large.
        codes: Inputs that the source holds as integer codes: the reader has dequantized them.
        feeding: Which inputs have no axis for samples, and which are states.
        step: Runs the float model for its states; needed where there are some.
        memory: Bytes that kept activations of the samples may take; None for no limit.
        shapes: How many samples of the last pass had which shapes, one for each input.
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
    codes: tuple[str, ...] = ()
    feeding: Feeding = field(default_factory=Feeding)
    step: Step | None = None
    memory: int | None = None
    shapes: Counter[tuple[tuple[int, ...], ...]] = field(
        default_factory=Counter, repr=False, compare=False
    )
    _seen: list[BatchReferences] = field(default_factory=list, repr=False, compare=False)

    def batches(self, size: int) -> Iterator[tuple[Batch, int]]:
        """Yield batches of exactly ``size`` samples, each with the number of real ones.

        The last batch is padded with its last sample, because a runtime's floats can depend on the
        batch size. Batch sizes of the source have no effect.

        Raises:
            DataError: There are no samples, a sample has a wrong name, dtype, shape, NaN or
                infinity, or the mask is wrong or masks everything.
        """
        for rows, count, _ in self.masked_batches(size):
            yield rows, count

    def real_batches(self, size: int) -> Iterator[tuple[Batch, int]]:
        """Yield the same batches without padding, unless the model fixes their size.

        Raises:
            DataError: As for ``batches``.
        """
        whole = self.fixed_batch is not None  # such a model cannot run fewer
        for feeds, count in self.batches(size):
            yield feeds if whole else {name: array[:count] for name, array in feeds.items()}, count

    def first(self, most: int) -> Samples:
        """Return the first samples; their progress is not told, and ``count`` is at most theirs."""
        limit = most if self.limit is None else min(most, self.limit)
        count = limit if self.count is None else min(limit, self.count)
        return replace(self, limit=limit, count=count, progress=None)

    def masked_batches(self, size: int) -> Iterator[tuple[Batch, int, RealPositions | None]]:
        """Yield the same batches, each with its real positions, bool ``[size, S]``; None without
        mask.

        Raises:
            DataError: As for ``batches``.
        """
        if self.takes_feeds:
            yield from ((feed, 1, None) for feed in self._read_feeds())
            return
        done, is_any_real = 0, self.mask is None
        for rows in self._rebatch(size):
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
    def takes_feeds(self) -> bool:
        """Whether each sample is a batch of its own, in which inputs have the model's shapes."""
        return takes_feeds(self.specs, self.feeding)

    @property
    def fixed_batch(self) -> int | None:
        """The batch size that the model fixes; None if it is free."""
        if self.takes_feeds:
            return 1
        fixed = (spec.fixed_batch for spec in self.specs.values())
        return next((size for size in fixed if size is not None), None)

    def batch_size(self, wanted: int) -> int:
        """Choose the batch size: the one that the model fixes, else up to ``wanted``.

        It is 1 if inputs have other free dimensions, since samples may then differ in shape.
        """
        if self.fixed_batch is not None:
            return self.fixed_batch
        if not self.has_free_batch:
            return 1
        return wanted if self.count is None else max(1, min(wanted, self.count))

    @property
    def has_free_batch(self) -> bool:
        """Whether a batch may have any number of samples: all have one shape."""
        is_open = any(None in spec.shape[1:] for spec in self.specs.values())
        return self.fixed_batch is None and not is_open

    @property
    def skipped(self) -> tuple[str, ...]:
        """The files of a folder that the last pass skipped: one line each, with the reason."""
        return () if self._folder is None else tuple(self._folder.skipped)

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names of a folder's sub-folders; empty if there are none."""
        return () if self._folder is None else self._folder.labels.classes

    @property
    def why_no_labels(self) -> str:
        """Why a folder has no labels; empty if it has, and for other sources."""
        return "" if self._folder is None else self._folder.labels.reason

    @property
    def _folder(self) -> ImageFolder | DecodedFolder | None:
        """The images that the reader has, as a folder or beneath it; None if it has others."""
        found = self.reader.opened.items if isinstance(self.reader, Items) else self.reader
        return found if isinstance(found, ImageFolder | DecodedFolder) else None

    def labels(self) -> npt.NDArray[np.int64] | None:
        """Return the labels of the samples, ``[N]``; None if the source has none.

        They belong to the last pass: a function may yield samples in another order each time. The
        source is read only if there was no pass yet.

        Raises:
            DataError: Some samples have no label, or labels are not class numbers.
        """
        if not self._seen:
            for _ in self._feeds() if self.takes_feeds else self._read_checked():
                pass
        return join_labels(self.source, self._seen)

    def references(self) -> dict[str, Reference]:
        """Return the references of the last pass by key, including labels.

        Raises:
            DataError: Some samples have no entry, or there are not as many entries as samples.
        """
        return join_references(self.source, self._seen)

    def was_read(self, references: Mapping[str, Reference], count: int) -> None:
        """Take the references of samples that were read elsewhere, as if a pass had seen them."""
        self._start()
        self._seen.append(BatchReferences(references, count, count))

    def _read_feeds(self) -> Iterator[Batch]:
        """Yield checked feeds, each with the states that the float model gave for the last one."""
        carried = Carried(self.feeding.states, self.specs)
        for done, feed in enumerate(self._feeds()):
            ready = check_feed(self.source, self.specs, carried.into(feed), done)
            self._note(ready, 1)
            yield ready
            if self.progress is not None:
                self.progress(done + 1, self.count)
            if self.step is not None:
                carried.keep(self.step(ready))

    def _feeds(self) -> Iterator[Batch]:
        """Yield the preprocessed feeds of the source, not checked and without states."""
        to_scale = self.preprocess.inputs(self.specs)
        self._start()
        seen = 0
        for raw in self._read_raw():
            scaled = frozenset() if isinstance(raw, PreparedBatch) else to_scale
            inputs, references = self._separate(raw)
            found = arrange_feeds(self.source, self.specs, inputs, self.feeding)
            room = found.count if self.limit is None else min(found.count, self.limit - seen)
            for feed in itertools.islice(found, room):
                seen += 1
                ready = {
                    name: self.preprocess(name, array) if name in scaled else array
                    for name, array in feed.items()
                }
                yield owned(ready, inputs) if self._is_refilled else ready
            self._seen.append(BatchReferences(references, found.count, room))
            if self.limit is not None and seen >= self.limit:
                return  # stop reading: the source may be endless
        self._refuse_none(seen)

    def _start(self) -> None:
        """Forget what the last pass saw.

        Raises:
            DataError: There was one, and the source gives its samples once.
        """
        if self._seen and isinstance(self.reader, Iterator):
            raise DataError(
                f"{self.source}: the samples are read a second time, and an iterator gives them "
                "once",
                remedy=AGAIN,
            )
        self._seen.clear()
        self.shapes.clear()

    def _note(self, batch: Batch, count: int) -> None:
        """Count the shapes of some samples, each as a batch of one."""
        shapes = (batch[name].shape for name in self.specs)
        if not self.takes_feeds:
            shapes = ((1, *shape[1:]) for shape in shapes)
        self.shapes[tuple(shapes)] += count

    @property
    def usual_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes that most samples of the last pass had, of inputs that leave them open.

        The smallest of equally many, so that the order of the samples has no effect.
        """
        if not self.shapes:
            return {}
        # Shapes are in the order of the inputs, so tuples of tuples compare.
        usual = min(self.shapes, key=lambda shapes: (-self.shapes[shapes], shapes))
        first = 0 if self.takes_feeds else 1
        found = zip(self.specs.items(), usual, strict=True)
        return {name: shape for (name, spec), shape in found if None in spec.shape[first:]}

    def common_shapes(self) -> dict[str, tuple[int, ...]]:
        """Read the samples for the shapes that all of them have, each as a batch of one.

        Returns:
            The shapes by input; empty where samples differ.

        Raises:
            DataError: As of `batches`.
        """
        if self.takes_feeds:
            zeros = Carried(self.feeding.states, self.specs)
            for feed in self._feeds():
                self._note(zeros.into(feed), 1)
        else:
            for _ in self._read_checked():
                pass
        return dict(zip(self.specs, *self.shapes, strict=True)) if len(self.shapes) == 1 else {}

    def common_values(self, names: Iterable[str]) -> dict[str, bool | int | float]:
        """Read the samples for the numbers that inputs hold in all of them, by name.

        Raises:
            DataError: As of `batches`.
        """
        seen: dict[str, set[bool | int | float]] = {name: set() for name in names}
        for batch in self._feeds() if self.takes_feeds else self._read_checked():
            for name in seen.keys() & batch.keys():
                seen[name].update(np.unique(batch[name]).tolist())
        return {name: found.pop() for name, found in seen.items() if len(found) == 1}

    def differing(self, wanted: Batch) -> frozenset[str]:
        """Read the samples for the inputs that hold other numbers in some than those.

        Args:
            wanted: By name, those of one sample as a batch.

        Raises:
            DataError: As of `batches`.
        """
        found: set[str] = set()
        for batch in self._feeds() if self.takes_feeds else self._read_checked():
            for name in wanted.keys() & batch.keys() - found:
                given, expected = batch[name], wanted[name]
                if given.shape[1:] != expected.shape[1:] or (given != expected).any():
                    found.add(name)
        return frozenset(found)

    def _refuse_none(self, seen: int) -> None:
        if seen == 0:
            raise DataError(f"{self.source}: no samples", remedy="give at least one")

    def _rebatch(self, size: int) -> Iterator[Batch]:
        """Yield checked batches of a size; fewer before samples of other shapes, and at the end."""
        pending: list[Batch] = []
        waiting = 0
        for batch in self._read_checked():
            if pending and shapes_of(batch) != shapes_of(pending[0]):
                yield from [joined(pending)] if waiting else []
                pending, waiting = [], 0
            pending.append(batch)
            waiting += len(next(iter(batch.values())))
            if waiting >= size:
                rows = joined(pending)
                # Cut from all that waits at once: joining for each batch would copy the rest again
                # and again.
                whole = waiting - waiting % size
                for start in range(0, whole, size):
                    yield {name: array[start : start + size] for name, array in rows.items()}
                waiting -= whole
                pending = [{name: array[whole:] for name, array in rows.items()}] if waiting else []
        if waiting:
            yield joined(pending)

    def _read_checked(self) -> Iterator[Batch]:
        """Yield preprocessed and checked batches, of the sizes that the source has or smaller."""
        # A mask that is an input has 0 and 1, whatever is done to the others.
        to_scale = self.preprocess.inputs(self.specs) - {self.mask}
        self._start()
        seen = 0
        for raw in self._read_raw():
            scaled = frozenset() if isinstance(raw, PreparedBatch) else to_scale
            inputs, references = self._separate(raw)
            inputs = without_batch_axis(self.specs, inputs)
            check_ranks(self.source, self.specs, inputs)
            before = seen
            # Piece by piece, because a file may be one batch of gigabytes.
            for batch in pieces(inputs):
                room = None if self.limit is None else self.limit - seen
                if room == 0:
                    break
                # Before the conversion, so that what is not used costs nothing.
                cut = {n: array[:room] if array.ndim else array for n, array in batch.items()}
                ready = {
                    name: self.preprocess(name, array) if name in scaled else array
                    for name, array in cut.items()
                }
                checked = self._check(ready, first=seen)
                if self._is_refilled:
                    checked = owned(checked, inputs)
                count = len(next(iter(checked.values())))
                self._note(checked, count)
                seen += count
                yield checked
            every = len(next(iter(inputs.values())))
            self._seen.append(BatchReferences(references, every, seen - before))
            if self.limit is not None and seen >= self.limit:
                return  # stop reading: the source may be endless
        self._refuse_none(seen)

    def _separate(self, raw: Mapping[str, Any]) -> tuple[Batch, dict[str, Reference]]:
        """Split a raw batch into arrays for the model or the mask, and references to keep."""
        # By name, before any array is touched: references may be large and are read only if kept.
        along = {n for n in raw if n != self.mask and is_reference(n, self.specs)}
        kept = along if self.keep_references else along & {LABELS}
        inputs = {n: as_array(self.source, n, raw[n]) for n in raw if n not in along | self.unread}
        found = {n: raw[n] for n in raw if n in kept}
        if self._is_refilled:
            found = {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in found.items()}
        return inputs, {n: as_reference(self.source, n, each) for n, each in found.items()}

    @property
    def _is_refilled(self) -> bool:
        """Whether the source may reuse its arrays for the next batch, as data loaders do."""
        is_kept = isinstance(self.reader, Items) and self.reader.opened.is_kept
        return not (is_kept or isinstance(self.reader, list | ImageFolder))

    def _check(self, batch: Batch, *, first: int) -> Batch:
        """Check and convert the inputs, and add the mask if it is not an input."""
        refuse_missing(self.source, self.mask, batch)
        inputs = {n: array for n, array in batch.items() if n in self.specs or n != self.mask}
        checked = check_batch(self.source, self.specs, inputs, first=first)
        if self.mask is None:
            return checked
        real = real_positions(self.source, self.mask, batch, self.specs, first=first)
        return checked if self.mask in checked else checked | {self.mask: real}

    def _read_raw(self) -> Iterator[dict[str, Any]]:
        """Yield what the reader gives, as dicts: whatever else it gives is an error."""
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
            if isinstance(item, PreparedBatch):
                yield item
                continue
            try:
                arrays = {str(name): item[name] for name in item}
            except Exception as error:  # reading an array may raise anything
                raise DataError(f"{self.source}: cannot be read ({describe(error)})") from error
            yield arrays
