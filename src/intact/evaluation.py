"""What quantisation cost and what it bought: accuracy, error, size and latency of both models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intact.errors import DataError
from intact.formats.onnx_qdq.runtime import QdqRuntime
from intact.numerics.metrics import (
    AccuracyDifference,
    ErrorSums,
    accuracy_difference,
    agreement,
    cosine,
    in_top_k,
    sqnr_db,
)
from intact.result import Result
from intact.run.float import FloatModel
from intact.run.latency import latencies
from intact.samples.batching import Batch
from intact.samples.metric import Metric, OutputRecord
from intact.samples.stream import Samples

Scores = npt.NDArray[np.float32]
_Arrays = Mapping[str, npt.NDArray[Any]]

_FIVE = 5


@dataclass
class Accuracy:
    """Accuracy on labelled samples.

    Attributes:
        top1: In percent, (float, quantised).
        top5: The same for the five best classes; None with five classes or fewer.
        difference: Quantised minus float top-1 in points, with its paired 95 % interval.
    """

    top1: tuple[float, float]
    top5: tuple[float, float] | None
    difference: AccuracyDifference


class OutputComparison(NamedTuple):
    """Error of one output; NaN where both models give arrays of different shapes."""

    sqnr_db: float
    """Signal to quantisation noise, dB."""
    cosine: float
    """Cosine of both outputs."""


_INCOMPARABLE = OutputComparison(math.nan, math.nan)


@dataclass
class Evaluation:
    """Float against quantised.

    Attributes:
        samples: Samples run.
        output: Name of the output that is scored, the model's first.
        accuracy: None without labels, or with a metric for which they are no class numbers.
        agreement: Share of samples, in percent, for which both give the same best class; None
            where the output has no classes.
        sqnr_db: Signal to quantisation noise of the output, dB; NaN where both models give arrays
            of different shapes (detections, say).
        cosine: Cosine of both outputs; NaN likewise.
        bytes: File sizes, (float, quantised).
        latency_ms: Median time of one batch, (float, quantised).
        latency_batch: Samples in that batch.
        speedup: Median over blocks run in turn of float time over quantised time.
        outputs: Errors of every output by name, where there are several.
        metrics: Figures of the user's metric by name, (float, quantised).
        skipped: Files of a folder that were left out, with the reason.
    """

    samples: int
    output: str
    accuracy: Accuracy | None
    agreement: float | None
    sqnr_db: float
    cosine: float
    bytes: tuple[int, int]
    latency_ms: tuple[float, float]
    latency_batch: int
    speedup: float
    outputs: dict[str, OutputComparison] = field(default_factory=dict)
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()


def evaluate_result(
    result: Result,
    samples: Samples,
    *,
    batch: int = 100,
    threads: int = 0,
    metric: Metric | None = None,
) -> Evaluation:
    """Run both models over the samples.

    Args:
        result: What quantisation gave.
        samples: Evaluation data, with ``labels`` if there are any.
        batch: Samples in one run, also for the latency.
        threads: Threads inside one operator; 0 lets the runtime choose.
        metric: Scores all outputs of each model after the pass. Only then are they all kept in
            memory, with what comes along with the samples; else that is the first output alone.

    Raises:
        DataError: The data does not fit the model, there are not as many labels as samples, or
            the metric fails.
    """
    samples = replace(samples, keep_references=metric is not None)
    size = samples.batch_size(batch)
    float_model = FloatModel(result.plan.graph, threads=threads)
    quantized = QdqRuntime(result.exported.model, threads=threads)
    seen = _Pass.of(float_model.outputs, metric)
    first: Batch = {}
    for feeds, count in samples.batches(size):
        first = first or feeds
        seen.add(float_model.run(feeds), quantized.run(feeds)[0], size, count)
    want, have = seen.scores()
    comparable = all(pair[0].shape == pair[1].shape for pair in seen.pairs)
    scored = want.ndim == 2 and want.shape[1] > 1 and comparable
    labels = _class_labels(samples, seen.output, want, is_optional=metric is not None)
    metrics = {} if metric is None else _figures(metric, seen.records, samples)
    error = _INCOMPARABLE
    if comparable and want.size:
        error = OutputComparison(sqnr_db(want, have), cosine(want, have))
    latency, speedup = latencies(lambda: float_model.run(first), lambda: quantized.run(first))
    return Evaluation(
        samples=seen.samples,
        output=seen.output,
        accuracy=None if labels is None else _accuracy(want, have, labels),
        agreement=100 * agreement(want, have) if scored else None,
        sqnr_db=error.sqnr_db,
        cosine=error.cosine,
        bytes=result.sizes(),
        latency_ms=latency,
        latency_batch=size,
        speedup=speedup,
        outputs={n: OutputComparison(sums.sqnr_db, sums.cosine) for n, sums in seen.errors.items()},
        metrics=metrics,
        skipped=samples.skipped,
    )


@dataclass
class _Pass:
    """What a pass over the samples leaves of the outputs of both models, (float, quantised).

    Attributes:
        output: Name of the output that is scored.
        errors: By output, where there are several.
        records: Two, if there is a metric.
        pairs: The scored output, batch by batch.
        samples: How many there were.
    """

    output: str
    errors: dict[str, ErrorSums]
    records: tuple[OutputRecord, ...]
    pairs: list[tuple[Scores, Scores]] = field(default_factory=list)
    samples: int = 0

    @staticmethod
    def of(outputs: Sequence[str], metric: Metric | None) -> _Pass:
        errors = {name: ErrorSums() for name in outputs} if len(outputs) > 1 else {}
        records = () if metric is None else (OutputRecord(), OutputRecord())
        return _Pass(outputs[0], errors, records)

    def add(self, want: _Arrays, have: _Arrays, size: int, count: int) -> None:
        """Add what both models gave for a batch of ``size`` samples, ``count`` of them real."""
        self.samples += count
        output = self.output
        self.pairs.append((_real(want[output], size, count), _real(have[output], size, count)))
        for name, sums in self.errors.items():
            sums.add(*(_real(arrays[name], size, count) for arrays in (want, have)))
        for record, arrays in zip(self.records, (want, have), strict=False):
            record.add(arrays, size, count)

    def scores(self) -> tuple[Scores, Scores]:
        """Return the scored output of all samples."""
        return _joined([want for want, _ in self.pairs]), _joined([have for _, have in self.pairs])


def _figures(
    metric: Metric, records: Sequence[OutputRecord], samples: Samples
) -> dict[str, tuple[float, float]]:
    references = samples.references()
    before, after = (metric(record.outputs(), references) for record in records)
    if before.keys() != after.keys():
        odd = min(before.keys() ^ after.keys())
        raise DataError(
            f"metric {metric.name}: gives {odd!r} for one of the two models only",
            remedy="return the same names for every model",
        )
    return {name: (figure, after[name]) for name, figure in before.items()}


def _real(output: Scores, size: int, count: int) -> Scores:
    """Return an output's real samples; one that has no sample axis as a single row."""
    has_samples = output.ndim > 0 and output.shape[0] == size
    return output[:count] if has_samples else output.reshape(1, -1)


