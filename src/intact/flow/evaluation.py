"""What quantization cost and what it bought: accuracy, error, size and latency of both models."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.data.batching import Batch
from intact.data.metric import Metric, OutputRecord
from intact.data.stream import Samples
from intact.engines.exact_sums import EXACT, SATURATES
from intact.engines.integer import IntegerEngine
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.errors import DataError, UsageError
from intact.flow.doubts import PREPROCESSED, doubts_of
from intact.flow.result import Result
from intact.flow.text import Figures, decibels, kilobytes, times
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.registry import ONNX_QDQ
from intact.numerics.metrics import (
    AccuracyDifference,
    ErrorSums,
    accuracy_difference,
    agreement,
    in_top_k,
)
from intact.plan.points import has_logarithmic_levels
from intact.program.lower import lower
from intact.targets.advice import quantize_for_saturating_pairs

_BLOCKS, _WARM_UP, _TIMED = 5, 2, 5
LITTLE_IN_COMMON = 3.0
"""Signal to quantization noise, dB, under which half of an output's power is noise."""
_NO_FLOAT = (
    "no float figures: without its codes the model that was read computes something else (an "
    "activation that its ranges stand for?), or the data is not preprocessed as it wants"
)


def latencies(
    first: Callable[[], object], second: Callable[[], object]
) -> tuple[tuple[float, float], float]:
    """Return the median milliseconds of both and the median ratio of blocks run in turn.

    Blocks, because the threads of the session that ran last keep spinning for a while: run by
    run, each would be timed while the other's threads hold the cores.
    """
    blocks = [(_block(first), _block(second)) for _ in range(_BLOCKS)]
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


Scores = npt.NDArray[np.float32]

_Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass
class Accuracy:
    """Accuracy on labelled samples.

    Attributes:
        top1: In percent, (float, quantized).
        top_k: The same for the ``k`` best classes; None with so many classes or fewer.
        k: How many count as the best.
        difference: Quantized minus float top-1 in points, with its paired 95 % interval.
    """

    top1: tuple[float, float]
    top_k: tuple[float, float] | None
    k: int
    difference: AccuracyDifference


class OutputComparison(NamedTuple):
    """Error of one output; NaN where both models give arrays of different shapes."""

    sqnr_db: float
    """Signal to quantization noise, dB."""
    cosine: float
    """Cosine of both outputs."""


