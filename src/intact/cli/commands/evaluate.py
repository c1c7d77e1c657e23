"""The commands that report on models: ``inspect`` and ``evaluate``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from intact.cli.parameters import Command, Given
from intact.cli.phases import LOADING, current
from intact.errors import UsageError
from intact.recipe.reports import (
    EvaluateCommand,
    EvaluateOptions,
    InspectCommand,
    InspectOptions,
    LayerOptions,
)

if TYPE_CHECKING:
    from intact.analyze.errors import GraphStatistic, QuantLoss


def _inspect(given: Given[InspectCommand]) -> None:
    """List what will be integer and what float, with reasons; needs no data."""
    found = given.call("inspect", InspectOptions)
    from intact.cli import show

    current().begin("printing")
    show.inspection(found, as_json=given.options.as_json)


def _evaluate(given: Given[EvaluateCommand]) -> None:
    """Compare float and quantized model: accuracy, error, size, latency.

    A folder with a result for each target is evaluated one by one; what is wrong with one of them
    ends with 1, and does not hide the others.

    Example: intact evaluate out/ --data test.npz
    """
    current().begin(LOADING)
    from intact.cli import show
    from intact.results.folder import results_in

    options = given.options
    if options.quant_loss or options.graph_statistic:
        _compare_layers(given)
        return
    inside = results_in(Path(options.result))
    if inside:
        _evaluate_several(given, inside)
        return
    found = given.call("evaluate", EvaluateOptions)
    show.evaluation(found, as_json=options.as_json)


def _evaluate_several(given: Given[EvaluateCommand], folders: Sequence[Path]) -> None:
    """Evaluate the result of each target."""
    from intact.cli import show
    from intact.results.refusals import Refusals

    options, found, refusals = given.options, {}, Refusals()
    for path in folders:
        with refusals.of(path.name):
            what = f"evaluating {path.name}"
            found[path.name] = given.call("evaluate", EvaluateOptions, what, result=path)
    if not found:
        refusals.refuse_all("evaluated")
    show.evaluations(found, refusals.errors, as_json=options.as_json)
    if refusals.errors:
        raise click.exceptions.Exit(1)


def _compare_layers(given: Given[EvaluateCommand]) -> None:
    """Compare layers or edges instead of outputs."""
    from intact.cli import show_layers

    options = given.options
    name = "--quant-loss" if options.quant_loss else "--graph-statistic"
    if options.quant_loss and options.graph_statistic:
        raise UsageError("--quant-loss and --graph-statistic", remedy="choose one")
    if options.metric is not None or options.labels is not None:
        raise UsageError(
            f"{name} compares layers: --metric and --labels are for outputs",
            remedy="leave these out",
        )
    if options.cluster is not None or options.workers is not None:
        raise UsageError(
            f"{name} runs some samples on this machine", remedy="leave out --cluster and --workers"
        )
    function = "quant_loss" if options.quant_loss else "inspect_graph_statistic"
    found: QuantLoss | GraphStatistic = given.call(function, LayerOptions, "comparing layers")
    show_layers.layers(found, as_json=options.as_json)


INSPECT = Command("inspect", InspectCommand, _inspect, timed=True)
EVALUATE = Command("evaluate", EvaluateCommand, _evaluate, timed=True)
