"""Declares the commands that report on models and results, and run them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from intact.cli.parameters import Command, GivenOptions
from intact.cli.phases import LOADING, current
from intact.errors import ModelError, OutputError, UsageError
from intact.recipe.reports import (
    CompareCommand,
    CompareOptions,
    ConvertRangesCommand,
    ConvertRangesOptions,
    DiagnoseCommand,
    DiagnoseOptions,
    EvaluateCommand,
    EvaluateOptions,
    InspectCommand,
    InspectOptions,
    LayerOptions,
    ReportCommand,
    ReportOptions,
)
from intact.recipe.runs import (
    ExecuteOptions,
    RunCommand,
    VerifyAllOptions,
    VerifyCommand,
    VerifyOptions,
)

if TYPE_CHECKING:
    from intact.analyze.errors import GraphStatistic, QuantLoss
    from intact.formats.base.report import Verification


def _inspect(given: GivenOptions[InspectCommand]) -> None:
    """List what will be integer and what float, with reasons; needs no data."""
    found = given.call("inspect", InspectOptions)
    from intact.cli import show

    # Thousands of rows may take longer to draw than they took to find.
    current().begin("printing")
    show.inspection(found, as_json=given.options.as_json)


def _evaluate(given: GivenOptions[EvaluateCommand]) -> None:
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
    if not options.as_json:
        show.next_diagnosis(found, str(options.result), str(options.data))


def _evaluate_several(given: GivenOptions[EvaluateCommand], folders: Sequence[Path]) -> None:
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


def _compare_layers(given: GivenOptions[EvaluateCommand]) -> None:
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


def _diagnose(given: GivenOptions[DiagnoseCommand]) -> None:
    """Say why a result loses accuracy: cause, evidence and a command that may mend it.

    Looked for are wrong preprocessing, unlike calibration samples, clipping, rounding, outliers,
    dead channels, scales of BatchNormalizations, unlike ranges and masks. --try measures the gain.

    Example: intact diagnose out/ --data test.npz
    """
    options, found = given.options, given.call("diagnose", DiagnoseOptions)
    from intact.cli import show_diagnosis

    was_tried = options.seconds is not None
    folder = Path(options.result)
    show_diagnosis.diagnosis(found, folder, as_json=options.as_json, was_tried=was_tried)


def _compare(given: GivenOptions[CompareCommand]) -> None:
    """Compare results: what differs in decisions, errors, cost and accuracy.

    Results may be of different targets and float models: then what they share is compared, and
    what cannot be compared is said.

    Example: intact compare out/ other/ --data test.npz
    """
    options, found = given.options, given.call("compare", CompareOptions)
    from intact.cli import show_comparison

    show_comparison.comparison(
        found, page=options.output, every=options.every, as_json=options.as_json
    )


def _report(given: GivenOptions[ReportCommand]) -> None:
    """Write the report of a result: one page that opens from disk, with graph, errors and causes.

    It shows the network with the error of each layer, distributions with thresholds, weights by
    channel, the diagnosis, the search or the training, and the recipe. Needs the extra `report`.

    Example: intact report out/ --data test.npz
    """
    options, found = given.options, given.call("report", ReportOptions)
    from intact.cli import show
    from intact.results.folder import report_in

    page = options.output or report_in(Path(options.result))
    show.report(found, page, as_json=options.as_json)


def _run(given: GivenOptions[RunCommand]) -> None:
    """Run a model on data by one of its executors and write the outputs.

    Arrays are keyed by input and output names. Data in the integer type of an input is taken as
    codes; then the outputs are codes too. Without --output, the likeliest classes are printed.

    Example: intact run out/ --data cat.jpg

    Example: intact run out/ --integer --data x.npz --output y.npz
    """
    from intact.cli import show_runs
    from intact.results.execution import save_arrays

    options = given.options
    flags = {
        "integer": options.integer,
        "simulate": options.simulate,
        "float": options.in_float,
    }
    chosen = [name for name, wanted in flags.items() if wanted]
    if len(chosen) > 1:
        raise UsageError(f"--{chosen[0]} and --{chosen[1]}", remedy="choose one")
    output = None if options.output is None else Path(options.output)
    executor = chosen[0] if chosen else "integer"
    others: dict[str, Any] = {}
    if output is None:
        others["samples"] = min(options.samples or show_runs.SHOWN, show_runs.SHOWN)
        if executor != "float":
            in_float = given.call("execute", ExecuteOptions, "running", executor="float", **others)
    else:
        _refuse_output(output, options.data)
    # Set after the float run above, which has no tensors between and refuses to observe.
    others["observe"] = None if options.every else ()
    found = given.call("execute", ExecuteOptions, "running", executor=executor, **others)
    if output is None:
        both = {executor: found} if executor == "float" else {"float": in_float, executor: found}
        show_runs.classes(both, as_json=options.as_json)
        return
    save_arrays(output, {**found.tensors, **found.outputs})
    show_runs.run(found, output, as_json=options.as_json)


def _verify(given: GivenOptions[VerifyCommand]) -> None:
    """Compare what was deployed with the integers of its plan, layer by layer.

    Every format of every target in the folder is compared, in its own runtime, and gets a row.
    Differences end with 0. What cannot be run (a runtime is missing or refuses the model), a broken
    rule of the hardware, and nothing that could be compared end with 1.

    Example: intact verify out/ --data test.npz
    """
    options = given.options
    # Each of these names one thing to verify, and not a row of them.
    alone = (options.deployed, options.observed, options.target) != (None, None, None)
    found: list[Verification]
    if _is_tflite_file(Path(options.result)) or alone:
        found = [given.call("verify", VerifyOptions)]
    else:
        found = given.call("verify_all", VerifyAllOptions)
    from intact.cli import show_verification

    show_verification.verifications(found, as_json=options.as_json)
    if any(each.refused or each.compared_nothing or any(each.rules.values()) for each in found):
        raise click.exceptions.Exit(1)


def _refuse_output(path: Path, data: object) -> None:
    """Refuse, before anything is computed, what cannot or should not be written."""
    if path.suffix != ".npz":
        raise OutputError(
            f"{path}: outputs are written as .npz", remedy="name a file that ends in .npz"
        )
    if not path.parent.is_dir():
        raise OutputError(
            f"{path}: there is no folder {path.parent}", remedy="make it first, or name another"
        )
    # The file and not its path is compared: through a link, or spelled otherwise, writing would
    # destroy the samples.
    names_files = isinstance(data, str | Path) and Path(data).exists() and path.exists()
    if names_files and path.samefile(str(data)):
        raise OutputError(f"{path}: is the data of this run", remedy="name another file")


def _is_tflite_file(path: Path) -> bool:
    """Tell a ``.tflite`` from the folder of a result; a file of another kind is refused."""
    from intact.graph.files.regular import remedy_for_absent
    from intact.results.sources import names_deployed

    if not path.exists():
        raise ModelError(f"{path} does not exist", remedy=remedy_for_absent(path, "check the path"))
    if path.is_dir():
        return False
    if path.suffix == ".tflite":
        return True
    if not names_deployed(path):
        raise ModelError(
            f"{path} is a file: the folder of a result is verified, or a .tflite of others",
            remedy="make a folder with `intact quantize`, or `intact import` if it is quantized, "
            "and the model's preprocessing (--normalize, or --mean and --std)",
        )
    return True


def _convert_ranges(given: GivenOptions[ConvertRangesCommand]) -> None:
    """Turn a scale and zero point into the range of the codes, or a range into those.

    The ends of a FakeQuantize give back the scale and zero point that they were made of.

    Example: intact convert-ranges --scale 0.1 --zero-point -3

    Example: intact convert-ranges --low -1.28 --high 1.27 --symmetric
    """
    from intact import api
    from intact.cli.printing import print_json, say

    found = api.convert_ranges(**given.of(ConvertRangesOptions))
    if given.options.as_json:
        print_json(
            {
                "scale": float(found.scale),
                "zero_point": found.zero_point,
                "low": found.low,
                "high": found.high,
                "quant_min": found.quant_min,
                "quant_max": found.quant_max,
            }
        )
        return
    say(f"scale {found.scale!s}, zero point {found.zero_point}")
    say(f"low {found.low!r}, high {found.high!r}")
    say(f"[dim]codes {found.quant_min} to {found.quant_max}[/]")


INSPECT = Command("inspect", InspectCommand, _inspect, timed=True)
EVALUATE = Command("evaluate", EvaluateCommand, _evaluate, timed=True)
DIAGNOSE = Command("diagnose", DiagnoseCommand, _diagnose, timed=True)
COMPARE = Command("compare", CompareCommand, _compare, timed=True)
REPORT = Command("report", ReportCommand, _report, timed=True)
RUN = Command("run", RunCommand, _run)
VERIFY = Command("verify", VerifyCommand, _verify, timed=True)
CONVERT_RANGES = Command("convert-ranges", ConvertRangesCommand, _convert_ranges)
