"""Runs the float model on a few samples that are prepared in several ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from intact.calibrate.remembered import FIRST, Remembered, SampleMoments, memories_of
from intact.data.batching import Batch, cut, padded, sample_count
from intact.data.stream import Samples
from intact.engines.session import FloatModel
from intact.errors import DataError
from intact.graph import Graph
from intact.limits import RUN_AT_ONCE
from intact.numerics.answers import information

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]

_MOST_BYTES = 1 << 26
"""Most bytes of the samples that are kept, as of those that calibration chooses."""


class KeptSamples(msgspec.Struct, frozen=True):
    """Some of the samples, in an order in which any number of the first ones is spread over all.

    Attributes:
        inputs: The inputs by name, ``[samples, ...]``.
        labels: int64 ``[samples]``; None where there are none that are classes.
    """

    inputs: Batch
    labels: npt.NDArray[np.int64] | None

    @property
    def count(self) -> int:
        """The number of samples."""
        return len(next(iter(self.inputs.values())))


def kept_samples(samples: Samples, most: int) -> KeptSamples:
    """Read all samples once and keep some, evenly spread, since data may be sorted by class.

    Of samples of several shapes those of the most frequent one are kept, which can be one batch.
    """
    rows: list[Batch] = []
    places: list[int] = []
    stride, room = 1, most
    for seen, (batch, _) in enumerate(samples.batches(1)):
        if seen % stride == 0:
            # A copy, because a source may fill its arrays again.
            rows.append({name: array.copy() for name, array in batch.items()})
            places.append(seen)
            size = sum(array.nbytes for array in batch.values())
            room = max(1, min(most, _MOST_BYTES // max(size, 1)))
        # Thinned out to every second one as data comes: the number of samples need not be known,
        # and those that are kept stay evenly spread.
        if len(rows) >= 2 * room:
            rows, places, stride = rows[::2], places[::2], 2 * stride
    shapes = [tuple(array.shape for array in row.values()) for row in rows]
    usual = Counter(shapes).most_common(1)[0][0] if shapes else ()
    alike = [k for k, shape in enumerate(shapes) if shape == usual]
    rows, places = [rows[k] for k in alike], [places[k] for k in alike]
    chosen = [index * len(rows) // min(room, len(rows)) for index in range(min(room, len(rows)))]
    # So that a round on the first 8 sees all classes of data that is sorted by class.
    order = np.array(chosen)[_spread(len(chosen))]
    inputs = {name: np.concatenate([rows[k][name] for k in order]) for name in rows[0]}
    try:
        labels = samples.labels()
    except DataError:  # references for a metric
        labels = None
    return KeptSamples(inputs, None if labels is None else labels[np.array(places)[order]])


def _spread(count: int) -> npt.NDArray[np.int64]:
    """Order places so that each beginning is spread over all: by their bits in reverse."""
    bits = max(1, (count - 1).bit_length())
    places = np.arange(count)
    reverse = sum(((places >> bit) & 1) << (bits - 1 - bit) for bit in range(bits))
    return np.argsort(np.asarray(reverse), kind="stable")


class Outcome(msgspec.Struct, frozen=True, dict=True):
    """What the float model does with some samples.

    Attributes:
        scores: Its first output, ``[samples, classes]``; None where that has no classes.
        moments: Moments of the remembered tensors.
        memories: What is remembered of those tensors.
    """

    scores: Floats | None
    moments: tuple[SampleMoments, ...]
    memories: tuple[Remembered, ...]

    @cached_property
    def information(self) -> Doubles:
        """The information of each sample's answer, in bits; empty where there are no classes."""
        return np.zeros(0) if self.scores is None else information(self.scores)

    def right(self, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tell of which samples the class is found."""
        assert self.scores is not None  # noqa: S101
        return np.asarray(self.scores.argmax(axis=1) == labels[: len(self.scores)])

    def mismatch(self, part: slice = slice(None)) -> float:
        """Return by how much the remembered tensors are off, the mean of `Remembered.mismatch`."""
        pairs = zip(self.moments, self.memories, strict=True)
        return float(np.mean([moments.mismatch(memory, part) for moments, memory in pairs]))


class Trials:
    """Runs a float model on samples that are prepared in other ways.

    Args:
        graph: The float model.
        kept: The samples, as they are.
        threads: Number of threads of the runtime.
    """

    def __init__(self, graph: Graph, kept: KeptSamples, size: int, threads: int) -> None:
        self._kept, self._size = kept, size
        memories = memories_of(graph)
        output = str(graph.outputs[0].name)
        known = [name for name in memories if name != output][:FIRST]
        self.memories = tuple(memories[name] for name in known)
        self.names = tuple(known)
        self._output = output
        self._model = FloatModel(graph, [output, *known], threads=threads)

    @staticmethod
    def of(graph: Graph, samples: Samples, kept: KeptSamples, threads: int) -> Trials:
        """Make the trials with a batch size that the model takes."""
        return Trials(graph, kept, samples.batch_size(RUN_AT_ONCE), threads)

    def run(self, count: int, changed: Mapping[str, Floats] | None = None) -> Outcome:
        """Run the model on the first samples.

        Args:
            count: How many.
            changed: Inputs in the place of those that were kept.
        """
        inputs = {**self._kept.inputs, **(changed or {})}
        scores: list[Floats] = []
        moments: list[list[SampleMoments]] = [[] for _ in self.names]
        few = min(count, self._kept.count)
        for rows in cut({name: array[:few] for name, array in inputs.items()}, self._size):
            real = sample_count(rows)
            found = self._model.run({n: padded(array, self._size) for n, array in rows.items()})
            first, tensors = found[self._output], [found[name] for name in self.names]
            if first.ndim == 2 and first.shape[0] == self._size and first.shape[1] > 1:
                scores.append(first[:real])
            for place, tensor in zip(moments, tensors, strict=True):
                place.append(SampleMoments.of(tensor, real))
        joined = tuple(map(SampleMoments.joined, moments))
        whole = np.concatenate(scores) if scores else None
        # Scores with NaN or infinity have no information to compare.
        is_finite = whole is not None and bool(np.isfinite(whole).all())
        return Outcome(whole if is_finite else None, joined, self.memories)
