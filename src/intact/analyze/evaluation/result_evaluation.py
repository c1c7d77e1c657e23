"""Evaluates a result folder as a command asks for it: its outputs, its layers, its edges.

Each function reads the result, opens the samples, and calls what measures:

* `evaluate`, of ``intact evaluate``: accuracy and errors of the outputs.
* `quant_loss`: errors of each layer.
* `inspect_graph_statistic`: mean, extremes and errors of each edge (tensor).
"""

from __future__ import annotations

from intact.analyze import errors
from intact.analyze.diagnose.findings import CAUSES
from intact.analyze.errors import GraphStatistic, QuantLoss
from intact.analyze.evaluation.evaluate import evaluate_result
from intact.analyze.evaluation.figures import Evaluation
from intact.analyze.evaluation.text import TextMetric
from intact.data.detections import metric_of
from intact.data.metric import DETECTIONS
from intact.data.stream import Samples
from intact.errors import UsageError
from intact.limits import USUAL_DB
from intact.recipe.reports import EdgeOptions, EvaluateOptions, LayerOptions
from intact.results.recipes import cluster_of
from intact.results.result import Result
from intact.results.samples import open_for_result
from intact.results.sources import begin_reading, float_graph, load_result


def evaluate(options: EvaluateOptions) -> Evaluation:
    """Run float and quantized model over data: accuracy, error, size, latency.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    begin_reading(options.result, options.progress)
    # Before the result is read, so that a wrong name is told at once.
    named = TextMetric.named(options.metric)
    ends = (options.boxes, options.scores, options.classes)
    metric = named or (None if options.metric is None else metric_of(options.metric, ends))
    if any(ends) and options.metric != DETECTIONS:
        raise UsageError(
            "--boxes, --scores and --classes are of --metric detections",
            remedy="give --metric detections, or leave them out",
        )
    loaded = load_result(options.result)
    samples = _open(options, loaded)
    with cluster_of(options) as cluster:
        found = evaluate_result(
            loaded,
            samples,
            reference=None if options.float_model is None else float_graph(options.float_model),
            batch=options.batch,
            threads=options.threads,
            metric=metric,
            top_k=options.top_k,
            cluster=cluster,
            by=options.by,
        )
    # Where the float model is wrong itself, its ranges are no matter.
    if found.sqnr_db < USUAL_DB and not found.warnings:
        from intact.analyze.diagnose.result_diagnosis import unlike_samples  # with much else

        unlike = unlike_samples(loaded, samples, options.data)
        if unlike is not None:
            line = f"{CAUSES[unlike.cause]}: {unlike.evidence}; {unlike.remedy}"
            found.warnings = (*found.warnings, line)
    return found


def quant_loss(options: LayerOptions) -> QuantLoss:
    """Compare each layer of the quantized model with the float model's: cosine, SQNR, error.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    loaded = load_result(options.result)
    return errors.quant_loss(
        loaded.plan,
        _open(options, loaded),
        most=options.samples,
        threads=options.threads,
        integers=options.integers,
    )


def inspect_graph_statistic(options: EdgeOptions) -> GraphStatistic:
    """Compare each edge before and after quantizing: mean, deviation, extremes, SQNR, cosine.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    loaded = load_result(options.result)
    return errors.inspect_graph_statistic(
        loaded.plan,
        _open(options, loaded),
        most=options.samples,
        threads=options.threads,
        integers=options.integers,
        topological=options.topological,
    )


def _open(options: EvaluateOptions | LayerOptions, result: Result) -> Samples:
    """Open samples that both models of a result are run on."""
    labels = options.labels if isinstance(options, EvaluateOptions) else None
    return open_for_result(options, options.data, result, limit=options.samples, labels=labels)
