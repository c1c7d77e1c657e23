"""The functions that run a plan over data, alone or beside what was deployed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy.typing as npt

from intact.analyze.errors import MOST_SAMPLES, QuantLoss
from intact.analyze.errors import quant_loss as layers_lost
from intact.api.sources import (
    FloatSource,
    ModelSource,
    load_result,
    names_result,
    names_tflite,
    open_source,
    target_of,
)
from intact.calibrate.collect import Progress
from intact.comparing import (
    Subject,
    compare,
    compare_observed,
    compare_or_say,
    runnable_formats,
    takes_kernels,
)
from intact.errors import UsageError
from intact.evaluation import Evaluation, evaluate_result
from intact.execution import Executor, Run, run_float, run_integer, run_simulated, with_codes
from intact.graph import Graph, normalize
from intact.pipeline import (
    DataSource,
)
from intact.plan import QuantizedGraph
from intact.program.lower import lower
from intact.result import PLAN, Result
from intact.samples.metric import Metric, MetricFunction
from intact.samples.opening import open_samples
from intact.samples.preprocess import Preprocess
from intact.samples.stream import Samples
from intact.targets import Target
from intact.verification import Verification

_VERIFIED = 64


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
    """Run float and quantised model over data: accuracy, error, size, latency.

    Args:
        result: A result or its folder.
        data: Samples, with ``labels`` for accuracies.
        preprocess: What to do with the data; None takes what calibration did.
        labels: A CSV file of labels, for a folder of images.
        metric: A function that scores outputs, or its ``module:function``: see
            ``intact.samples.metric``.
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
    """Compare each layer of the quantised model with the float model's: cosine, SQNR, error.

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
    opened = open_samples(
        data,
        loaded.plan.graph,
        preprocess=preprocess or loaded.preprocess,
        limit=samples,
        skip_bad=skip_bad,
        unread=_mask(loaded),
    )
    opened = replace(opened, progress=progress)
    return layers_lost(loaded.plan, opened, most=samples, threads=threads, integers=integers)


def execute(
    model: Result | ModelSource,
    data: DataSource,
    *,
    executor: Executor | str = Executor.INTEGER,
    target: str | Path | Target | None = None,
    preprocess: Preprocess | None = None,
    samples: int | None = None,
    skip_bad: bool = False,
    batch: int = 16,
    observe: Sequence[str] | None = (),
    threads: int = 0,
    progress: Progress | None = None,
) -> Run:
    """Run a model or a plan on data, by any executor.

    Args:
        model: A result or its folder, a quantised ``.onnx`` or ``.tflite``, or a float model
            (which can only be run in float).
        data: Samples. What is already in the integer type of an input is taken as its codes, and
            then the outputs are codes too.
        executor: ``integer`` (the bits of the target), ``simulate`` or ``float``.
        target: The hardware of a quantised model that is no result.
        preprocess: What to do with the data; None takes what calibration did.
        samples: Use at most so many samples; None uses all.
        skip_bad: Leave out images that cannot be read.
        batch: Samples in one run.
        observe: Names of tensors that the integer engine hands out too; None for all.
        threads: Threads of the runtime; 0 takes all cores.
        progress: Told the samples done and, where known, in all.

    Raises:
        IntactError: The model or the data is wrong, or has no plan to be run by.
    """
    if executor not in set(Executor):
        raise UsageError(f"executor {executor!r}", remedy="integer, simulate or float")
    if executor != Executor.INTEGER and observe != ():
        raise UsageError(
            f"--{executor} hands out no intermediate tensors", remedy="take the integer engine"
        )
    graph, plan, steps = _runnable(model, target)
    if plan is None and executor != Executor.FLOAT:
        raise UsageError(
            f"--{executor}: the model is float, there is no plan to run",
            remedy="give the folder that `intact quantize` made of it, or --float",
        )
    opened = open_samples(
        data, graph, preprocess=preprocess or steps, limit=samples, skip_bad=skip_bad
    )
    opened = replace(opened, progress=progress)
    if plan is None or executor == Executor.FLOAT:
        return run_float(graph, opened, batch=batch, threads=threads)
    if executor == Executor.SIMULATE:
        return run_simulated(plan, opened, batch=batch, threads=threads)
    return run_integer(plan, opened, batch=batch, threads=threads, observe=observe)


def _runnable(
    model: Result | ModelSource, target: str | Path | Target | None
) -> tuple[Graph, QuantizedGraph | None, Preprocess]:
    """Return the float graph, the plan if there is one, and what is done to samples."""
    if isinstance(model, Result) or names_result(model):
        loaded = load_result(model)
        return loaded.plan.graph, loaded.plan, loaded.preprocess
    source = open_source(model)
    if isinstance(source, FloatSource):
        return normalize(source.model), None, Preprocess()
    plan = source.plan(target_of(source.target if target is None else target))
    return plan.graph, plan, Preprocess()


def verify(
    result: Result | str | Path,
    data: DataSource | None = None,
    *,
    kernels: str | None = None,
    deployed: str | None = None,
    observed: str | Path | Mapping[str, npt.ArrayLike] | None = None,
    target: str | Path | Target | None = None,
    preprocess: Preprocess | None = None,
    labels: str | Path | None = None,
    samples: int | None = None,
    skip_bad: bool = False,
    threads: int = 0,
    progress: Progress | None = None,
) -> Verification:
    """Compare what was deployed with the integers that its plan says, layer by layer.

    Args:
        result: A result or its folder, or a ``.tflite`` that others made.
        data: Samples, with ``labels`` for accuracies; None draws inputs from the distribution that
            calibration saw, or where nothing was calibrated evenly from the ranges of the plan.
        kernels: Of a ``.tflite``, which kernels run it: LiteRT's ``ref``, ``optimized`` or
            ``xnnpack``, or ``micro`` for TensorFlow Lite Micro; None takes the target's.
        deployed: Which format of the result; None takes the first that can be run.
        observed: Tensors that were recorded on a device (arrays by name, or an ``.npz``): these are
            compared instead of a runtime here.
        target: The hardware of a ``.tflite`` of others; None takes ``tflite``.
        preprocess: What to do with the data; None takes what calibration did.
        labels: A CSV file of labels, for a folder of images.
        samples: Use at most so many samples; None for 64, with ``observed`` for all.
        skip_bad: Leave out images that cannot be read.
        threads: Threads of the runtime; 0 takes all cores.
        progress: Told the samples done and, where known, in all.

    Raises:
        IntactError: The folder or the data is wrong.
    """
    if observed is not None and data is None:
        raise UsageError(
            "--observed needs the inputs of the device", remedy="give them with --data"
        )
    subject = _subject(result, target)
    if samples is None and observed is None:
        samples = _VERIFIED
    pixels = observed is None and subject.read is None
    reading = _Reading(data, preprocess, labels, samples, skip_bad, progress, pixels)
    opened = reading.open(subject)
    if observed is not None:
        return compare_observed(subject.plan, opened, observed, threads=threads)
    return compare(subject, opened, kernels=kernels, deployed=deployed, threads=threads)


def verify_all(
    result: Result | str | Path,
    data: DataSource | None = None,
    *,
    kernels: str | None = None,
    preprocess: Preprocess | None = None,
    labels: str | Path | None = None,
    samples: int | None = None,
    skip_bad: bool = False,
    threads: int = 0,
    progress: Progress | None = None,
) -> list[Verification]:
    """Verify everything that was deployed: each format of a result, of each result in a folder.

    Where there are several, a runtime that is missing or refuses a model is no error: its entry
    says why.

    Args:
        result: A result, its folder, or the folder with one for each target that `quantize_for`
            wrote.
        data: As for `verify`; arrays or files, because they are read for each format anew.
        kernels: As for `verify`, of each ``.tflite``.
        preprocess: As for `verify`.
        labels: As for `verify`.
        samples: As for `verify`.
        skip_bad: As for `verify`.
        threads: As for `verify`.
        progress: As for `verify`, told anew for each format.

    Raises:
        IntactError: A folder or the data is wrong, or nothing in it can be run.
    """
    count = _VERIFIED if samples is None else samples
    reading = _Reading(data, preprocess, labels, count, skip_bad, progress)
    subjects = [Subject.of_result(each) for each in _results(result)]
    if kernels is not None and not any(takes_kernels(n) for s in subjects for n in s.exports):
        raise UsageError(
            "--kernels is for a .tflite, and there is none in this result", remedy="leave it out"
        )
    rows = [(subject, name) for subject in subjects for name in runnable_formats(subject)]
    if not rows:
        rows = [(subjects[0], next(iter(subjects[0].exports)))]  # refused, with the reason
    found = []
    run = compare if len(rows) == 1 else compare_or_say
    for subject, name in rows:
        chosen = kernels if takes_kernels(name) else None
        opened = reading.open(subject)
        found.append(run(subject, opened, kernels=chosen, deployed=name, threads=threads))
    return found


def _results(result: Result | str | Path) -> list[Result]:
    """Return a result, or those in a folder that holds one for each target."""
    if isinstance(result, Result) or (Path(result) / PLAN).is_file():
        return [load_result(result)]
    folder = Path(result)
    inside = sorted(path.parent for path in folder.glob(f"*/{PLAN}")) if folder.is_dir() else []
    return [load_result(path) for path in inside] or [load_result(result)]


@dataclass(frozen=True)
class _Reading:
    """How samples are read for verification; the fields are those of `verify`.

    Attributes:
        pixels: Bytes are pixels, as they are for calibration and evaluation, and no codes.
    """

    data: DataSource | None
    preprocess: Preprocess | None
    labels: str | Path | None
    samples: int | None
    skip_bad: bool
    progress: Progress | None
    pixels: bool = True

    def open(self, subject: Subject) -> Samples:
        """Return the samples as a model takes them, or drawn ones."""
        if self.data is None:
            opened = subject.draw_samples(_VERIFIED if self.samples is None else self.samples)
        else:
            opened = open_samples(
                self.data,
                subject.plan.graph,
                preprocess=self.preprocess or subject.preprocess,
                limit=self.samples,
                labels=self.labels,
                skip_bad=self.skip_bad,
                unread=subject.unread,
            )
        program = lower(subject.plan)
        return replace(with_codes(opened, program, pixels=self.pixels)[0], progress=self.progress)


def _subject(result: Result | str | Path, target: str | Path | Target | None) -> Subject:
    if not isinstance(result, Result) and names_tflite(result):
        return Subject.of_tflite(Path(result), target_of("tflite" if target is None else target))
    if target is not None:
        raise UsageError("--target is for a .tflite: a result has its own", remedy="leave it out")
    return Subject.of_result(load_result(result))


def _mask(result: Result) -> frozenset[str]:
    """Return the array that only calibration reads, which the same data holds again."""
    return frozenset({result.plan.provenance["mask"]} if "mask" in result.plan.provenance else ())
