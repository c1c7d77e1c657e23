"""Serves samples in the order of training: shuffled for each epoch, some held out."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from intact.data.batching import Batch
from intact.data.stream import Samples
from intact.errors import DataError
from intact.limits import TRAINING_BYTES

_SHARE, _MOST = 0.1, 2048
"""How many of the samples are held out: a tenth, and no more than so many."""
_FEWEST = 2


class LabelledBatch(NamedTuple):
    """A batch.

    Attributes:
        inputs: Arrays by input name.
        labels: int64 ``[N]``; None where the data has none.
        size: How many samples.
    """

    inputs: Batch
    labels: npt.NDArray[np.int64] | None
    size: int


class Pool:
    """Samples for many passes.

    Args:
        samples: Read once here, and again in each pass if they are more than ``memory``.
        size: Samples of a batch, where the model leaves it open.
        seed: Decides which are held out, and all orders.
        memory: Bytes of samples to keep.

    Attributes:
        count: Samples to train on.
        size: Samples of a batch.
        labels: int64 ``[N]``, of all samples; None where there are none.
        digest: Identifies the samples, to know them again by.
        source: Name for messages.

    Raises:
        DataError: There are too few samples, or a sample does not fit the model.
    """

    def __init__(
        self, samples: Samples, size: int, seed: int, memory: int = TRAINING_BYTES
    ) -> None:
        self._samples, self._memory, self.source = samples, memory, samples.source
        self.size = samples.batch_size(size)
        self._takes_feeds = samples.takes_feeds
        self._kept: list[Batch] | None = []
        total = used = self.digest = 0
        for item in self._items():
            total += 1
            used += sum(array.nbytes for array in item.values())
            for array in item.values():
                self.digest = zlib.crc32(np.ascontiguousarray(array).data, self.digest)
            if self._kept is not None and used <= memory:
                self._kept.append(item)
            else:
                self._kept = None
        self.labels = samples.labels()
        held = self._held_count(total, samples.fixed_batch or 1)
        order = np.random.default_rng(seed).permutation(total)
        # Drawn once, so that no epoch trains on what judges it.
        self._held = frozenset(order[:held].tolist())
        self._seed, self._total = seed, total
        self.count = total - held

    def _held_count(self, total: int, unit: int) -> int:
        """Return how many samples are held out: whole batches, where the model fixes their size."""
        if total < _FEWEST * unit:
            raise DataError(
                f"{self.source}: {total} sample(s), of which some are held out",
                remedy=f"give at least {_FEWEST * unit}, some hundred as a rule",
            )
        wanted = min(max(round(_SHARE * total), 1), _MOST)
        # At least one whole batch is left to train on.
        return min(-(-wanted // unit), total // unit - 1) * unit

    @property
    def steps(self) -> int:
        """Batches of an epoch; what is left over at the end of a pass waits for the next one."""
        return max(self.count // self.size, 1)

    def epoch(self, number: int) -> Iterator[LabelledBatch]:
        """Yield the batches of an epoch: full ones, in an order that seed and number decide.

        Raises:
            DataError: The source gives fewer samples than in the first pass.
        """
        yielded = 0
        for position, window in enumerate(self._windows()):
            # The 1 keeps these orders apart from the one that decides what is held out.
            order = np.random.default_rng((self._seed, 1, number, position)).permutation(
                len(window)
            )
            rows = [window[index] for index in order.tolist()]
            for start in range(0, len(rows), self.size):
                chosen = rows[start : start + self.size]
                if len(chosen) == self.size or len(rows) < self.size:
                    yielded += 1
                    yield self._label(chosen)
                    if yielded == self.steps:
                        return
        if yielded == 0:
            raise DataError(
                f"{self.source}: gives no samples any more",
                remedy="give data that can be read again: arrays, files, or a function",
            )

    def held_out(self) -> Iterator[LabelledBatch]:
        """Yield the batches that are held out, in order; the last may be smaller."""
        waiting: list[tuple[int, Batch]] = []
        for index, item in self._enumerate():
            if index in self._held:
                waiting.append((index, item))
            if len(waiting) == self.size:
                yield self._label(waiting)
                waiting = []
        if waiting:
            yield self._label(waiting)

    def _windows(self) -> Iterator[list[tuple[int, Batch]]]:
        """Yield the samples to train on in parts that fit into memory."""
        window: list[tuple[int, Batch]] = []
        used = 0
        for index, item in self._enumerate():
            if index in self._held:
                continue
            window.append((index, item))
            used += sum(array.nbytes for array in item.values())
            # At full batches only, or each window would leave some samples over.
            if self._kept is None and used >= self._memory and len(window) % self.size == 0:
                yield window
                window, used = [], 0
        if window:
            yield window

    def _enumerate(self) -> Iterator[tuple[int, Batch]]:
        yield from enumerate(self._items() if self._kept is None else self._kept)

    def _items(self) -> Iterator[Batch]:
        """Yield the samples one by one, each as a batch of one."""
        fixed = self._samples.fixed_batch
        size = 1 if self._takes_feeds or fixed is None else fixed
        for rows, count in self._samples.batches(size):
            if self._takes_feeds:
                yield rows
                continue
            for k in range(count):
                # Copied, or each sample would keep its whole batch in memory.
                yield {name: array[k : k + 1].copy() for name, array in rows.items()}

    def _label(self, rows: Sequence[tuple[int, Batch]]) -> LabelledBatch:
        indices = [index for index, _ in rows]
        labels = None if self.labels is None else self.labels[indices]
        first = rows[0][1]
        if len(rows) == 1:
            return LabelledBatch(first, labels, 1)
        joined = {n: np.concatenate([row[n] for _, row in rows]) for n in first}
        return LabelledBatch(joined, labels, len(rows))
