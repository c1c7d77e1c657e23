"""Runs a model, or a plan, on data."""

from __future__ import annotations

from dataclasses import replace

from intact.data.preprocess import Preprocess
from intact.errors import UsageError
from intact.graph import Graph, normalize
from intact.plan import QuantizedGraph
from intact.recipe.declare import public
from intact.recipe.reports import ExecuteOptions
from intact.results.execution import Executor, Run, run_float, run_integer, run_simulated
from intact.results.preprocessing import steps_for
from intact.results.recipes import open_fed
from intact.results.sources import FloatSource, is_result, load_result, open_source, target_of


@public(ExecuteOptions)
def execute(options: ExecuteOptions) -> Run:
    """Run a model or a plan on data, by any executor.

    Raises:
        IntactError: The model or the data is wrong, or has no plan to be run by.
    """
    executor = Executor(options.executor)
    if executor != Executor.INTEGER and options.observe != ():
        raise UsageError(
            f"executor {executor} returns no intermediate tensors",
            remedy="take the integer engine",
        )
    graph, plan, steps = _runnable(options)
    if plan is None and executor != Executor.FLOAT:
        raise UsageError(
            f"executor {executor}: the model is float, there is no plan to run",
            remedy="give the folder that `intact quantize` made of it, or run it in float",
        )
    opened = open_fed(
        options.data,
        graph,
        options,
        None if plan is None else plan.provenance,
        preprocess=steps_for(options, options.data, steps),
        limit=options.samples,
        skip_bad=options.skip_bad,
    )
    opened = replace(opened, progress=options.progress)
    batch, threads = options.batch, options.threads
    if plan is None or executor == Executor.FLOAT:
        return run_float(graph, opened, batch=batch, threads=threads)
    if executor == Executor.SIMULATE:
        return run_simulated(plan, opened, batch=batch, threads=threads)
    return run_integer(plan, opened, batch=batch, threads=threads, observe=options.observe)


def _runnable(options: ExecuteOptions) -> tuple[Graph, QuantizedGraph | None, Preprocess]:
    """Open the float graph, the plan if there is one, and the steps of its calibration."""
    if is_result(options.model):
        loaded = load_result(options.model)
        return loaded.plan.graph, loaded.plan, loaded.preprocess
    source = open_source(options.model)
    if isinstance(source, FloatSource):
        # Nobody else has the model that was just read: normalizing needs no clone.
        return normalize(source.model, in_place=True), None, Preprocess()
    target = source.target if options.target is None else options.target
    plan = source.plan(target_of(target))
    return plan.graph, plan, Preprocess()
