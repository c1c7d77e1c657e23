"""Carries out ``intact evaluate``: accuracy, error, size and latency of both models."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intact.analyze.doubts import doubts_of
from intact.analyze.evaluation.by_length import LENGTH, LengthWatch
from intact.analyze.evaluation.figures import Accuracy, Evaluation, OutputComparison
from intact.analyze.evaluation.run import (
    Models,
    Pass,
    Scores,
    Watch,
    evaluated_at_once,
    own_runtime,
    run_both,
)
from intact.analyze.evaluation.text import PerplexityFigures, TextFigures, TextMetric, TextScores
from intact.analyze.verdict import Judgement, Measured, Verdict, verdict
from intact.data.batching import Batch, real_samples, sample_count
from intact.data.detections import DetectionMetric
from intact.data.metric import Compared, Metric, OutputRecord
from intact.data.progress import begin
from intact.data.stream import Samples
from intact.engines.exact_sums import EXACT
from intact.engines.latency import latencies
from intact.errors import DataError, ExportError, IntactError, UsageError
from intact.formats.base.format import Deployed
from intact.formats.registry import ONNX_QDQ
from intact.graph import Graph
from intact.graph.ops import outputs_of_vectors
from intact.limits import LITTLE_DB
from intact.numerics.answers import are_unit_vectors
from intact.numerics.metrics import (
    AccuracyDifference,
    accuracy_difference,
    agreement,
    in_top_k,
)
from intact.results.result import Result
from intact.targets.advice import quantize_for_saturating_pairs

if TYPE_CHECKING:
    from intact.calibrate.shards import SampleMap

_NO_FLOAT = (
    "no float figures: without its codes the model that was read computes something else (an "
    "activation that its ranges stand for?), or the data is not preprocessed as it wants"
)


def evaluate_result(
    result: Result,
    samples: Samples,
    *,
    reference: Graph | None = None,
    batch: int | None = None,
    threads: int = 0,
    metric: Metric | TextMetric | None = None,
    top_k: int = 5,
    timed: bool = True,
    scored: Callable[[Scores, npt.NDArray[np.int64]], None] | None = None,
    watch: Watch | None = None,
    cluster: SampleMap | None = None,
    by: str | None = None,
) -> Evaluation:
    """Run both models over the samples.

    Args:
        result: What quantization gave.
        samples: Evaluation data, with ``labels`` if there are any.
        reference: The float model to compare with; None for the result's own.
        batch: Samples in one run, None for as many as `evaluated_at_once`; the latency is of one
            sample where the model takes one.
        threads: Threads inside one operator; 0 lets the runtime choose.
        metric: Scores all outputs of each model after the pass. Only then are they all kept in
            memory, with what comes along with the samples; else that is the first output alone,
            and only if it has classes. Of a language model it may name the figure; left out, the
            one that fits is measured.
        top_k: Also report how often the right class is among so many best ones.
        timed: Measure the latency, where the model runs in the runtime that it is deployed to.
        scored: Called with the quantized model's scores, [samples, classes], and the labels, if
            there are any.
        watch: See `run_both`; without a cluster.
        cluster: Whose workers run both models, with as many threads each; the metric and the
            latency are computed here. None runs them here.
        by: ``length`` to see what short and long samples lose; then samples run one by one.

    Raises:
        ClusterError: The cluster cannot be reached, has other versions, or loses its workers.
        DataError: The data does not fit the model, there are not as many labels as samples, or
            the metric fails.
        UsageError: ``batch`` or ``threads`` is out of range, or the reference has other inputs or
            outputs.
    """
    for what, number in (("batch", batch), ("top_k", top_k)):
        if number is not None and number < 1:
            raise UsageError(f"{what} is {number}", remedy="give 1 or more")
    asked = metric if isinstance(metric, TextMetric) else None
    metric = None if isinstance(metric, TextMetric) else metric
    if metric is not None:
        metric = metric.bound(result.plan.graph)
    samples = replace(samples, keep_references=metric is not None)
    graph = result.plan.graph if reference is None else reference
    size = samples.batch_size(1 if by == LENGTH else batch or evaluated_at_once(graph))
    _refuse_other_ends(graph, result.plan.graph)
    text = TextScores.of(graph, asked)
    lengths = None if by is None else _length_watch(graph, samples, cluster)
    watch = watch if lengths is None else lengths.watch
    models: Models | None = None
    doubts: tuple[str, ...] = ()
    if cluster is None:
        begin(samples.progress, "loading both models")
        models = Models(graph, result, threads)
        runtime = models.runtime
        begin(samples.progress, "evaluating")
        kept = None if metric is None else metric.pairs()
        # One pass for all figures: samples may be slow to read, or come in another order next time.
        seen, first = run_both(models, samples, size, kept=kept, text=text, watch=watch)
    else:
        from intact.analyze.evaluation.shards import EvaluationJob, run_both_on

        begin(samples.progress, "evaluating on the cluster")
        job = EvaluationJob(result, reference, size, metric is not None, text)
        seen, first, runtime = run_both_on(cluster, job, samples, threads=threads)
        doubts = cluster.doubts
    scores = seen.scores()
    # After the pass, since labels are those of the samples that were read.
    labels = _class_labels(samples, seen, scores, is_optional=metric is not None)
    if scored is not None and labels is not None and scores is not None:
        scored(scores[1], labels)
    metrics = Compared({}, {})
    if metric is not None and seen.outputs is not None:
        metrics = seen.outputs.compared(metric, samples.references())
    outputs = {name: _compared(seen, name) for name in seen.errors}
    vectors = seen.output in outputs_of_vectors(graph.outputs)
    error = outputs[seen.output]
    evaluation = Evaluation(
        samples=seen.samples,
        output=seen.output,
        accuracy=_accuracy(seen, labels, top_k),
        agreement=_agreement(scores, is_vector=labels is None and vectors),
        sqnr_db=error.sqnr_db,
        cosine=error.cosine,
        equal=error.equal,
        bytes=result.sizes(),
        latency_ms=None,
        latency_batch=size,
        speedup=None,
        runtime=runtime,
        outputs=outputs if len(outputs) > 1 else {},
        metrics=metrics.figures,
        intervals=metrics.intervals,
        skipped=samples.skipped,
        codes=samples.codes,
        why_no_labels=samples.why_no_labels,
        # That outputs have little in common is no sign: two bits do that to a model that is right.
        warnings=(
            *(() if scores is None else doubts_of(scores[0], labels)),
            *metrics.warnings,
            *doubts,
        ),
        float_is_trained=reference is None and bool(result.plan.provenance.trained),
        remedy=quantize_for_saturating_pairs(result.plan.target) if EXACT in runtime else "",
    )
    is_deployed = next(iter(result.exports)) == ONNX_QDQ
    # Generating is timed, and tells of the deployed runtime alone.
    evaluation.lengths = None if lengths is None else lengths.found(result.plan)
    evaluation.text = _text_figures(seen, models if timed else None, asked, is_deployed)
    if timed:
        begin(samples.progress, "timing both models")
        _time(evaluation, models or Models(graph, result, threads), result, first, threads)
    judged = verdict(measured_by(evaluation, doubts=len(doubts)))
    of_model = models if metric is None and labels is None else None
    evaluation.verdict = _of_detector(judged, of_model, first)
    is_other = reference is None and result.plan.keeps_runtime and error.sqnr_db < LITTLE_DB
    return _without_float(evaluation) if is_other else evaluation


def _agreement(scores: tuple[Scores, Scores] | None, *, is_vector: bool) -> float | None:
    """Return the percent of samples with one best class; None of embeddings, which have none."""
    if scores is None or is_vector or are_unit_vectors(scores[0]):
        return None
    return 100 * agreement(*scores)


def _compared(seen: Pass, name: str) -> OutputComparison:
    """Return the error of an output; choices are equal or not, and have no level of noise."""
    equal = seen.choices.get(name)
    if equal is not None:
        return OutputComparison(math.nan, math.nan, equal.share)
    sums = seen.errors[name]
    return OutputComparison(sums.sqnr_db, sums.cosine)


def _length_watch(graph: Graph, samples: Samples, cluster: SampleMap | None) -> LengthWatch:
    if cluster is not None:
        raise UsageError("--by length runs on one machine", remedy="leave --cluster out")
    return LengthWatch(samples, str(graph.outputs[0].name))


def _of_detector(judged: Verdict, models: Models | None, first: Batch) -> Verdict:
    """Leave open what decibels of boxes say: their order alone may have changed.

    Those of boxes and scores in one output are the boxes', which are larger: they speak for nothing
    either.
    """
    metric = None if models is None else DetectionMetric.of_model(models.graph)
    is_good = judged.judgement is Judgement.GOOD
    if (
        metric is None
        or models is None
        or judged.judgement is Judgement.WRONG
        or (is_good and metric.scores)
    ):
        return judged
    record = OutputRecord()
    size = sample_count(first)
    record.add(models.in_float.run(first), size, size)
    try:
        if not metric.reads(record.outputs()):
            return judged
    except IntactError:  # of these shapes, and no detector
        return judged
    levels = str(judged).removeprefix("good to deploy: ")
    told = f"cannot be told by decibels of boxes: {levels}" if is_good else str(judged)
    told = f"{told}; its outputs look like boxes and scores: --metric detections tells more"
    return Verdict(Judgement.UNSURE, told)


def _time(
    evaluation: Evaluation, models: Models, result: Result, first: Batch, threads: int
) -> None:
    """Time both models by one sample, the quantized one in what it is deployed to.

    Devices run one sample at a time; a batch that the model fixes is run as it is.

    Args:
        evaluation: Gets the times, or why there are none.
        models: Both models.
        result: What quantization gave.
        first: The first batch.
        threads: Number of threads of the runtimes.
    """
    name = next(iter(result.exports))
    size = evaluation.latency_batch
    is_open = all(_is_open(value) for value in result.plan.graph.inputs)
    one = real_samples(first, size, 1) if is_open else first
    if name == ONNX_QDQ:
        # In turn, so that a machine that slows down does so for both.
        found = latencies(lambda: models.in_float.run(one), lambda: models.quantized(one))
    else:
        runtime = own_runtime(result)
        if runtime is None:
            ran = evaluation.runtime
            evaluation.why_no_latency = f"it is deployed as {name}, and was run by the {ran}"
            return
        in_float: Callable[[Batch], object] = models.in_float.run
        deployed = Deployed(result.plan, result.exports[name], None, threads)
        try:
            run = runtime.runner(deployed)
        except ExportError as error:
            evaluation.why_no_latency = str(error)
            return
        # Where it holds the model in integers only, ONNX Runtime runs the float model.
        for graph in (models.graph, result.plan.graph) if runtime.runs_float else ():
            with contextlib.suppress(IntactError):  # it may lack what the plan's graph has not
                beside = runtime.float_runner(graph, deployed)
                beside(one)
                in_float, evaluation.float_runtime = beside, runtime.name()
                break
        found = latencies(lambda: in_float(one), lambda: run(one))
    evaluation.latency_batch = 1 if is_open else size
    evaluation.latency_ms, evaluation.speedup = found.milliseconds, found.ratio
    evaluation.latency_runs = found.runs


def _is_open(value: ir.Value) -> bool:
    """Tell whether the number of samples of an input is free."""
    return (
        value.shape is not None and bool(len(value.shape)) and not isinstance(value.shape[0], int)
    )


def measured_by(found: Evaluation, *, doubts: int = 0) -> Measured:
    """Return what a verdict follows from.

    Args:
        found: The evaluation.
        doubts: Number of its last warnings that are not of the float model.
    """
    change = None if found.accuracy is None else found.accuracy.difference
    levels = [each.sqnr_db for each in found.outputs.values()] or [found.sqnr_db]
    # NaN of an output of variable shape would be the least.
    numbers = [level for level in levels if not math.isnan(level)]
    compared = [each.equal for each in found.outputs.values()] or [found.equal]
    of_float = found.warnings[: len(found.warnings) - doubts]
    return Measured(
        samples=found.samples,
        change=None if change is None else (change.difference, change.low, change.high),
        growth=found.text.change if isinstance(found.text, PerplexityFigures) else None,
        agreement=found.agreement,
        decibels=min(numbers, default=None),
        equal=min(filter(None, compared), default=None),
        metrics=found.metrics,
        intervals=found.intervals,
        wrong=next(iter(of_float), ""),
    )


def _text_figures(
    seen: Pass, models: Models | None, asked: TextMetric | None, is_deployed: bool
) -> TextFigures | None:
    """Return the figures of a language model; None of others, and of what predicts nothing.

    Raises:
        UsageError: Perplexity is asked for of a model that sees the tokens that it would predict.
    """
    text = seen.text
    # An encoder is no predictor: its perplexity would be a figure of copying.
    if text is None or seen.sees_what_follows:
        if asked is TextMetric.PERPLEXITY:
            raise UsageError(
                f"--metric perplexity: {seen.output} of a token depends on the tokens behind it, "
                "which the model would have to predict",
                remedy="give --metric cosine, or leave it out",
            )
        return None
    generated = None
    if models is not None and is_deployed:
        generated = text.generated(models.in_float.run, models.quantized)
    return text.figures(generated)


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
        equal=None,
        latency_ms=None if latency is None else (nan, latency[1]),
        speedup=None,
        outputs={},
        metrics={name: (nan, after) for name, (_, after) in found.metrics.items()},
        warnings=(),
        why_no_float=_NO_FLOAT,
        verdict=None,
    )


def _class_labels(
    samples: Samples, seen: Pass, scores: tuple[Scores, Scores] | None, *, is_optional: bool
) -> npt.NDArray[np.int64] | None:
    """Return the labels, [N], if there are any and they are classes of the scored output.

    Args:
        samples: After the pass.
        seen: What it left.
        scores: Its scores.
        is_optional: Labels that are something else are for a metric; otherwise they are an error.
    """
    try:
        # Data of a metric may have boxes or texts under the same key.
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
    seen: Pass,
    scores: tuple[Scores, Scores] | None,
    labels: npt.NDArray[np.int64],
) -> None:
    answers = seen.answers()
    if answers is None:
        raise DataError(
            f"{source}: there are labels, but output {seen.output!r} has shape "
            f"{list(seen.shape)} in a batch and no classes",
            remedy="leave `labels` out to compare the outputs alone, or give a --metric",
        )
    count = len(answers[0])
    classes = None if scores is None else scores[0].shape[1]
    beyond = classes is not None and labels.max(initial=0) >= classes
    if len(labels) != count or labels.min(initial=0) < 0 or beyond:
        of_model = "" if classes is None else f" and {classes} classes"
        raise DataError(
            f"{source}: {len(labels)} labels {labels.min()}..{labels.max()} for {count} "
            f"samples{of_model}",
            remedy="check that labels start at 0 and belong to this model",
        )


def _accuracy(seen: Pass, labels: npt.NDArray[np.int64] | None, k: int) -> Accuracy | None:
    """Compare how often both models are right; None without labels or classes."""
    scores, answers = seen.scores(), seen.answers()
    if labels is None or answers is None:
        return None
    if scores is None:
        first = [given == labels for given in answers]
    else:
        first = [in_top_k(each, labels, 1) for each in scores]
    best = None
    if scores is not None and scores[0].shape[1] > k:
        best = _percent(*(in_top_k(each, labels, k) for each in scores))
    # Paired: both models see the same samples, whose difficulty then cancels.
    points = AccuracyDifference(*(100 * part for part in accuracy_difference(*first)))
    return Accuracy(_percent(first[0], first[1]), best, k, points)


def _percent(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> tuple[float, float]:
    return 100 * float(first.mean()), 100 * float(second.mean())