@dataclass(repr=False)
class Evaluation:
    """Float against quantized.

    Attributes:
        samples: Samples run.
        output: Name of the output that is scored, the model's first.
        accuracy: None without labels, or with a metric for which they are no class numbers.
        agreement: Share of samples, in percent, for which both give the same best class; None
            where the output has no classes.
        sqnr_db: Signal to quantization noise of the output, dB; NaN where both models give arrays
            of different shapes (detections, say).
        cosine: Cosine of both outputs; NaN likewise.
        bytes: File sizes, (float, quantized).
        latency_ms: Median time of one batch, (float, quantized); None where the quantized model
            was not run by the runtime that it is deployed to.
        latency_batch: Samples in that batch.
        speedup: Median over blocks run in turn of float time over quantized time; None likewise.
        runtime: What ran the quantized model, with the option that it needs to compute exactly on
            a processor that saturates pairs of 8-bit products.
        outputs: Errors of every output by name, where there are several.
        metrics: Figures of the user's metric by name, (float, quantized).
        skipped: Files of a folder that were left out, with the reason.
        why_no_labels: Why a folder of images gives no labels.
        warnings: What makes the figures doubtful, a line each.
        remedy: How to quantize so that the runtime needs no slower exact arithmetic; empty where it
            needs none.
        why_no_float: Why the quantized model is not compared with a float one: it was read, and
            what remains of it without its codes computes something else. Figures of the float model
            and differences are then NaN, and the agreement is None.
        codes: Inputs whose data was taken as codes: both models got the numbers of these.
    """

    samples: int
    output: str
    accuracy: Accuracy | None
    agreement: float | None
    sqnr_db: float
    cosine: float
    bytes: tuple[int, int]
    latency_ms: tuple[float, float] | None
    latency_batch: int
    speedup: float | None
    runtime: str
    outputs: dict[str, OutputComparison] = field(default_factory=dict)
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    why_no_labels: str = ""
    warnings: tuple[str, ...] = ()
    remedy: str = ""
    why_no_float: str = ""
    codes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Name the figures that matter most."""
        figures = []
        if self.accuracy is not None:
            before, after = self.accuracy.top1
            figures.append(f"top-1 {after:.2f} %" if self.why_no_float else _change(before, after))
        if not self.why_no_float:
            figures.append(decibels(self.sqnr_db))
        return f"Evaluation({', '.join([f'{self.samples} samples', *figures])})"

    def __str__(self) -> str:
        """Write the table that the command prints."""
        return str(self.figures())

    def figures(self) -> Figures:
        """Write all figures as texts."""
        title = f"{self.samples} samples, quantized model run by {self.runtime}"
        if self.latency_ms is not None:
            title += f"; latency of {self.latency_batch} at once"
        lines = [self.why_no_float] if self.why_no_float else list(self._errors())
        if EXACT in self.runtime:
            remedy = f": {self.remedy}" if self.remedy else ""
            lines.append(f"{SATURATES}; {EXACT} avoids that, and is slower{remedy}")
        if self.codes:
            lines.append(f"{', '.join(self.codes)}: taken as codes, both models got their numbers")
        rows = list(self._rows())
        if self.why_no_float:
            return Figures(title, ("", "quantized"), [(row[0], row[2]) for row in rows], lines)
        return Figures(title, ("", "float", "quantized", "change"), rows, lines)

    def _errors(self) -> Iterator[str]:
        """Write the error of each output, the scored one first."""
        agree = "" if self.agreement is None else f", agreement {self.agreement:.2f} %"
        yield f"output {self.output}: {_error(OutputComparison(self.sqnr_db, self.cosine))}{agree}"
        for name, error in self.outputs.items():
            if name != self.output:
                yield f"output {name}: {_error(error)}"

    def _rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Write what there is of each kind of figure, (name, float, quantized, change)."""
        if self.accuracy is not None:
            points = self.accuracy.difference
            interval = f"{points.difference:+.2f} [{points.low:+.2f}, {points.high:+.2f}]"
            before, after = self.accuracy.top1
            yield "top-1 %", f"{before:.2f}", f"{after:.2f}", interval
            if self.accuracy.top_k is not None:
                before, after = self.accuracy.top_k
                name = f"top-{self.accuracy.k} %"
                yield name, f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f}"
        sizes = (kilobytes(self.bytes[0]), kilobytes(self.bytes[1]))
        yield "size", *sizes, times(self.bytes[0] / self.bytes[1], "smaller", "larger")
        if self.latency_ms is not None:
            before, after = self.latency_ms
            faster = "" if self.speedup is None else times(self.speedup, "faster", "slower")
            yield "latency", f"{before:.2f} ms", f"{after:.2f} ms", faster
        for name, (before, after) in self.metrics.items():
            yield name, f"{before:.4g}", f"{after:.4g}", f"{after - before:+.4g}"


def _change(before: float, after: float) -> str:
    return f"top-1 {before:.2f} % -> {after:.2f} %"


def _error(error: OutputComparison) -> str:
    return f"{decibels(error.sqnr_db)}, cosine {error.cosine:.5f}"


