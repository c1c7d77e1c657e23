"""Compares the outputs of models with the float model's, on some samples.

`FloatRuns` holds the samples and what the float model computes for them. Any `Run` is compared with
that, batch by batch: a simulated plan, the integer engine, a runtime. Of the outputs only `Errors`
stay, which add up over batches.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import reduce
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from intact.data.batching import Batch, real_samples
from intact.data.batching import sample_count as batch_length
from intact.engines.executor import Arrays, Run
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.graph import Graph
from intact.graph.caches import growing_inputs
from intact.graph.ops import outputs_of_choices, outputs_of_vectors
from intact.graph.passes.random_ops import random_values
from intact.limits import MOST_DB, OUTPUT_BYTES, SAFE_DB
from intact.numerics.answers import are_classes
from intact.numerics.metrics import Equality
from intact.plan import QuantizedGraph

_CHANCE = 0.75
"""Standard errors that a loss must exceed, to be none of chance."""
_LIMIT = float(10 ** (SAFE_DB / 10))
"""`SAFE_DB` as a ratio of noise powers."""
_SURE = 2.0
"""Standard errors beyond which what a few samples say is believed."""
_BYTES = 4
"""Bytes of a float."""
_COMPARED = 1 << 20
"""Elements of an output that are compared at once, in double precision."""

Doubles = npt.NDArray[np.float64]


class Powers(NamedTuple):
    """The errors of one output by sample.

    Attributes:
        signal: Power of the float model's, float64 ``[samples]``.
        noise: Power of the difference, likewise; infinite where only the other model's is not
            finite, NaN where it has another shape.
        agrees: Whether both have the same best class, bool ``[samples]``; empty where the output
            does not look like one of classes.
    """

    signal: Doubles
    noise: Doubles
    agrees: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)

    def joined(self, more: Powers) -> Powers:
        """Return the errors of these samples and of more."""
        return Powers(
            np.concatenate([self.signal, more.signal]),
            np.concatenate([self.noise, more.noise]),
            np.concatenate([self.agrees, more.agrees]),
        )


class Errors(msgspec.Struct, frozen=True):
    """The errors of the outputs of a quantized model.

    Attributes:
        outputs: The powers of those that hold floats, by name.
        choices: How much is equal of those that hold choices, such as classes, by name.
    """

    outputs: Mapping[str, Powers]
    choices: Mapping[str, Equality] = msgspec.field(default_factory=dict)

    @property
    def decibels(self) -> Mapping[str, float]:
        """Signal to quantization noise of each output over all samples, dB, from -100 to 100.

        Outputs that are 0 in float are left out, and those of another shape. One that is NaN or
        infinite where that of the float model is not has -100 dB.
        """
        found = {}
        for name, (signal, noise, _) in self.outputs.items():
            power, lost = float(signal.sum()), float(noise.sum())
            if power > 0 and not math.isnan(lost):
                ratio = power / lost if lost > 0 else math.inf
                decibels = 10 * math.log10(ratio) if ratio > 0 else -math.inf
                found[name] = min(max(decibels, -MOST_DB), MOST_DB)
        return found

    @property
    def mean(self) -> float:
        """The mean of the outputs' decibels."""
        decibels = self.decibels
        return sum(decibels.values()) / max(len(decibels), 1)

    def is_better(self, other: Errors) -> bool:
        """Tell whether the outputs are nearer to the float model's than another model's are.

        By their decibels; of a model that gives choices alone, by how many are equal.
        """
        if self.decibels or not self.choices:
            return self.mean > other.mean
        own, theirs = (
            sum(float(each.shares.mean()) for each in errors.choices.values())
            for errors in (self, other)
        )
        return own > theirs

    def joined(self, more: Errors) -> Errors:
        """Return the errors on these samples and on more."""
        found = {}
        for name, each in self.outputs.items():
            found[name] = each.joined(more.outputs[name])
        choices = {name: each.joined(more.choices[name]) for name, each in self.choices.items()}
        return Errors(found, choices)

    def is_unsure(self, other: Errors) -> bool:
        """Tell whether more samples may show another answer to `loses`.

        They may where, for some output, what the samples say is less than two standard errors.
        """
        for name, (_, noise, _) in self.outputs.items():
            theirs = other.outputs[name].noise
            # More samples cannot make a number of what is infinite.
            if not np.isfinite(noise.sum() + theirs.sum()):
                continue
            # By sample: both models err on the same hard samples, and the difference varies less
            # than either.
            beyond = noise - _LIMIT * theirs
            error = _SURE * float(np.std(beyond)) * math.sqrt(len(beyond))
            if abs(float(beyond.sum())) < error:
                return True
        return False

    def loses(self, other: Errors) -> bool:
        """Tell whether an output loses against another model, by more than samples' chance.

        Chance is less than a standard error of the sum of the samples' differences: what a single
        sample loses, and others do not regain, is a loss.
        """
        for name, (_, noise, _) in self.outputs.items():
            theirs = other.outputs[name].noise
            lost, before = float(noise.sum()), float(theirs.sum())
            # An output of another shape than before is a loss, whatever is in it.
            if math.isnan(lost) and not math.isnan(before):
                return True
            if not lost > before * _LIMIT:
                continue
            if not math.isfinite(lost):
                return True
            if exceeds_by_more_than_chance(noise, theirs):
                return True
        return any(
            exceeds_by_more_than_chance(1 - each.shares, 1 - other.choices[name].shares)
            for name, each in self.choices.items()
        )


