"""What quantisation cost and what it bought: accuracy, error, size and latency of both models."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intact.errors import DataError
from intact.formats.onnx_qdq.runtime import QdqRuntime
from intact.numerics.metrics import (
    AccuracyDifference,
    accuracy_difference,
    agreement,
    cosine,
    in_top_k,
    sqnr_db,
)
from intact.result import Result
from intact.run.float import FloatModel
from intact.samples.stream import Batch, Samples

Scores = npt.NDArray[np.float32]

_LATENCY_BLOCKS, _WARM_UP, _TIMED = 5, 2, 5
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


@dataclass
class Evaluation:
    """Float against quantised.

    Attributes:
        samples: Samples run.
        output: Name of the output that is scored, the model's first.
        accuracy: None without labels.
        agreement: Share of samples, in percent, for which both give the same best class; None
            where the output has no classes.
        sqnr_db: Signal to quantisation noise of the output, dB.
        cosine: Cosine of both outputs.
        bytes: File sizes, (float, quantised).
        latency_ms: Median time of one batch, (float, quantised).
        latency_batch: Samples in that batch.
        speedup: Median over blocks run in turn of float time over quantised time.
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


def evaluate_result(
    result: Result, samples: Samples, *, batch: int = 100, threads: int = 0
) -> Evaluation:
    """Run both models over the samples.

    Args:
        result: What quantisation gave.
        samples: Evaluation data, with ``labels`` if there are any.
        batch: Samples in one run, also for the latency.
        threads: Threads inside one operator; 0 lets the runtime choose.

    Raises:
        DataError: The data does not fit the model, or there are not as many labels as samples.
    """
    size = samples.batch_size(batch)
    float_model = FloatModel(result.plan.graph, threads=threads)
    quantized = QdqRuntime(result.exported.model, threads=threads)
    output = float_model.outputs[0]
    both: list[tuple[Scores, Scores]] = []
    first: Batch = {}
    for feeds, count in samples.batches(size):
        first = first or feeds
        arrays = float_model.run(feeds)[output], quantized.run(feeds)[0][output]
        both.append((_real(arrays[0], size, count), _real(arrays[1], size, count)))
    want, have = (_joined([pair[side] for pair in both]) for side in (0, 1))
    latency, speedup = _latency(lambda: float_model.run(first), lambda: quantized.run(first))
    labels = samples.labels()
    scored = want.ndim == 2 and want.shape[1] > 1
    if labels is not None and not scored:
        raise DataError(
            f"{samples.source}: there are labels, but output {output!r} has shape "
            f"{list(want.shape)} and no classes",
            remedy="leave `labels` out to compare the outputs alone",
        )
    return Evaluation(
        samples=len(want) if scored else sum(len(pair[0]) for pair in both),
        output=output,
        accuracy=None if labels is None else _accuracy(samples.source, want, have, labels),
        agreement=100 * agreement(want, have) if scored else None,
        sqnr_db=sqnr_db(want, have),
        cosine=cosine(want, have),
        bytes=result.sizes(),
        latency_ms=latency,
        latency_batch=size,
        speedup=speedup,
    )


def _real(output: Scores, size: int, count: int) -> Scores:
    """Return an output's real samples; one that has no sample axis as a single row."""
    has_samples = output.ndim > 0 and output.shape[0] == size
    return output[:count] if has_samples else output.reshape(1, -1)


def _joined(batches: list[Scores]) -> Scores:
    """Return all samples in one array; flat where their shapes differ."""
    if len({batch.shape[1:] for batch in batches}) > 1:
        return np.concatenate([batch.ravel() for batch in batches])
    return np.concatenate(batches)


def _accuracy(source: str, want: Scores, have: Scores, labels: npt.NDArray[np.int64]) -> Accuracy:
    if len(labels) != len(want) or labels.min() < 0 or labels.max() >= want.shape[1]:
        raise DataError(
            f"{source}: {len(labels)} labels {labels.min()}..{labels.max()} for {len(want)} "
            f"samples and {want.shape[1]} classes",
            remedy="check that labels start at 0 and belong to this model",
        )
    first = [in_top_k(scores, labels, 1) for scores in (want, have)]
    five = None
    if want.shape[1] > _FIVE:
        five = _percent(in_top_k(want, labels, _FIVE), in_top_k(have, labels, _FIVE))
    points = AccuracyDifference(*(100 * part for part in accuracy_difference(*first)))
    return Accuracy(_percent(*first), five, points)


def _percent(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> tuple[float, float]:
    return 100 * float(first.mean()), 100 * float(second.mean())


def _latency(
    first: Callable[[], object], second: Callable[[], object]
) -> tuple[tuple[float, float], float]:
    """Return the median milliseconds of both and the median ratio of blocks run in turn.

    Blocks, because the threads of the session that ran last keep spinning for a while: run by
    run, each would be timed while the other's threads hold the cores.
    """
    blocks = [(_block(first), _block(second)) for _ in range(_LATENCY_BLOCKS)]
    medians = [1e3 * statistics.median(column) for column in zip(*blocks, strict=True)]
    return (medians[0], medians[1]), statistics.median(a / b for a, b in blocks)


def _block(function: Callable[[], object]) -> float:
    """Return the median seconds of a few runs, the first ones left out."""
    times = [_seconds(function) for _ in range(_WARM_UP + _TIMED)]
    return statistics.median(times[_WARM_UP:])


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