def evaluate_result(
    result: Result,
    samples: Samples,
    *,
    batch: int = 100,
    threads: int = 0,
    metric: Metric | None = None,
    top_k: int = 5,
) -> Evaluation:
    """Run both models over the samples.

    Args:
        result: What quantization gave.
        samples: Evaluation data, with ``labels`` if there are any.
        batch: Samples in one run, also for the latency.
        threads: Threads inside one operator; 0 lets the runtime choose.
        metric: Scores all outputs of each model after the pass. Only then are they all kept in
            memory, with what comes along with the samples; else that is the first output alone,
            and only if it has classes.
        top_k: Also report how often the right class is among so many best ones.

    Raises:
        DataError: The data does not fit the model, there are not as many labels as samples, or
            the metric fails.
        UsageError: ``batch`` or ``threads`` is out of range.
    """
    for what, number in (("batch", batch), ("top_k", top_k)):
        if number < 1:
            raise UsageError(f"{what} is {number}", remedy="give 1 or more")
    samples = replace(samples, keep_references=metric is not None)
    size = samples.batch_size(batch)
    float_model = FloatModel(result.plan.graph, threads=threads)
    is_deployed = next(iter(result.exports)) == ONNX_QDQ
    runtime, quantized = _runs(result, threads)
    seen = _Pass.of(float_model.outputs, metric)
    first: Batch = {}
    for feeds, count in samples.batches(size):
        first = first or feeds
        seen.add(float_model.run(feeds), quantized(feeds), size, count)
    scores = seen.scores()
    labels = _class_labels(samples, seen, scores, is_optional=metric is not None)
    metrics = {} if metric is None else _figures(metric, seen.records, samples)
    outputs = {n: OutputComparison(sums.sqnr_db, sums.cosine) for n, sums in seen.errors.items()}
    error = outputs[seen.output]
    latency, speedup = None, None
    if is_deployed:
        latency, speedup = latencies(lambda: float_model.run(first), lambda: quantized(first))
    found = Evaluation(
        samples=seen.samples,
        output=seen.output,
        accuracy=None if labels is None or scores is None else _accuracy(*scores, labels, top_k),
        agreement=None if scores is None else 100 * agreement(*scores),
        sqnr_db=error.sqnr_db,
        cosine=error.cosine,
        bytes=result.sizes(),
        latency_ms=latency,
        latency_batch=size,
        speedup=speedup,
        runtime=runtime,
        outputs=outputs if len(outputs) > 1 else {},
        metrics=metrics,
        skipped=samples.skipped,
        codes=samples.codes,
        why_no_labels=samples.why_no_labels,
        warnings=_warnings(scores, labels, error),
        remedy=quantize_for_saturating_pairs(result.plan.target) if EXACT in runtime else "",
    )
    is_other = result.plan.keeps_runtime and error.sqnr_db < LITTLE_IN_COMMON
    return _without_float(found) if is_other else found


def _warnings(
    scores: tuple[Scores, Scores] | None,
    labels: npt.NDArray[np.int64] | None,
    error: OutputComparison,
) -> tuple[str, ...]:
    doubts = () if scores is None else doubts_of(scores[0], labels)
    if doubts or not error.sqnr_db < LITTLE_IN_COMMON:
        return doubts
    return (f"the outputs have little in common: {PREPROCESSED}",)


def _without_float(found: Evaluation) -> Evaluation:
    """Take out what compares a model that was read with what remains of it without its codes."""
    nan = math.nan
    accuracy, latency = found.accuracy, found.latency_ms
    if accuracy is not None:
        best = None if accuracy.top_k is None else (nan, accuracy.top_k[1])
        top1, unknown = (nan, accuracy.top1[1]), AccuracyDifference(nan, nan, nan)
        accuracy = replace(accuracy, top1=top1, top_k=best, difference=unknown)
    return replace(
        found,
        accuracy=accuracy,
        agreement=None,
        sqnr_db=nan,
        cosine=nan,
        latency_ms=None if latency is None else (nan, latency[1]),
        speedup=None,
        outputs={},
        metrics={name: (nan, after) for name, (_, after) in found.metrics.items()},
        warnings=(),
        why_no_float=_NO_FLOAT,
    )


_Run: TypeAlias = Callable[[Batch], _Arrays]


def _runs(result: Result, threads: int) -> tuple[str, _Run]:
    """Choose what runs the quantized model: the file itself, else what computes the same."""
    if next(iter(result.exports)) == ONNX_QDQ:
        return _deployed(result, threads)
    if has_logarithmic_levels(result.plan):
        return _simulated(result, threads)
    return _integers(result, threads)


def _simulated(result: Result, threads: int) -> tuple[str, _Run]:
    """Quantized values in float32, for levels that no integer arithmetic computes with."""
    simulator = Simulator(result.plan, threads=threads)
    return f"simulation for {result.plan.target.name}", lambda feeds: simulator.run(feeds)[0]


def _deployed(result: Result, threads: int) -> tuple[str, _Run]:
    """The written ONNX model in ONNX Runtime, computing as the target describes."""
    exact = not result.plan.target.saturates_pairs
    runtime = QdqRuntime(result.exported.model, threads=threads, exact=exact)
    return runtime.name, lambda feeds: runtime.run(feeds)[0]


def _integers(result: Result, threads: int) -> tuple[str, _Run]:
    """What the target computes, for a runtime that is not here or does not show its integers."""
    engine = IntegerEngine(lower(result.plan), threads=threads)
    return f"integer engine for {result.plan.target.name}", lambda feeds: engine.run(feeds).outputs


