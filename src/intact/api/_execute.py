"""Run a model, or a plan, on data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from intact.calibrate.collect import Progress
from intact.data.preprocess import Preprocess
from intact.data.sources import open_samples
from intact.errors import UsageError
from intact.flow.calibration import DataSource
from intact.flow.execution import Executor, Run, run_float, run_integer, run_simulated
from intact.flow.result import Result
from intact.flow.sources import (
    FloatSource,
    ModelSource,
    load_result,
    names_result,
    open_source,
    target_of,
)
from intact.graph import Graph, normalize
from intact.plan import QuantizedGraph
from intact.targets import Target


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
        model: A result or its folder, a quantized ``.onnx`` or ``.tflite``, or a float model
            (which can only be run in float).
        data: Samples. What is already in the integer type of an input is taken as its codes, and
            then the outputs are codes too.
        executor: ``integer`` (the bits of the target), ``simulate`` or ``float``.
        target: The hardware of a quantized model that is no result.
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