def exceeds_by_more_than_chance(
    losses: npt.NDArray[np.number[Any]], before: npt.NDArray[np.number[Any]]
) -> bool:
    """Tell whether losses by sample exceed others in sum, by more than their differences vary."""
    more = np.asarray(losses, np.float64) - before
    return float(more.sum()) > _CHANCE * float(np.std(more)) * math.sqrt(len(more))


def rows_of(array: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Return an output as ``[count, numbers]``, without padding; one without axes is one row."""
    return array.reshape(len(array), -1)[:count] if array.ndim else array.reshape(1, 1)


class FloatRuns:
    """Some samples and what the float model computes for them, when that is needed.

    Each batch is run by one thread, so that floats do not depend on the number of threads. The
    session is built, and the float model run, beside whatever the caller does in the meantime.

    Args:
        graph: The float model.
        batches: Inputs by name, each batch with its number of real samples.
        threads: Batches that run side by side; 0 takes all cores.
        model: Runs the float model; built where there is none.

    Attributes:
        graph: The float model.
    """

    def __init__(
        self,
        graph: Graph,
        batches: Sequence[tuple[Batch, int]],
        *,
        threads: int = 0,
        model: Run | None = None,
    ) -> None:
        self.graph = graph
        self._batches = tuple(batches)
        # Threads suffice: ONNX Runtime holds no lock of Python's while it runs.
        self._pool = ThreadPoolExecutor(threads or os.cpu_count())
        self._model: Future[Run] = self._pool.submit(
            lambda: model or FloatModel(graph, threads=1).run
        )
        names = {str(value.name) for value in graph.outputs} - set(random_values(graph.model))
        # What a decoder keeps for its next run is judged by what it makes of it.
        results = names - set(growing_inputs(graph).values())
        self._compared = frozenset(results or names)
        self._choices = outputs_of_choices(graph.outputs) & names
        self._vectors = outputs_of_vectors(graph.outputs)
        self._outputs: list[Future[Arrays]] = []  # of the first batches: shared by all parts

    def __len__(self) -> int:
        """Count the samples."""
        return sum(count for _, count in self._batches)

    @property
    def batches(self) -> Sequence[tuple[Batch, int]]:
        """Inputs by name, each batch with its number of real samples."""
        return self._batches

    def first(self, samples: int) -> FloatRuns:
        """Return the first batches, with this many samples at least if there are so many.

        Fewer where the outputs of so many would take more than `OUTPUT_BYTES`: a language model's
        have a number for each word of its vocabulary at each position. The float model begins to
        run them.
        """
        most = OUTPUT_BYTES // max(self._output_bytes(), 1)
        if samples > most:
            # Whole batches, the first one in any case.
            done = accumulate(count for _, count in self._batches)
            samples = max((count for count in done if count <= most), default=1)
        return self._part(samples)

    def _output_bytes(self) -> int:
        """Count the bytes of the outputs for one sample."""
        shapes = [value.shape for value in self.graph.outputs]
        lengths = [[None] if shape is None else list(shape)[1:] for shape in shapes]
        known = [[dim for dim in dims if isinstance(dim, int)] for dims in lengths]
        if list(map(len, known)) == list(map(len, lengths)):
            return _BYTES * sum(map(math.prod, known))
        if not self._batches:
            return 0
        # Lengths that depend on the sample are known once one has run.
        one = self._part(1)
        return sum(each.nbytes for each in one.outputs()[0].values()) // max(len(one), 1)

    def _part(self, samples: int) -> FloatRuns:
        """Return the first batches, which the float model begins to run."""
        before = accumulate((count for _, count in self._batches), initial=0)
        # Shares the session, the threads and what was computed: the first batches of all are the
        # same.
        found = copy.copy(self)
        found._batches = tuple(
            batch for batch, done in zip(self._batches, before, strict=False) if done < samples
        )
        found._begin()
        return found

    def outputs(self) -> list[Arrays]:
        """Return what the float model computes for each batch, padding included."""
        self._begin()
        return [each.result() for each in self._outputs[: len(self._batches)]]

    def _begin(self) -> None:
        missing = self._batches[len(self._outputs) :]
        self._outputs += [self._pool.submit(self.run, feeds) for feeds, _ in missing]

    def without_numbers(self) -> dict[str, int]:
        """Count the samples of which the float model's outputs have a NaN, or no finite number."""
        self._begin()
        found: dict[str, int] = {}
        for (_, count), outputs in zip(self._batches, self._outputs, strict=False):
            for name, array in outputs.result().items():
                if array.dtype.kind != "f" or name not in self._compared or not array.size:
                    continue
                rows = rows_of(array, count)
                lost = np.isnan(rows).any(axis=1) | ~np.isfinite(rows).any(axis=1)
                found[name] = found.get(name, 0) + int(lost.sum())
        return {name: count for name, count in found.items() if count}

    def errors(self, *runs: Run, beyond: FloatRuns | None = None) -> list[Errors]:
        """Compare the outputs of other models with the float model's.

        Args:
            runs: Each runs one of them on a batch; called from several threads.
            beyond: First batches to leave out.
        """
        self._begin()
        start = 0 if beyond is None else len(beyond._batches)
        parts = list(zip(self._batches, self._outputs, strict=False))[start:]
        # The float outputs were submitted before: a single thread has them when it comes here.
        found = [
            [self._pool.submit(self._batch_errors, run, *part) for part in parts] for run in runs
        ]
        return [
            reduce(Errors.joined, (each.result() for each in of_run)) if of_run else Errors({})
            for of_run in found
        ]

    def simulated(self, plan: QuantizedGraph, tensors: Sequence[str] = ()) -> Errors:
        """Compare the outputs of a plan's simulation, and further tensors, with the float model's.

        Raises:
            PlanError: An end has no scale yet.
        """
        simulator = Simulator(plan, threads=1, tensors=tensors)
        (errors,) = self.errors(lambda feeds: simulator.run(feeds)[0])
        return errors

    def _batch_errors(self, run: Run, batch: tuple[Batch, int], expected: Future[Arrays]) -> Errors:
        """Compare the outputs of one batch; of them only their powers are kept."""
        feeds, count = batch
        size = batch_length(feeds)
        wanted, found = (
            real_samples(each, size, count) for each in (expected.result(), run(feeds))
        )
        return Errors(
            {
                name: _powers(reference, found[name], count, scores=name not in self._vectors)
                for name, reference in wanted.items()
                if reference.dtype.kind == "f" and name in found and name in self._compared
            },
            {
                name: Equality.of(wanted[name], found[name], count)
                for name in self._choices & set(wanted) & set(found)
            },
        )

    def run(self, feeds: Batch) -> Arrays:
        """Run the float model on one thread, and return its outputs by name."""
        return self._model.result()(feeds)


def _powers(
    reference: npt.NDArray[Any], actual: npt.NDArray[Any], count: int, *, scores: bool
) -> Powers:
    """Return the errors of each sample, or of all where they have no axis.

    Where the reference is not finite, as masks are not, nothing is compared.
    """
    rows = count if reference.ndim and len(reference) == count else 1
    if reference.shape != actual.shape:
        return Powers(np.zeros(rows), np.full(rows, np.nan), np.zeros(0, np.bool_))
    powers, lost = np.zeros(rows), np.zeros(rows)
    flat, other = reference.reshape(rows, -1), actual.reshape(rows, -1)
    step = max(_COMPARED // max(rows, 1), 1)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, flat.shape[1], step):
            wanted, found = flat[:, start : start + step], other[:, start : start + step]
            finite = np.isfinite(wanted)
            signal = np.where(finite, wanted, 0).astype(np.float64)
            noise = np.where(finite, found, 0).astype(np.float64) - signal
            powers += np.square(signal).sum(axis=1)
            lost += np.square(noise).sum(axis=1)
    # NaN where the float model has a number is the worst error there is, and has to compare as
    # such.
    noise_power = np.nan_to_num(lost, nan=np.inf, posinf=np.inf)
    agrees = _agree(reference, actual, count) if scores else np.zeros(0, np.bool_)
    return Powers(powers, noise_power, agrees)


def _agree(
    reference: npt.NDArray[Any], actual: npt.NDArray[Any], count: int
) -> npt.NDArray[np.bool_]:
    """Tell of which samples both have the same best class; empty where there are no classes."""
    if reference.ndim != 2 or len(reference) != count or not are_classes(reference):
        return np.zeros(0, np.bool_)
    return np.asarray(reference.argmax(axis=1) == actual.argmax(axis=1))