@dataclass
class _Pass:
    """What a pass over the samples leaves of the outputs of both models, (float, quantized).

    Attributes:
        output: Name of the output that is scored.
        errors: By output.
        records: Two, if there is a metric.
        pairs: The scored output, batch by batch; empty once it has no classes. Anything else may
            be as large as the samples, and is not kept.
        shape: Of the scored output in the last batch.
        samples: How many there were.
    """

    output: str
    errors: dict[str, ErrorSums]
    records: tuple[OutputRecord, ...]
    pairs: list[tuple[Scores, Scores]] = field(default_factory=list)
    shape: tuple[int, ...] = ()
    samples: int = 0
    _has_classes: bool = True

    @staticmethod
    def of(outputs: Sequence[str], metric: Metric | None) -> _Pass:
        errors = {name: ErrorSums() for name in outputs}
        records = () if metric is None else (OutputRecord(), OutputRecord())
        return _Pass(outputs[0], errors, records)

    def add(self, want: _Arrays, have: _Arrays, size: int, count: int) -> None:
        """Add what both models gave for a batch of ``size`` samples, ``count`` of them real."""
        self.samples += count
        first, second = want[self.output], have[self.output]
        classes = self.shape[1:] if self.pairs else first.shape[1:]
        self._has_classes &= (
            first.shape == second.shape == (size, *classes) and len(classes) == 1 < classes[0]
        )
        self.shape = first.shape
        if self._has_classes:
            self.pairs.append((first[:count], second[:count]))
        else:
            self.pairs.clear()
        for name, sums in self.errors.items():
            sums.add(*(_real(arrays[name], size, count) for arrays in (want, have)))
        for record, arrays in zip(self.records, (want, have), strict=False):
            record.add(arrays, size, count)

    def scores(self) -> tuple[Scores, Scores] | None:
        """Return the scored output, [samples, classes]; None if it has no classes."""
        if not self.pairs:
            return None
        want, have = zip(*self.pairs, strict=True)
        return np.concatenate(want), np.concatenate(have)


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


def _class_labels(
    samples: Samples, seen: _Pass, scores: tuple[Scores, Scores] | None, *, is_optional: bool
) -> npt.NDArray[np.int64] | None:
    """Return the labels, [N], if there are any and they are classes of the scored output.

    Args:
        samples: After the pass.
        seen: What it left.
        scores: Its scores.
        is_optional: Labels that are something else are for a metric; otherwise they are an error.
    """
    try:
        labels = samples.labels()
        if labels is not None:
            _check_classes(samples.source, seen, scores, labels)
            _check_names(samples, scores)
    except DataError:
        if not is_optional:
            raise
        return None
    return labels


def _check_names(samples: Samples, scores: tuple[Scores, Scores] | None) -> None:
    """Refuse class names that cannot be numbered: the model has more, or fewer."""
    if scores is None or not samples.classes or len(samples.classes) == scores[0].shape[1]:
        return
    raise DataError(
        f"{samples.source}: its {len(samples.classes)} sub-folders are not the "
        f"{scores[0].shape[1]} classes of the model",
        remedy="make an empty one for each missing class, or give --labels",
    )


def _check_classes(
    source: str,
    seen: _Pass,
    scores: tuple[Scores, Scores] | None,
    labels: npt.NDArray[np.int64],
) -> None:
    if scores is None:
        raise DataError(
            f"{source}: there are labels, but output {seen.output!r} has shape "
            f"{list(seen.shape)} in a batch and no classes",
            remedy="leave `labels` out to compare the outputs alone, or give a --metric",
        )
    count, classes = scores[0].shape
    if len(labels) != count or labels.min() < 0 or labels.max() >= classes:
        raise DataError(
            f"{source}: {len(labels)} labels {labels.min()}..{labels.max()} for {count} "
            f"samples and {classes} classes",
            remedy="check that labels start at 0 and belong to this model",
        )


def _accuracy(want: Scores, have: Scores, labels: npt.NDArray[np.int64], k: int) -> Accuracy:
    first = [in_top_k(scores, labels, 1) for scores in (want, have)]
    best = None
    if want.shape[1] > k:
        best = _percent(in_top_k(want, labels, k), in_top_k(have, labels, k))
    points = AccuracyDifference(*(100 * part for part in accuracy_difference(*first)))
    return Accuracy(_percent(*first), best, k, points)


def _percent(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> tuple[float, float]:
    return 100 * float(first.mean()), 100 * float(second.mean())
