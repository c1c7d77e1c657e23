"""What quantization cost and what it bought: accuracy, error, size and latency of both models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from intact.data.batching import Batch
from intact.data.feeding import Carried
from intact.data.metric import Metric, OutputRecord
from intact.data.progress import begin
from intact.data.stream import Samples
from intact.engines.exact_sums import EXACT
from intact.engines.session import FloatModel
from intact.engines.simulate import Simulator
from intact.errors import DataError, UsageError
from intact.flow.doubts import PREPROCESSED, doubts_of
from intact.flow.evaluation_report import Accuracy, Evaluation, OutputComparison
from intact.flow.latency import latencies
from intact.flow.result import Result
from intact.formats.onnx_qdq.run import QdqRuntime
from intact.formats.registry import ONNX_QDQ
from intact.graph import Graph
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

LITTLE_IN_COMMON = 3.0
"""Signal to quantization noise, dB, under which half of an output's power is noise."""
_NO_FLOAT = (
    "no float figures: without its codes the model that was read computes something else (an "
    "activation that its ranges stand for?), or the data is not preprocessed as it wants"
)


Scores = npt.NDArray[np.float32]

_Arrays = Mapping[str, npt.NDArray[Any]]


def evaluate_result(
    result: Result,
    samples: Samples,
    *,
    reference: Graph | None = None,
    batch: int = 100,
    threads: int = 0,
    metric: Metric | None = None,
    top_k: int = 5,
    timed: bool = True,
    scored: Callable[[Scores, npt.NDArray[np.int64]], None] | None = None,
) -> Evaluation:
    """Run both models over the samples.

    Args:
        result: What quantization gave.
        samples: Evaluation data, with ``labels`` if there are any.
        reference: The float model to compare with; None for the result's own.
        batch: Samples in one run, also for the latency.
        threads: Threads inside one operator; 0 lets the runtime choose.
        metric: Scores all outputs of each model after the pass. Only then are they all kept in
            memory, with what comes along with the samples; else that is the first output alone,
            and only if it has classes.
        top_k: Also report how often the right class is among so many best ones.
        timed: Measure the latency, where the model runs in the runtime that it is deployed to.
        scored: Called with the quantized model's scores, [samples, classes], and the labels, if
            there are any.

    Raises:
        DataError: The data does not fit the model, there are not as many labels as samples, or
            the metric fails.
        UsageError: ``batch`` or ``threads`` is out of range, or the reference has other inputs or
            outputs.
    """
    for what, number in (("batch", batch), ("top_k", top_k)):
        if number < 1:
            raise UsageError(f"{what} is {number}", remedy="give 1 or more")
    samples = replace(samples, keep_references=metric is not None)
    size = samples.batch_size(batch)
    graph = result.plan.graph if reference is None else reference
    _refuse_other_ends(graph, result.plan.graph)
    begin(samples.progress, "loading both models")
    float_model = FloatModel(graph, threads=threads)
    runtime, quantized = _runs(result, threads)
    begin(samples.progress, "evaluating")
    seen, first = _run_both(float_model, quantized, samples, size, metric)
    scores = seen.scores()
    labels = _class_labels(samples, seen, scores, is_optional=metric is not None)
    if scored is not None and labels is not None and scores is not None:
        scored(scores[1], labels)
    metrics = {} if metric is None else _figures(metric, seen.records, samples)
    outputs = {n: OutputComparison(sums.sqnr_db, sums.cosine) for n, sums in seen.errors.items()}
    error = outputs[seen.output]
    evaluation = Evaluation(
        samples=seen.samples,
        output=seen.output,
        accuracy=None if labels is None or scores is None else _accuracy(*scores, labels, top_k),
        agreement=None if scores is None else 100 * agreement(*scores),
        sqnr_db=error.sqnr_db,
        cosine=error.cosine,
        bytes=result.sizes(),
        latency_ms=None,
        latency_batch=size,
        speedup=None,
        runtime=runtime,
        outputs=outputs if len(outputs) > 1 else {},
        metrics=metrics,
        skipped=samples.skipped,
        codes=samples.codes,
        why_no_labels=samples.why_no_labels,
        warnings=_warnings(scores, labels, error),
        float_is_trained=reference is None and bool(result.plan.provenance.trained),
        remedy=quantize_for_saturating_pairs(result.plan.target) if EXACT in runtime else "",
    )
    name = next(iter(result.exports))
    if timed and name != ONNX_QDQ:
        evaluation.why_no_latency = f"it is deployed as {name}, and was run by the {runtime}"
    elif timed:  # run by what it is deployed to
        begin(samples.progress, "timing both models")
        found = latencies(lambda: float_model.run(first), lambda: quantized(first))
        evaluation.latency_ms, evaluation.speedup = found.milliseconds, found.ratio
        evaluation.latency_runs = found.runs
    is_other = reference is None and result.plan.keeps_runtime and error.sqnr_db < LITTLE_IN_COMMON
    return _without_float(evaluation) if is_other else evaluation


def _refuse_other_ends(reference: Graph, graph: Graph) -> None:
    """Refuse a float model that cannot be compared by the names of inputs and outputs."""
    for what in ("inputs", "outputs"):
        ends = (getattr(each, what) for each in (reference, graph))
        names, own = ({str(value.name) for value in values} for values in ends)
        if names != own:
            raise UsageError(
                f"the float model has {what} {', '.join(sorted(names))}, the quantized one "
                f"{', '.join(sorted(own))}",
                remedy="give the model that was quantized",
            )


def _run_both(
    float_model: FloatModel,
    quantized: Callable[[Batch], _Arrays],
    samples: Samples,
    size: int,
    metric: Metric | None,
) -> tuple[_Pass, Batch]:
    """Run both models over the samples; return what was seen, and the first batch."""
    seen = _Pass.of(float_model.outputs, metric)
    first: Batch = {}
    carried = Carried(samples.feeding.states, samples.specs)  # of the quantized model itself
    for feeds, count in samples.batches(size):
        first = first or feeds
        found = quantized(carried.into(feeds))
        carried.keep(found)
        seen.add(float_model.run(feeds), found, size, count)
    return seen, first


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
    from intact.engines.integer import IntegerEngine  # compiled code, slow to load

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
