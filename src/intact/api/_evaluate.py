"""Compare the float and the quantized model: outputs, layers, edges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from intact.analyze import errors
from intact.analyze.errors import MOST_SAMPLES, GraphStatistic, QuantLoss
from intact.calibrate.collect import Progress
from intact.data.metric import Metric, MetricFunction
from intact.data.preprocess import Preprocess
from intact.data.sources import open_samples
from intact.data.stream import Samples
from intact.flow.calibration import DataSource
from intact.flow.evaluation import Evaluation, evaluate_result
from intact.flow.result import Result
from intact.flow.sources import load_result


def evaluate(
    result: Result | str | Path,
    data: DataSource,
    *,
    preprocess: Preprocess | None = None,
    labels: str | Path | None = None,
    metric: str | MetricFunction | Metric | None = None,
    samples: int | None = None,
    skip_bad: bool = False,
    top_k: int = 5,
    batch: int = 100,
    threads: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Run float and quantized model over data: accuracy, error, size, latency.

    Args:
        result: A result or its folder.
        data: Samples, with ``labels`` for accuracies.
        preprocess: What to do with the data; None takes what calibration did.
        labels: A CSV file of labels, for a folder of images.
        metric: A function that scores outputs, or its ``module:function``: see
            ``intact.data.metric``.
        samples: Use at most so many samples; None uses all.
        skip_bad: Leave out images that cannot be read, and list them.
        top_k: Also report how often the right class is among so many best ones.
        batch: Samples in one run.
        threads: Threads of the runtime; 0 takes all cores.
        progress: Told the samples done and, where known, in all.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    scored_by = None if metric is None else Metric.of(metric)
    loaded = load_result(result)
    opened = open_samples(
        data,
        loaded.plan.graph,
        preprocess=preprocess or loaded.preprocess,
        limit=samples,
        labels=labels,
        skip_bad=skip_bad,
        unread=_mask(loaded),
    )
    opened = replace(opened, progress=progress)
    return evaluate_result(
        loaded, opened, batch=batch, threads=threads, metric=scored_by, top_k=top_k
    )


def quant_loss(
    result: Result | str | Path,
    data: DataSource,
    *,
    integers: bool = False,
    preprocess: Preprocess | None = None,
    samples: int = MOST_SAMPLES,
    skip_bad: bool = False,
    threads: int = 0,
    progress: Progress | None = None,
) -> QuantLoss:
    """Compare each layer of the quantized model with the float model's: cosine, SQNR, error.

    Args:
        result: A result or its folder.
        data: Samples.
        integers: Run the integer engine, not the float simulation.
        preprocess: What to do with the data; None takes what calibration did.
        samples: Use at most so many samples.
        skip_bad: Leave out images that cannot be read.
        threads: Threads of the runtime; 0 takes all cores.
        progress: Told the samples done and, where known, in all.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    loaded = load_result(result)
    opened = _beside(loaded, data, preprocess, samples, progress, skip_bad=skip_bad)
    return errors.quant_loss(loaded.plan, opened, most=samples, threads=threads, integers=integers)


def inspect_graph_statistic(
    result: Result | str | Path,
    data: DataSource,
    *,
    topological: bool = False,
    integers: bool = False,
    preprocess: Preprocess | None = None,
    samples: int = MOST_SAMPLES,
    skip_bad: bool = False,
    threads: int = 0,
    progress: Progress | None = None,
) -> GraphStatistic:
    """Compare each edge before and after quantizing: mean, deviation, extremes, SQNR, cosine.

    Args:
        result: A result or its folder.
        data: Samples.
        topological: Leave the edges in the order of the graph, not the most damaged first.
        integers: Run the integer engine, not the float simulation.
        preprocess: What to do with the data; None takes what calibration did.
        samples: Use at most so many samples.
        skip_bad: Leave out images that cannot be read.
        threads: Threads of the runtime; 0 takes all cores.
        progress: Told the samples done and, where known, in all.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    loaded = load_result(result)
    opened = _beside(loaded, data, preprocess, samples, progress, skip_bad=skip_bad)
    return errors.inspect_graph_statistic(
        loaded.plan,
        opened,
        most=samples,
        threads=threads,
        integers=integers,
        topological=topological,
    )


def _beside(
    result: Result,
    data: DataSource,
    preprocess: Preprocess | None,
    limit: int,
    progress: Progress | None,
    *,
    skip_bad: bool,
) -> Samples:
    """Open samples that both models of a result are run on."""
    opened = open_samples(
        data,
        result.plan.graph,
        preprocess=preprocess or result.preprocess,
        limit=limit,
        skip_bad=skip_bad,
        unread=_mask(result),
    )
    return replace(opened, progress=progress)


def _mask(result: Result) -> frozenset[str]:
    """Return the array that only calibration reads, which the same data holds again."""
    return frozenset({result.plan.provenance["mask"]} if "mask" in result.plan.provenance else ())
