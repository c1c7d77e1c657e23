"""Runs the models of `evaluate` on a cluster, and merges what its workers found.

The samples are cut into shards, each some whole batches, the same batches as on one machine. A
worker runs the float and the quantized model on a shard and replies with exact sums of errors, and
with the outputs that accuracy is computed from here: the class scores, or all outputs for a user's
metric. Replies are merged in the order of the shards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy.typing as npt

from intact.analyze.evaluation.run import Models, Pass, run_both
from intact.analyze.evaluation.text import TextMetric, TextScores
from intact.calibrate.shards import SampleMap
from intact.data.batching import Batch
from intact.data.metric import PairedOutputs
from intact.data.shards import Array, encode
from intact.data.stream import Samples
from intact.errors import DataError
from intact.graph import Graph
from intact.numerics.error_sums import ErrorSums, SavedSums
from intact.numerics.metrics import Equality
from intact.results.result import Result

_RESULT, _FLOAT, _JOB = "result", "float.onnx", "job.msgpack"
"""What a saved job consists of."""


class _Outputs(msgspec.Struct, frozen=True, array_like=True):
    """The outputs of a batch, of which so many samples are real."""

    arrays: dict[str, Array]
    count: int


class _Reply(msgspec.Struct, frozen=True):
    """A `Pass` over one shard as a message; pairs are of the float and the quantized model."""

    runtime: str
    samples: int
    shape: tuple[int, ...]
    errors: dict[str, SavedSums]
    scores: tuple[Array, Array] | None
    outputs: tuple[tuple[_Outputs, ...], ...]
    text: dict[str, Array] | None
    sees_what_follows: bool
    choices: dict[str, tuple[Array, int]]


_decode_job = msgspec.msgpack.Decoder(tuple[int, bool, str]).decode
_decode_reply = msgspec.msgpack.Decoder(_Reply).decode


class EvaluationJob(NamedTuple):
    """Runs both models; see `intact.calibrate.shards.SampleJob`.

    Attributes:
        result: What quantization gave.
        reference: The float model to compare with; None for the result's own.
        size: Samples in a batch.
        keeps_outputs: All outputs are sent back, for a metric.
        text: Scores a language model; None for others.
    """

    result: Result
    reference: Graph | None
    size: int
    keeps_outputs: bool
    text: TextScores | None

    @property
    def graph(self) -> Graph:
        """The float model of the result."""
        return self.result.plan.graph

    def save(self, folder: Path) -> None:
        """Write the job to a folder, from which workers `load` it."""
        # The metric is enough: the rest follows from the model.
        text = "" if self.text is None else self.text.metric.value
        replace(self.result).save(folder / _RESULT)  # a copy: it stays where it is
        if self.reference is not None:
            self.reference.save(folder / _FLOAT)
        (folder / _JOB).write_bytes(encode((self.size, self.keeps_outputs, text)))

    @classmethod
    def load(cls, folder: Path) -> EvaluationJob:
        """Read a job that `save` wrote."""
        has_reference = (folder / _FLOAT).is_file()
        result = Result.load(folder / _RESULT)
        reference = Graph.load(folder / _FLOAT) if has_reference else None
        size, keeps_outputs, metric = _decode_job((folder / _JOB).read_bytes())
        graph = result.plan.graph if reference is None else reference
        text = TextScores.of(graph, TextMetric.named(metric)) if metric else None
        return cls(result, reference, size, keeps_outputs, text)

    def open(self, threads: int, *, takes_feeds: bool) -> Callable[[Samples], _Reply]:
        """Load both models; return the function that runs them on a shard."""
        del takes_feeds  # the samples know it themselves
        reference = self.graph if self.reference is None else self.reference
        models = Models(reference, self.result, threads)

        def run_shard(samples: Samples) -> _Reply:
            # Each part counts for itself; the parts are joined where they come together.
            text = None if self.text is None else self.text.anew()
            kept = PairedOutputs() if self.keeps_outputs else None
            found, _ = run_both(models, samples, self.size, kept=kept, text=text)
            return _reply_of(models.runtime, found)

        return run_shard


def run_both_on(
    cluster: SampleMap, job: EvaluationJob, samples: Samples, *, threads: int = 0
) -> tuple[Pass, Batch, str]:
    """Run both models over samples on a cluster, as `run_both` does here.

    Args:
        cluster: Whose workers do it.
        job: What they do.
        samples: The samples; their labels are known afterwards.
        threads: Threads of each worker; 0 divides the processors of the cluster.

    Returns:
        What was seen, the first batch, and what ran the quantized model.

    Raises:
        ClusterError: The cluster cannot be reached, has other versions, or loses its workers.
        UsageError: The samples have an order, or can be read once only.
        IntactError: As in `run_both`.
    """
    first: Batch = {}
    replies = cluster.replies_in_order(samples, job.size, job, threads=threads, first=first)
    seen = [_decode_reply(reply) for reply in replies]
    # Workers may have different processors, and so different runtimes; all are named.
    runtimes = sorted({each.runtime for each in seen})
    return (
        reduce(_joined, (_pass_of(each, job.size, job.text) for each in seen)),
        first,
        " and ".join(runtimes),
    )


def _joined(one: Pass, more: Pass) -> Pass:
    """Add the sums of the second to the first, and return that: the form that `reduce` takes."""
    one.join(more)
    return one


def _pass_of(seen: _Reply, size: int, text: TextScores | None) -> Pass:
    """Read a reply, the inverse of `_reply_of`."""
    kept = PairedOutputs() if seen.outputs else None
    found = Pass.of(tuple(seen.errors), kept=kept)
    if seen.text is not None and text is not None:
        found.text, found.sees_what_follows = text.anew(), seen.sees_what_follows
        found.text.take({name: each.array() for name, each in seen.text.items()})
    found.samples, found.shape = seen.samples, seen.shape
    found.errors = {name: ErrorSums.of(sums) for name, sums in seen.errors.items()}
    found.choices = {
        name: Equality(shares.array(), numbers) for name, (shares, numbers) in seen.choices.items()
    }
    if seen.scores is not None:
        found.pairs = [(seen.scores[0].array(), seen.scores[1].array())]
    for record, batches in zip(kept.records if kept else (), seen.outputs, strict=True):
        for each in batches:
            arrays = {name: array.array() for name, array in each.arrays.items()}
            record.add(arrays, size, each.count)
    return found


def _reply_of(runtime: str, found: Pass) -> _Reply:
    """Write a pass as a message, with sums and arrays as bytes."""
    scores = found.classes()
    return _Reply(
        runtime,
        found.samples,
        found.shape,
        {name: sums.saved() for name, sums in found.errors.items()},
        None if scores is None else (Array.of(scores[0]), Array.of(scores[1])),
        tuple(
            tuple(_Outputs(_sendable(arrays), count) for arrays, count in record.batches())
            for record in (found.outputs.records if found.outputs else ())
        ),
        None if found.text is None else _sendable(found.text.rows()),
        found.sees_what_follows,
        {name: (Array.of(e.shares), e.numbers) for name, e in found.choices.items() if e},
    )


def _sendable(outputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, Array]:
    """Return arrays as messages hold them; strings and objects are refused."""
    for name, array in outputs.items():
        if array.dtype.kind not in "biuf":
            raise DataError(
                f"output {name!r} holds {array.dtype}, and --cluster sends numbers to a metric",
                remedy="leave out --cluster",
            )
    return {name: Array.of(array) for name, array in outputs.items()}