def _joined(batches: list[Scores]) -> Scores:
    """Return all samples in one array; flat where their shapes differ."""
    if len({batch.shape[1:] for batch in batches}) > 1:
        return np.concatenate([batch.ravel() for batch in batches])
    return np.concatenate(batches)


def _class_labels(
    samples: Samples, output: str, scores: Scores, *, is_optional: bool
) -> npt.NDArray[np.int64] | None:
    """Return the labels, [N], if there are any and they are classes of the scored output.

    Args:
        samples: After the pass.
        output: Name of that output.
        scores: Of the float model.
        is_optional: Labels that are something else are for a metric; otherwise they are an error.
    """
    try:
        labels = samples.labels()
        if labels is not None:
            _check_classes(samples.source, output, scores, labels)
    except DataError:
        if not is_optional:
            raise
        return None
    return labels


def _check_classes(source: str, output: str, scores: Scores, labels: npt.NDArray[np.int64]) -> None:
    if scores.ndim != 2 or scores.shape[1] <= 1:
        raise DataError(
            f"{source}: there are labels, but output {output!r} has shape "
            f"{list(scores.shape)} and no classes",
            remedy="leave `labels` out to compare the outputs alone, or give a --metric",
        )
    if len(labels) != len(scores) or labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise DataError(
            f"{source}: {len(labels)} labels {labels.min()}..{labels.max()} for {len(scores)} "
            f"samples and {scores.shape[1]} classes",
            remedy="check that labels start at 0 and belong to this model",
        )


def _accuracy(want: Scores, have: Scores, labels: npt.NDArray[np.int64]) -> Accuracy:
    first = [in_top_k(scores, labels, 1) for scores in (want, have)]
    five = None
    if want.shape[1] > _FIVE:
        five = _percent(in_top_k(want, labels, _FIVE), in_top_k(have, labels, _FIVE))
    points = AccuracyDifference(*(100 * part for part in accuracy_difference(*first)))
    return Accuracy(_percent(*first), five, points)


def _percent(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> tuple[float, float]:
    return 100 * float(first.mean()), 100 * float(second.mean())
